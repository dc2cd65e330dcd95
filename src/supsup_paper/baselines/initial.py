"""Where the baselines' weights begin: the usual random fillings, from a seed, the same on every device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from supsup.masks import philox
from supsup.masks.frozen import fan_in

Filling = Literal["kaiming_normal", "xavier_normal", "kaiming_uniform"]
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def layer_names(net: nn.Module) -> list[str]:
    """The full names of the weights of linear and convolutional layers, in the module's own order."""
    return [f"{name}.weight" if name else "weight" for name, m in net.named_modules() if isinstance(m, _LAYERS)]


def initial_weights(
    net: nn.Module, seed: int, filling: Filling, device: torch.device, head: Filling | None = None
) -> dict[str, Tensor]:
    """Every parameter of the network: layers filled from the seed, biases 0, anything else as it was built.

    head  the filling of the last layer, where it differs
    """
    filled, names = {name: value.detach().clone() for name, value in net.named_parameters()}, layer_names(net)
    for name in names:
        how = head if head is not None and name == names[-1] else filling
        filled[name] = FILLINGS[how](seed, f"initial/{name}", filled[name].shape)
        bias = name.removesuffix("weight") + "bias"
        if bias in filled:
            filled[bias].zero_()
    return {name: value.to(device) for name, value in filled.items()}


def normal(seed: int, labels: Sequence[str], count: int, device: torch.device | str = "cpu") -> Tensor:
    """Standard normal float32 numbers, [len(labels), count], by Box and Muller's formula in float64."""
    half = -(-count // 2)
    uniform = (philox.words(seed, labels, 2 * half, device).double() + 0.5) / 2.0**32
    radius = (-2.0 * uniform[:, :half].log()).sqrt()
    angle = 2.0 * math.pi * uniform[:, half:]
    return torch.cat([radius * angle.cos(), radius * angle.sin()], 1)[:, :count].float()


def _kaiming_normal(seed: int, label: str, shape: torch.Size) -> Tensor:
    return normal(seed, [label], shape.numel()).view(shape) * math.sqrt(2.0 / fan_in(shape))


def _xavier_normal(seed: int, label: str, shape: torch.Size) -> Tensor:
    fan_out = shape[0] * shape[2:].numel()
    return normal(seed, [label], shape.numel()).view(shape) * math.sqrt(2.0 / (fan_in(shape) + fan_out))


def _kaiming_uniform(seed: int, label: str, shape: torch.Size) -> Tensor:
    """With a = √5: torch's own default."""
    return philox.uniform(seed, [label], shape.numel(), 1.0 / math.sqrt(fan_in(shape))).view(shape)


FILLINGS: dict[str, Callable[[int, str, torch.Size], Tensor]] = {
    "kaiming_normal": _kaiming_normal,
    "xavier_normal": _xavier_normal,
    "kaiming_uniform": _kaiming_uniform,
}
