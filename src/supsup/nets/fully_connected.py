"""Fully connected networks without biases: the two that the paper uses on MNIST, and any other widths."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from supsup.errors import SupSupError
from supsup.nets.registry import architecture


@architecture
class FullyConnected(nn.Module):
    """Linear layers of the given widths (inputs first, outputs last) with ReLU between them; images are flattened."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        if len(widths) < 2 or any(width < 1 for width in widths):
            raise SupSupError(f"widths must be at least two positive numbers, inputs first; got {list(widths)}")
        self.widths = tuple(widths)
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        out: Tensor = self.layers[-1](x)
        return out


@architecture
def lenet_300_100(outputs: int = 10, inputs: int = 784) -> FullyConnected:
    """LeNet 300-100."""
    return FullyConnected((inputs, 300, 100, outputs))


@architecture
def fc_1024(outputs: int = 10, inputs: int = 784) -> FullyConnected:
    """Two hidden layers of 1,024."""
    return FullyConnected((inputs, 1024, 1024, outputs))


def plain_layers(module: nn.Module) -> list[nn.Linear] | None:
    """The layers of a `FullyConnected` that computes what its class says and nothing else; None for any other module.

    What works by hand, without calling the module, asks this first. It looks at what the module holds: somebody may
    have given a layer a bias, a hook, another parametrisation, or put another layer in its place.
    """
    if type(module) is not FullyConnected or "forward" in vars(module) or hooked(module) or hooked(module.layers):
        return None
    if _own_tensors(module) or _own_tensors(module.layers) or len(module.layers) != len(module.widths) - 1:
        return None
    layers = []
    for layer, (inputs, outputs) in zip(module.layers, pairwise(module.widths)):
        if not isinstance(layer, nn.Linear) or layer.weight.shape != (outputs, inputs):
            return None
        changed = type(layer) is not nn.Linear or "forward" in vars(layer) or hooked(layer)
        if changed or _own_tensors(layer) != 1 or list(layer.children()):
            return None
        layers.append(layer)
    return layers


def _own_tensors(module: nn.Module) -> int:
    return len(list(module.parameters(recurse=False))) + len(list(module.buffers(recurse=False)))


def hooked(module: nn.Module) -> bool:
    """Whether something is called before or after the module, or with its gradients."""
    own = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    everywhere = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")
    return any(getattr(module, name) for name in own) or any(getattr(module_hooks, name) for name in everywhere)
