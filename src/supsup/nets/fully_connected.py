"""Fully connected networks without biases: the paper's on MNIST, any other widths, and the network of HopSupSup.

The masks of `HopMLP` are on hidden units, not on weights: short enough for a Hopfield network. `many_outputs` computes
it for many networks and masks at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from supsup.nets.architecture import architecture, check_size, check_widths, matches_architecture


def _linear_layers(widths: Sequence[int]) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairwise(widths))


@architecture
class FullyConnected(nn.Module):
    """Linear layers of the given widths (inputs first, outputs last) with ReLU between them; images are flattened."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.widths = check_widths(widths, least=2)
        self.layers = _linear_layers(self.widths)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        *hidden, last = self.layers
        for layer in hidden:
            x = layer(x).relu()
        out: Tensor = last(x)
        return out


@architecture
def lenet_300_100(outputs: int = 10, inputs: int = 784) -> FullyConnected:
    """LeNet 300-100."""
    return FullyConnected((check_size(inputs, "inputs"), 300, 100, check_size(outputs, "outputs")))


@architecture
def fc_1024(outputs: int = 10, inputs: int = 784) -> FullyConnected:
    """Two hidden layers of 1,024."""
    return FullyConnected((check_size(inputs, "inputs"), 1024, 1024, check_size(outputs, "outputs")))


def unmodified_layers(module: nn.Module) -> list[nn.Linear] | None:
    """The layers of a `FullyConnected` that computes what its class says; None for any other module."""
    if not isinstance(module, FullyConnected) or not matches_architecture(module):
        return None
    return [layer for layer in module.layers if isinstance(layer, nn.Linear)]


@architecture
class HopMLP(nn.Module):
    """Linear layers of the given widths; behind each but the last: normalise over the batch, mask the units, Swish.

    The normalisation has no parameters and keeps no statistics, so outputs depend on the other images of the batch:
    each batch must hold images of one task.
    """

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.widths = check_widths(widths, least=3)
        self.layers = _linear_layers(self.widths)
        self.norms = nn.ModuleList(
            nn.BatchNorm1d(width, affine=False, track_running_stats=False) for width in self.widths[1:-1]
        )

    def forward(self, x: Tensor, units: Sequence[Tensor] | None = None) -> Tensor:
        """Outputs [images, s]; `units` are the masks [width] of the hidden layers, all units by default."""
        x = x.flatten(1)
        for index, norm in enumerate(self.norms):
            x = norm(self.layers[index](x))
            x = silu(x if units is None else x * units[index])
        out: Tensor = self.layers[-1](x)
        return out


@architecture
def hop_mlp(outputs: int = 10, inputs: int = 784) -> HopMLP:
    """Two hidden layers of 2,048, as in the paper."""
    return HopMLP((check_size(inputs, "inputs"), 2048, 2048, check_size(outputs, "outputs")))


def many_outputs(weights: Sequence[Tensor], x: Tensor, units: Sequence[Tensor]) -> Tensor:
    """The outputs of `HopMLP` for n networks with k masks each, at once.

    weights  one [n, out, in] for each layer
    x        images [n, k, b, inputs]; n or k may be 1 where they are the same for all
    units    one [n, k, width] for each hidden layer
    Returns outputs [n, k, b, s].
    """
    for weight, mask in zip(weights, units, strict=False):
        x = _product(x, weight)
        variance, mean = torch.var_mean(x, dim=2, keepdim=True, correction=0)
        x = silu((x - mean) * (variance + 1e-5).rsqrt() * mask[:, :, None])
    return _product(x, weights[-1])


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """[n, k, b, in] times [n, out, in] as n matrix products."""
    flat = x.flatten(1, 2).expand(len(weight), -1, -1)
    out: Tensor = torch.bmm(flat, weight.mT).unflatten(1, x.shape[1:3])
    return out
