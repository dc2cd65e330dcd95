"""A network whose weights never change: drawn from a seed or brought along, and only a mask makes them useful."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from supsup import philox
from supsup.errors import SupSupError

_MASKABLE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NOT_MASKABLE = (nn.RNNBase, nn.RNNCellBase, nn.Bilinear, nn.modules.conv._ConvTransposeNd)


class FrozenNet:
    """A module with frozen weights, run with other weights put in place of the maskable ones.

    `weights` maps the full name of each linear, convolutional or attention weight to its frozen tensor, in the module's
    own order. Every weight is +c or −c with c = sqrt(2 / fan_in), and its bias is 0; other parameters (affine
    normalisation, embeddings) stay as they were built. With `pretrained` all of them stay as they are.
    `statistics` are the running means and variances of normalisation layers as every task finds them; each task has
    its own afterwards. The module given is copied, never changed.
    """

    def __init__(self, net: nn.Module, seed: int, device: torch.device, pretrained: bool = False) -> None:
        self.module = copy.deepcopy(net).requires_grad_(False)
        self.seed = seed
        self.device = device
        self.pretrained = pretrained
        names = _maskable_weights(self.module)
        if not pretrained:
            _freeze(self.module, names, seed)
        self.checksum = _checksum(dict(self.module.named_parameters()))
        self.module.to(device).eval()
        parameters = dict(self.module.named_parameters())
        self.weights: dict[str, Tensor] = {name: parameters[name].detach() for name in names}
        self.shapes: dict[str, torch.Size] = {name: weight.shape for name, weight in self.weights.items()}
        self.statistics: dict[str, Tensor] = _running_statistics(self.module)

    def run(self, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """Outputs [images, s] with these weights in place of the frozen ones, and these statistics if given."""
        out: Tensor = functional_call(self.module, dict(weights), (x,))
        return out

    def masked(self, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """W ⊙ M for every maskable weight, and whatever statistics are given along with the masks.

        Masks may be bits, means of masks, or anything of that shape.
        """
        weights = {name: weight * masks[name] for name, weight in self.weights.items()}
        return weights | {name: masks[name] for name in self.statistics if name in masks}


def _freeze(module: nn.Module, names: list[str], seed: int) -> None:
    """Weights to ±c from the seed, their biases to 0."""
    parameters = dict(module.named_parameters())
    for name in names:
        parameters[name].copy_(signed_constant(seed, name, parameters[name].shape))
        bias = parameters.get(name.removesuffix("weight") + "bias")
        if bias is not None:
            bias.zero_()


def _running_statistics(module: nn.Module) -> dict[str, Tensor]:
    """Running means and variances of the normalisation layers, by name."""
    found: dict[str, Tensor] = {}
    for name, child in module.named_modules():
        if isinstance(child, nn.modules.batchnorm._NormBase) and child.track_running_stats:
            if child.momentum is None:
                raise SupSupError(f"layer {name!r} averages its statistics over all batches; give it a momentum")
            found |= {f"{name}.{kind}": getattr(child, kind) for kind in ("running_mean", "running_var")}
    return {name.removeprefix("."): value.detach().clone() for name, value in found.items()}


def signed_constant(seed: int, name: str, shape: torch.Size) -> Tensor:
    """Frozen weights: ±sqrt(2 / fan_in), the signs from the seed and the weight's name."""
    constant = math.sqrt(2.0 / fan_in(shape))
    return philox.signs(seed, f"weights/{name}", shape.numel()).view(shape) * constant


def fan_in(shape: torch.Size) -> int:
    """How many inputs feed one output of a linear or convolutional weight."""
    return shape[1:].numel()


def _maskable_weights(module: nn.Module) -> list[str]:
    names = []
    for path, child in module.named_modules():
        if isinstance(child, _NOT_MASKABLE):
            raise SupSupError(
                f"layer {path!r} ({type(child).__name__}) has weights that cannot be masked; build it from linear or "
                "convolutional layers"
            )
        found = [name for name, _ in child.named_parameters(recurse=False)]
        if isinstance(child, _MASKABLE):
            names.append(f"{path}.weight")
        elif isinstance(child, nn.MultiheadAttention):
            names += [f"{path}.{name}" for name in found if name.endswith("proj_weight")]
    names = [name.removeprefix(".") for name in names]
    if not names:
        raise SupSupError("nothing to mask: the network has no linear or convolutional layer")
    known = {name for name, _ in module.named_parameters()}
    for name in names:
        if name not in known:
            raise SupSupError(f"weight {name!r} is shared with another layer or re-parametrised and cannot be masked")
    return names


def _checksum(parameters: Mapping[str, Tensor]) -> str:
    """A digest of names, shapes and float32 bits: two networks with equal checksums give equal answers."""
    digest = hashlib.blake2b(digest_size=16)
    for name, value in parameters.items():
        digest.update(f"{name}{tuple(value.shape)}".encode())
        digest.update(value.detach().float().cpu().contiguous().numpy().astype("<f4").tobytes())
    return digest.hexdigest()
