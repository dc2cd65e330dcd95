"""A training step run again and again; on a GPU dozens of steps are one launch of a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable

import torch

_AT_ONCE = 50  # steps in one launch at most
_WARM_UP = 2  # steps that make the optimiser's state and compile kernels before anything is captured


def whole_launches(steps: int) -> int:
    """The largest number of steps in one launch that makes whole launches of all of them."""
    return max(count for count in range(1, _AT_ONCE + 1) if steps % count == 0)


class Loop:
    """Repeats `step`, which must read and write the same tensors each time and never wait for the host.

    On a GPU the steps are captured when the loop is made: whatever the tensors held then is spoilt.
    """

    def __init__(self, step: Callable[[], None], steps: int, device: torch.device) -> None:
        self.steps = steps
        self._launch, self._at_once = step, 1
        if device.type == "cuda":
            self._at_once = whole_launches(steps)
            self._launch = captured(step, self._at_once)

    def run(self, steps: int | None = None) -> None:
        """All steps, or the given number (a whole number of launches)."""
        for _ in range((self.steps if steps is None else steps) // self._at_once):
            self._launch()


def captured(step: Callable[[], None], times: int) -> Callable[[], None]:
    """So many steps as one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            step()
    return graph.replay


def capturable(optimiser: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimiser with its count of steps and its learning rate on the device, where a graph can read them."""
    for group in optimiser.param_groups:
        device = group["params"][0].device
        if device.type == "cuda":
            group["capturable"] = True
            if "fused" in group and not isinstance(optimiser, torch.optim.RMSprop):
                group["fused"] = True
            group["lr"] = torch.tensor(group["lr"], device=device)
    return optimiser


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Another learning rate from the next step on."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def restart(optimiser: torch.optim.Optimizer) -> None:
    """Forget all moments and counts, in place."""
    for state in optimiser.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                value.zero_()
