"""Networks that switch from task to task: one pass rewrites the masked weights when the task changes.

`plain_fill` defines a switch. On a GPU it is one kernel; on a CPU one compiled loop, if numba is installed.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from supsup.kernels import available
from supsup.masks.bank import Bank
from supsup.masks.frozen import FrozenNet
from supsup.nets.execution import copy_with_tensors
from supsup.runtime.locks import new_lock

if available.NUMBA:
    from supsup.kernels import numba_masks
if available.TRITON:
    from supsup.kernels import triton_masks

_MOST = 8  # networks at the same time; further threads compute temporary masked weights


class SwitchedNets:
    """A pool of networks, each with one mask applied: one for each thread that predicts at the same time.

    They share the frozen weights; each has its own masked weights.
    """

    def __init__(self, net: FrozenNet, spans: Mapping[str, tuple[int, int]]) -> None:
        self.net, self._spans = net, dict(spans)
        self._idle: list[SwitchedNet] = []  # the last used at the end
        self._made: weakref.WeakSet[SwitchedNet] = weakref.WeakSet()
        self._lock = new_lock()

    def run(self, bank: Bank, index: int, x: Tensor) -> Tensor:
        """Outputs [images, s] under one mask."""
        switched = self._taken((bank.version, index))
        if switched is None:
            return self.net.run(x, self.net.masked(bank.subnetwork(index)))
        out = switched.run(bank, index, x)
        self._idle.append(switched)  # not after an error, which may have come in the middle of a switch
        return out

    def _taken(self, wanted: tuple[object, int]) -> SwitchedNet | None:
        """An idle network, preferably with this mask applied; None if too many are busy."""
        with self._lock:
            for position, switched in enumerate(self._idle):
                if switched.on == wanted:
                    return self._idle.pop(position)
            if self._idle:
                return self._idle.pop(0)
            if len(self._made) >= _MOST:
                return None
            frozen = next((switched.frozen for switched in self._made), None)
            made = SwitchedNet(self.net, self._spans, frozen)
            self._made.add(made)
            return made


class SwitchedNet:
    """A frozen network with one mask of a bank and its statistics applied; the same task again needs no switch.

    It is a copy of the frozen module. Its masked weights are views of one buffer, in the order of the bank's bits, its
    statistics are views of another, and all other tensors are shared. This costs two numbers per weight: the frozen
    weights in that order, which networks share, and the masked ones.
    """

    def __init__(self, net: FrozenNet, spans: Mapping[str, tuple[int, int]], frozen: Tensor | None = None) -> None:
        self.net, self._spans = net, dict(spans)
        self.on: tuple[object, int] | None = None  # version of the bank and index of the applied mask
        self.frozen = end_to_end(net, spans) if frozen is None else frozen
        self.masked = torch.zeros_like(self.frozen)
        self.statistics = torch.zeros(sum(value.numel() for value in net.statistics.values()), device=net.device)
        views = {name: self.masked[_bits(net, spans, name)].view(net.shapes[name]) for name in spans}
        start = 0
        for name, value in net.statistics.items():
            views[name] = self.statistics[start : start + value.numel()].view(value.shape)
            start += value.numel()
        self._module = copy_with_tensors(net.module, views)

    def __deepcopy__(self, memo: dict[int, Any]) -> SwitchedNet:
        """Built again, since the parameters of a copied module would not be views of the copied buffers."""
        return SwitchedNet(copy.deepcopy(self.net, memo), self._spans)

    def run(self, bank: Bank, index: int, x: Tensor) -> Tensor:
        """Outputs [images, s] under one mask."""
        if self._module is None or x.requires_grad:  # a later switch must not change tensors of an autograd graph
            return self.net.run(x, self.net.masked(bank.subnetwork(index)))
        if self.on != (bank.version, index):
            self.switch(bank, index)
        with self.net.attending():
            out: Tensor = self._module(x)
        return out

    def switch(self, bank: Bank, index: int) -> None:
        """Apply a mask."""
        self.on = None
        fill(bank.column(index), self.frozen, self.masked)
        self.statistics.copy_(bank.flat_statistics(index))
        self.on = (bank.version, index)


def end_to_end(net: FrozenNet, spans: Mapping[str, tuple[int, int]]) -> Tensor:
    """The frozen weights in the order of a bank's bits."""
    frozen = torch.zeros(8 * max(stop for _, stop in spans.values()), device=net.device)
    for name in spans:
        frozen[_bits(net, spans, name)] = net.weights[name].flatten()
    return frozen


def _bits(net: FrozenNet, spans: Mapping[str, tuple[int, int]], name: str) -> slice:
    """The positions of the bits of one weight."""
    start = 8 * spans[name][0]
    return slice(start, start + net.shapes[name].numel())


def fill(packed: Tensor, frozen: Tensor, masked: Tensor) -> None:
    """masked [8 × bytes] = frozen where the mask's bit is 1, else 0."""
    if frozen.is_cuda and available.TRITON:
        triton_masks.triton_fill(packed, frozen, masked)
    elif available.NUMBA and frozen.device.type == "cpu":
        numba_masks.numba_fill(packed, frozen, masked)
    else:
        plain_fill(packed, frozen, masked)


def plain_fill(packed: Tensor, frozen: Tensor, masked: Tensor) -> None:
    """The same with torch operations alone."""
    shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
    bits = ((packed[:, None] >> shifts) & 1).bool().flatten()
    torch.where(bits, frozen, torch.zeros_like(frozen[:1]), out=masked)
