"""A training step run again and again; on a GPU dozens of steps are one launch of a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from supsup.kernels.graphs import repeated
from supsup.training.recipe import Recipe

_WARM_UP = 2  # steps that make the optimiser's state and compile kernels before anything is captured


def whole_launches(steps: int, most: int) -> int:
    """The largest number of steps in one launch, up to a limit, that makes whole launches of all of them."""
    return max(count for count in range(1, most + 1) if steps % count == 0)


class Loop:
    """Repeats `step`, which must read and write the same tensors each time and never wait for the host.

    On a GPU up to `at_once` steps are captured when the loop is made: whatever the tensors held then is spoilt.
    """

    def __init__(self, step: Callable[[], None], steps: int, device: torch.device, at_once: int = 50) -> None:
        self.steps = self.launches = steps
        self.launch = step
        if device.type == "cuda":
            at_once = whole_launches(steps, at_once)
            self.launches = steps // at_once
            self.launch = repeated(step, at_once, min(steps, _WARM_UP))

    def run(self) -> None:
        """All steps."""
        for _ in range(self.launches):
            self.launch()


class Pace:
    """An optimiser that can start anew, and whose learning rate follows a recipe from step to step, on the device."""

    def __init__(self, recipe: Recipe, trained: Sequence[Tensor], steps: int) -> None:
        self.optimiser = recipe.build(trained)
        self._rates = torch.tensor([recipe.rate(step, steps) for step in range(steps)], device=trained[0].device)
        self._count = torch.zeros(1, dtype=torch.int64, device=trained[0].device)
        for group in self.optimiser.param_groups:
            group["lr"] = torch.tensor(recipe.learning_rate, device=trained[0].device)
            if trained[0].is_cuda:
                group["capturable"] = True
                group["fused"] = recipe.optimiser != "rmsprop"  # there is no fused one

    def step(self) -> None:
        """One step of the optimiser."""
        for group in self.optimiser.param_groups:
            group["lr"].copy_(self._rates.index_select(0, self._count)[0])
        self.optimiser.step()
        self._count += 1

    def restart(self) -> None:
        """Forget all moments and counts, in place."""
        self._count.zero_()
        for state in self.optimiser.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    value.zero_()
