"""Parameter superposition (Cheung et al., 2019): one set of weights, always trained, seen through a turn per task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import torch
from torch import Tensor, nn

from supsup.data import Task
from supsup.runtime.validation import choice
from supsup.training.trainee import State
from supsup_paper.rivals import storage
from supsup_paper.rivals.contexts import Kind, context, folded, turn
from supsup_paper.rivals.rival import Baseline

_KEPT = {"cuda": 8 << 30, "cpu": 1 << 28}  # bytes of contexts held ready; the others are made again from the seed


class PSP(Baseline):
    """Each layer's inputs are turned by the task's context before they meet the weights.

    contexts  "rotation" (the paper's), "complex" or "binary"; all come from the seed, so none is stored
    """

    filling = "xavier_normal"

    def __init__(self, net: nn.Module, seed: int = 0, *, contexts: Kind = "rotation", **settings: Any) -> None:
        choice(*get_args(Kind))(contexts, "contexts")
        super().__init__(net, seed, **settings)
        self.contexts: Kind = contexts
        self._ready: dict[str, State] = {}

    def begin(self, task: Task) -> State:
        return self.shared | self.context_of(task.name)

    def trains(self, name: str, first: bool) -> bool:
        return name in self.shared and super().trains(name, first)

    def state_of(self, task: str | None) -> State:
        return self.shared | (self.context_of(task) if task is not None else {})

    def effective(self, state: Mapping[str, Tensor]) -> State:
        """W turned back, which gives for plain inputs what W gives for turned ones."""
        weights = super().effective(state)
        return weights | {name: folded(self.contexts, state[_key(name)], weights[name]) for name in self.layers}

    def run_side_by_side(self, state: State, x: Tensor) -> Tensor:
        for name in self.layers:
            x = turn(self.contexts, state[_key(name)], x) @ state[name].mT
            x = x if name == self.head else x.relu_()
        return x

    @torch.no_grad()
    def context_of(self, task: str) -> State:
        """The turn of each layer's inputs for a task, learned or not."""
        ready = self._ready.get(task)
        if ready is None:
            ready = {
                _key(name): context(
                    self.contexts, self.seed, f"context/{task}/{name}", self.shared[name].shape[1], self.device
                )
                for name in self.layers
            }
            size = storage.weight_bytes(ready)
            if (len(self._ready) + 1) * size > _KEPT[self.device.type]:
                self._ready.clear()
            self._ready[task] = ready
        return ready

    @property
    def bytes(self) -> int:
        return storage.weight_bytes(self.shared, self.statistics) + storage.statistics_bytes(self.net)


def _key(name: str) -> str:
    return f"context/{name}"
