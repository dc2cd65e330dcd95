"""Separate Heads: one trunk, trained on the first task or left random, and a linear head trained for each task."""

from __future__ import annotations

from typing import Any, Literal, get_args

from torch import nn

from supsup.data import Task
from supsup.runtime.validation import choice
from supsup.training.plain import State
from supsup_paper.baselines import storage
from supsup_paper.baselines.baseline import Baseline

Trunk = Literal["trained", "random"]


class SeparateHeads(Baseline):
    """The trunk never changes after the first task, so nothing is forgotten.

    trunk  "trained": on the first task, then frozen; "random": never trained, so that it need not be stored
    """

    filling = "kaiming_uniform"
    independent = True
    broadcasts = True

    def __init__(self, net: nn.Module, seed: int = 0, *, trunk: Trunk = "trained", **settings: Any) -> None:
        choice(*get_args(Trunk))(trunk, "trunk")
        super().__init__(net, seed, **settings)
        self.trunk = trunk
        self.first_matters = trunk == "trained"

    def begin(self, task: Task) -> State:
        return self.shared | self.fresh_statistics()

    def trains(self, name: str, first: bool) -> bool:
        return name == self.head or (super().trains(name, first) and first and self.trunk == "trained")

    def finish(self, task: Task, state: State) -> None:
        own = {self.head, *self.statistics}
        self.shared = {name: value if name in own else state[name] for name, value in self.shared.items()}
        self.own[task.name] = {name: state[name] for name in own}

    @property
    def bytes(self) -> int:
        trunk = storage.weight_bytes(self.shared, self.statistics | {self.head}) if self.trunk == "trained" else 0
        head = storage.weight_bytes(self.shared, keep={self.head})
        return trunk + len(self.own) * (head + storage.statistics_bytes(self.net))
