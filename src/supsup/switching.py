"""One network that takes on one task after another: its masked weights are rewritten in one pass when the task changes.

`plain_fill` defines what a switch does. On a GPU it is one kernel, on a CPU one compiled loop where numba is installed.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from supsup.bank import Bank
from supsup.frozen import FrozenNet
from supsup.kernels import available

if available.NUMBA:
    from supsup.kernels import numba_switching
if available.TRITON:
    from supsup.kernels import triton_switching


class SwitchedNet:
    """A frozen network with one mask of a bank on, and its statistics; for the same task again it just runs.

    It runs a copy of the frozen module whose masked weights are views of one buffer, in the order of the bank's
    bits, and whose statistics are views of another; all other tensors are shared. This costs two numbers for each
    weight: the frozen ones in that order, and the masked ones.
    """

    def __init__(self, net: FrozenNet, spans: Mapping[str, tuple[int, int]]) -> None:
        self.net, self._spans = net, dict(spans)
        self._on: tuple[object, int] | None = None  # the version of the bank whose mask is on, and the mask's index
        self.frozen = torch.zeros(8 * max(stop for _, stop in spans.values()), device=net.device)
        self.masked = torch.zeros_like(self.frozen)
        self.statistics = torch.zeros(sum(value.numel() for value in net.statistics.values()), device=net.device)
        views = {}
        for name, (start, _) in spans.items():
            bits = slice(8 * start, 8 * start + net.shapes[name].numel())
            self.frozen[bits] = net.weights[name].flatten()
            views[name] = self.masked[bits].view(net.shapes[name])
        start = 0
        for name, value in net.statistics.items():
            views[name] = self.statistics[start : start + value.numel()].view(value.shape)
            start += value.numel()
        self._module = with_tensors(net.module, views)

    def __deepcopy__(self, memo: dict[int, Any]) -> SwitchedNet:
        """Made anew, since a copy of the module would not be tied to copies of the buffers."""
        return SwitchedNet(copy.deepcopy(self.net, memo), self._spans)

    def run(self, bank: Bank, index: int, x: Tensor) -> Tensor:
        """Outputs [images, s] under one mask."""
        if self._module is None or x.requires_grad:  # a later switch must not reach into a graph of autograd
            return self.net.run(x, self.net.masked(bank.subnetwork(index)))
        if self._on != (bank.version, index):
            self.switch(bank, index)
        out: Tensor = self._module(x)
        return out

    def switch(self, bank: Bank, index: int) -> None:
        """Put a mask on, whatever was there before."""
        self._on = None
        fill(bank.column(index), self.frozen, self.masked)
        self.statistics.copy_(bank.flat_statistics(index))
        self._on = (bank.version, index)


def with_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module | None:
    """A copy of a module with some of its parameters and buffers replaced, wherever they occur, and the rest shared.

    None for a module that defines how it is copied and does not take them.
    """
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    taken: dict[int, object] = {id(tensor): tensor for tensor in (*parameters.values(), *buffers.values())}
    for name, tensor in tensors.items():
        if name in parameters:
            taken[id(parameters[name])] = nn.Parameter(tensor, requires_grad=False)
        else:
            taken[id(buffers[name])] = tensor
    copied = copy.deepcopy(module, taken).eval()
    present = dict(copied.named_parameters()) | dict(copied.named_buffers())
    if any(name not in present or present[name].data_ptr() != tensor.data_ptr() for name, tensor in tensors.items()):
        return None
    return copied


def fill(packed: Tensor, frozen: Tensor, masked: Tensor) -> None:
    """masked [8 × bytes] = frozen where the bit of a mask, given as bytes, is 1, and 0 elsewhere."""
    if frozen.is_cuda and available.TRITON:
        triton_switching.fill(packed, frozen, masked)
    elif available.NUMBA and frozen.device.type == "cpu":
        numba_switching.fill(packed, frozen, masked)
    else:
        plain_fill(packed, frozen, masked)


def plain_fill(packed: Tensor, frozen: Tensor, masked: Tensor) -> None:
    """The same with torch operations alone."""
    shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
    bits = ((packed[:, None] >> shifts) & 1).bool().flatten()
    torch.where(bits, frozen, torch.zeros_like(frozen[:1]), out=masked)
