"""Which weights of a module get masks, how many numbers feed one output of each, and what is refused by name."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.func import functional_call

from supsup.runtime.errors import SupSupError

_PRODUCTS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Bilinear)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
RECURRENT = (nn.RNNBase, nn.RNNCellBase)


class Masked(NamedTuple):
    """One weight that is masked.

    inputs   how many numbers feed one output: random weights are ±√(2 / inputs)
    bias     the name of the bias that goes with it, if there is one
    padding  the row of an embedding that stays 0
    """

    name: str
    inputs: int
    bias: str | None = None
    padding: int | None = None


def masked_weights(module: nn.Module) -> dict[str, Masked]:
    """The weights that are masked, by full name, in the module's own order; an error that names what cannot be."""
    owners: dict[int, list[str]] = {}  # the names of each parameter
    found: dict[str, Masked] = {}
    for path, child in module.named_modules():
        before = f"{path}." if path else ""
        for name, parameter in child.named_parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(before + name)
        for weight in _of_layer(child, path):
            bias = None if weight.bias is None else before + weight.bias
            found[before + weight.name] = weight._replace(name=before + weight.name, bias=bias)
    if not found:
        raise SupSupError(
            "nothing to mask: the network has no layer with weights, such as a linear or convolutional one"
        )
    _check_own(list(found), owners)
    return found


def run_with(module: nn.Module, weights: Mapping[str, Tensor], x: Tensor) -> Any:
    """What a module returns with these weights in place of its own.

    Recurrent layers would keep the weights they were given last, and with them all that these were computed from; and
    given the same ones again they would not notice that they had others meanwhile.
    """
    try:
        return functional_call(module, dict(weights), (x,))
    finally:
        for layer in module.modules():
            if isinstance(layer, nn.RNNBase):
                own: list[nn.Parameter] = [getattr(layer, name) for name in layer._flat_weights_names]
                layer._flat_weights, layer._flat_weight_refs = [*own], [weakref.ref(weight) for weight in own]


def _of_layer(layer: nn.Module, path: str) -> Iterator[Masked]:
    """The weights of one layer, not of those inside it; also those that are no parameters, to be refused by name."""
    own = [name for name, _ in layer.named_parameters(recurse=False)]
    if isinstance(layer, _PRODUCTS):
        yield Masked("weight", layer.weight[0].numel(), "bias" if "bias" in own else None)
    elif isinstance(layer, _TRANSPOSED):
        reached = layer.weight[:, 0].numel() // layer.groups  # by an output, if it saw the whole window
        yield Masked("weight", max(1, reached // math.prod(layer.stride)), "bias" if "bias" in own else None)
    elif isinstance(layer, _EMBEDDINGS):
        _check_embedding(layer, path)
        yield Masked("weight", 1, padding=layer.padding_idx)
    elif isinstance(layer, nn.MultiheadAttention):
        for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
            weight = getattr(layer, name)
            if weight is not None:
                yield Masked(name, weight.shape[1], "in_proj_bias" if "in_proj_bias" in own else None)
    elif isinstance(layer, RECURRENT):
        names = layer._flat_weights_names if isinstance(layer, nn.RNNBase) else ["weight_ih", "weight_hh"]
        for name in names:
            if name.startswith("weight"):
                bias = name.replace("weight", "bias", 1)
                yield Masked(name, getattr(layer, name).shape[1], bias if bias in own else None)


def _check_embedding(layer: nn.Embedding | nn.EmbeddingBag, path: str) -> None:
    what = f"layer {path!r} ({type(layer).__name__})" if path else f"the network ({type(layer).__name__})"
    if layer.max_norm is not None:
        raise SupSupError(
            f"{what} rewrites its weights whenever it runs (max_norm), and frozen ones stay: leave it out"
        )
    if layer.sparse:
        raise SupSupError(f"{what} has sparse gradients, which masks cannot be trained with; use sparse=False")


def _check_own(names: list[str], owners: dict[int, list[str]]) -> None:
    """An error unless every weight is a parameter of its own."""
    shared = {name: [other for other in together if other != name] for together in owners.values() for name in together}
    for name in names:
        if name not in shared:
            raise SupSupError(
                f"weight {name!r} is computed from other parameters (weight_norm, …) and cannot be masked; remove the "
                "parametrisation (torch.nn.utils.parametrize.remove_parametrizations)"
            )
        if shared[name]:
            raise SupSupError(
                f"weight {name!r} is shared with {shared[name][0]!r} and cannot be masked: one mask would change both; "
                "give each a weight of its own, or use one layer twice"
            )
