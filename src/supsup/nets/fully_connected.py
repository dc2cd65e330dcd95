"""Fully connected networks without biases: the two that the paper uses on MNIST, and any other widths."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from supsup.nets.architecture import architecture, check_size, check_widths, matches_architecture


@architecture
class FullyConnected(nn.Module):
    """Linear layers of the given widths (inputs first, outputs last) with ReLU between them; images are flattened."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.widths = check_widths(widths, least=2)
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairwise(self.widths))

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
    """The layers of a `FullyConnected` that computes what its class says and nothing else; None for any other module.

    Code that computes without calling the module checks this first.
    """
    if not isinstance(module, FullyConnected) or not matches_architecture(module):
        return None
    return [layer for layer in module.layers if isinstance(layer, nn.Linear)]
