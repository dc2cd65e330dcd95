"""Running a module with other weights, and in several threads at once.

Running with other weights puts them into the layers for a moment, and training mode is a setting of the layers. So each
thread runs its own copy of the layers; the copies share their tensors.
"""

from __future__ import annotations

import copy
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from supsup.nets.architecture import has_plain_forward
from supsup.nets.fully_connected import FullyConnected, HopMLP
from supsup.nets.imagenet import ImageNetwork, InvertedResidual, TensorFlowPadding
from supsup.nets.resnet import BasicBlock, Bottleneck, ResNet
from supsup.runtime.locks import new_lock

# Layers that draw no random numbers, use no attention and keep nothing between two passes but statistics.
_KNOWN_LAYERS = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Flatten, nn.Unflatten, nn.Identity, nn.Sequential, nn.ModuleList),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm, nn.LayerNorm, nn.InstanceNorm2d),
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.ELU, nn.Tanh, nn.Sigmoid, nn.Softmax),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d),
    *(FullyConnected, HopMLP, ResNet, BasicBlock, Bottleneck, ImageNetwork, InvertedResidual, TensorFlowPadding),
)


def has_only_known_layers(module: nn.Module) -> bool:
    """Whether running the module has no side effects: every layer is a known one, with nothing added."""
    return all(type(layer) in _KNOWN_LAYERS and has_plain_forward(layer) for layer in module.modules())


def run_with_weights(module: nn.Module, weights: Mapping[str, Tensor], x: Tensor) -> Any:
    """The outputs of a module with these weights in place of its own.

    Recurrent layers cache their weights. Their cache is reset, or it would keep these weights and their graph alive,
    and not notice when others replace them.
    """
    try:
        return functional_call(module, dict(weights), (x,))
    finally:
        for layer in module.modules():
            if isinstance(layer, nn.RNNBase):
                cached: list[nn.Parameter] = [getattr(layer, name) for name in layer._flat_weights_names]
                layer._flat_weights, layer._flat_weight_refs = [*cached], [weakref.ref(weight) for weight in cached]


class ModuleCopies:
    """Idle copies of a module, some in training mode, others not; more are made when threads need them.

    A copy that was running when an error or interrupt came is discarded. A module that defines its own copying and
    does not share its tensors is run itself, by one thread at a time.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._idle: dict[bool, deque[nn.Module]] = {False: deque(), True: deque()}
        self._shares = True  # until a copy does not share its tensors
        self._lock = new_lock()  # held while the module itself runs

    @contextmanager
    def borrow(self, training: bool = False) -> Iterator[nn.Module]:
        """A copy for the caller alone, in training mode or not."""
        idle = self._idle[training]
        try:
            module: nn.Module | None = idle.pop()
        except IndexError:
            module = self._copy(training)
        if module is not None:
            yield module
            idle.append(module)
        else:
            with self._lock:
                yield self.module.train(training)

    def _copy(self, training: bool) -> nn.Module | None:
        copied = copy_with_tensors(self.module, {}) if self._shares else None
        self._shares = copied is not None
        return None if copied is None else copied.train(training)


def copy_with_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module | None:
    """A copy of a module with some of its parameters and buffers replaced wherever they occur, and the rest shared.

    None for a module that defines its own copying and does not take them.
    """
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    memo: dict[int, Any] = {id(tensor): tensor for tensor in (*parameters.values(), *buffers.values())}
    for name, tensor in tensors.items():
        if name in parameters:
            memo[id(parameters[name])] = nn.Parameter(tensor, requires_grad=False)
        else:
            memo[id(buffers[name])] = tensor
    expected = {name: memo[id(tensor)] for name, tensor in (parameters | buffers).items()}
    copied = copy.deepcopy(module, memo).eval()
    present = dict(copied.named_parameters()) | dict(copied.named_buffers())
    return copied if all(present.get(name) is tensor for name, tensor in expected.items()) else None
