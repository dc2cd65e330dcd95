"""A network whose weights never change: every weight is ±c, drawn from a seed, and only a mask makes it useful."""

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


class FrozenNet:
    """A module with frozen weights, run with other weights put in place of the maskable ones.

    `weights` maps the full name of each linear or convolutional weight to its frozen tensor, in the module's own order.
    Every weight is +c or −c with c = sqrt(2 / fan_in); biases are 0; other parameters stay as they were built.
    The module given is copied, never changed.
    """

    def __init__(self, net: nn.Module, seed: int, device: torch.device) -> None:
        self.module = copy.deepcopy(net).requires_grad_(False)
        self.seed = seed
        self.device = device
        names = _maskable_weights(self.module)
        parameters = dict(self.module.named_parameters())
        for name in names:
            parameters[name].copy_(signed_constant(seed, name, parameters[name].shape))
            bias = parameters.get(name.removesuffix("weight") + "bias")
            if bias is not None:
                bias.zero_()
        self.checksum = _checksum(parameters)
        self.module.to(device).eval()
        parameters = dict(self.module.named_parameters())
        self.weights: dict[str, Tensor] = {name: parameters[name].detach() for name in names}
        self.shapes: dict[str, torch.Size] = {name: weight.shape for name, weight in self.weights.items()}

    def run(self, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """Outputs [images, s] with these weights in place of the frozen ones."""
        out: Tensor = functional_call(self.module, dict(weights), (x,))
        return out

    def masked(self, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """W ⊙ M for every maskable weight; masks may be bits, means of masks, or anything of that shape."""
        return {name: weight * masks[name] for name, weight in self.weights.items()}


def signed_constant(seed: int, name: str, shape: torch.Size) -> Tensor:
    """Frozen weights: ±sqrt(2 / fan_in), the signs from the seed and the weight's name."""
    constant = math.sqrt(2.0 / fan_in(shape))
    return philox.signs(seed, f"weights/{name}", shape.numel()).view(shape) * constant


def fan_in(shape: torch.Size) -> int:
    """How many inputs feed one output of a linear or convolutional weight."""
    return shape[1:].numel()


def _maskable_weights(module: nn.Module) -> list[str]:
    for name, child in module.named_modules():
        if isinstance(child, nn.modules.batchnorm._NormBase) and child.track_running_stats:
            raise SupSupError(
                f"layer {name!r} ({type(child).__name__}) keeps running statistics, which would let one task change "
                "another's answers; use track_running_stats=False, LayerNorm or GroupNorm"
            )
    names = [f"{name}.weight" if name else "weight" for name, m in module.named_modules() if isinstance(m, _MASKABLE)]
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
