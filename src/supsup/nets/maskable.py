"""Which weights of a module get masks and how many inputs each has; an error names weights that cannot be masked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from torch import nn

from supsup.nets.imagenet import fixed_prefixes
from supsup.runtime.errors import SupSupError

_PRODUCTS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Bilinear)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
RECURRENT = (nn.RNNBase, nn.RNNCellBase)


class MaskedWeight(NamedTuple):
    """A weight that is masked.

    inputs   how many numbers feed one output: random weights are ±√(2 / inputs)
    bias     the name of its bias, if there is one
    padding  the row of an embedding that stays 0
    """

    name: str
    inputs: int
    bias: str | None = None
    padding: int | None = None


def masked_weights(module: nn.Module) -> dict[str, MaskedWeight]:
    """The weights to mask, by full name, in the order of the module; an error names one that cannot be masked."""
    fixed = fixed_prefixes(module)
    owners: dict[int, list[str]] = {}  # the names of each parameter
    found: dict[str, MaskedWeight] = {}
    for path, child in module.named_modules():
        before = f"{path}." if path else ""
        own = dict(child.named_parameters(recurse=False))
        for name, parameter in own.items():
            owners.setdefault(id(parameter), []).append(before + name)
        if before.startswith(fixed):
            continue
        for weight in _layer_weights(child, path):
            bias = f"{before}{weight.bias}" if weight.bias in own else None
            found[before + weight.name] = weight._replace(name=before + weight.name, bias=bias)
    if not found:
        raise SupSupError(
            "nothing to mask: the network has no layer with weights, such as a linear or convolutional one"
        )
    _check_separate(list(found), owners)
    return found


def _layer_weights(layer: nn.Module, path: str) -> Iterator[MaskedWeight]:
    """The weights of one layer, each with the bias that it may have; computed ones too, for `_check_separate`."""
    if isinstance(layer, _PRODUCTS):
        yield MaskedWeight("weight", layer.weight[0].numel(), "bias")
    elif isinstance(layer, _TRANSPOSED):
        reached = layer.weight[:, 0].numel() // layer.groups  # inputs of an output that sees the whole window
        yield MaskedWeight("weight", max(1, reached // math.prod(layer.stride)), "bias")
    elif isinstance(layer, _EMBEDDINGS):
        _check_embedding(layer, path)
        yield MaskedWeight("weight", 1, padding=layer.padding_idx)
    elif isinstance(layer, nn.MultiheadAttention):
        for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
            weight = getattr(layer, name)
            if weight is not None:
                yield MaskedWeight(name, weight.shape[1], "in_proj_bias")
    elif isinstance(layer, RECURRENT):
        names = layer._flat_weights_names if isinstance(layer, nn.RNNBase) else ["weight_ih", "weight_hh"]
        for name in names:
            if name.startswith("weight"):
                yield MaskedWeight(name, getattr(layer, name).shape[1], name.replace("weight", "bias", 1))


def _check_embedding(layer: nn.Embedding | nn.EmbeddingBag, path: str) -> None:
    what = f"layer {path!r} ({type(layer).__name__})" if path else f"the network ({type(layer).__name__})"
    if layer.max_norm is not None:
        raise SupSupError(
            f"{what} rewrites its weights whenever it runs (max_norm), but frozen weights must stay: leave max_norm out"
        )
    if layer.sparse:
        raise SupSupError(f"{what} has sparse gradients, which masks cannot be trained with; use sparse=False")


def _check_separate(names: list[str], owners: dict[int, list[str]]) -> None:
    """An error unless every weight is a parameter that nothing else shares."""
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
