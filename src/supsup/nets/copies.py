"""Copies of a module that share its tensors: as many threads as like run one network, each its own copy of the layers.

Running a module with other weights puts them into its layers for a moment, and training mode is a setting of the
layers, so no two threads may run one object.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from supsup.runtime.locks import new_lock


class Copies:
    """Idle copies of a module, some in training mode, others not; more are made when threads need them.

    One that was being run when an error or an interrupt came is not used again. A module that defines how it is copied,
    and does not share its tensors, is run itself, by one thread at a time.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._idle: dict[bool, deque[nn.Module]] = {False: deque(), True: deque()}
        self._shares: bool | None = None  # whether copies share tensors, once it was tried
        self._lock = new_lock()  # held by who runs the module itself

    def __deepcopy__(self, memo: dict[int, Any]) -> Copies:
        return Copies(copy.deepcopy(self.module, memo))

    @contextmanager
    def borrowed(self, training: bool = False) -> Iterator[nn.Module]:
        """One for the caller alone, in training mode or not."""
        idle = self._idle[training]
        try:
            module: nn.Module | None = idle.pop()
        except IndexError:
            module = self._made(training)
        if module is not None:
            yield module
            idle.append(module)
            return
        with self._lock:
            yield self.module.train(training)

    def _made(self, training: bool) -> nn.Module | None:
        if self._shares is False:
            return None
        made = with_tensors(self.module, {})
        self._shares = made is not None
        return None if made is None else made.train(training)


def with_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module | None:
    """A copy of a module with some of its parameters and buffers replaced, wherever they occur, and the rest shared.

    None for a module that defines how it is copied and does not take them.
    """
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    taken: dict[int, Any] = {id(tensor): tensor for tensor in (*parameters.values(), *buffers.values())}
    for name, tensor in tensors.items():
        if name in parameters:
            taken[id(parameters[name])] = nn.Parameter(tensor, requires_grad=False)
        else:
            taken[id(buffers[name])] = tensor
    expected = {name: taken[id(tensor)] for name, tensor in (parameters | buffers).items()}
    copied = copy.deepcopy(module, taken).eval()
    present = dict(copied.named_parameters()) | dict(copied.named_buffers())
    return copied if all(present.get(name) is tensor for name, tensor in expected.items()) else None
