"""Upper and Lower Bound: ordinary training of all weights, task after task, with everything kept or nothing.

Upper Bound keeps a network for each task (its trunk begins where the last task left it); Lower Bound keeps one trunk,
which forgets, and a head for each task, or one head for all.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from torch import nn

from supsup.data import Task
from supsup.runtime.validation import choice
from supsup.training.plain import State
from supsup_paper.baselines import storage
from supsup_paper.baselines.baseline import Baseline
from supsup_paper.baselines.initial import Filling

Heads = Literal["multi", "single"]
_HEAD: Filling = "kaiming_uniform"  # of each task's own head, as in the released scripts


class LowerBound(Baseline):
    """One trunk trained on and on.

    heads  "multi": a head per task, so that an answer needs the task; "single": one head, which knows no tasks
    """

    broadcasts = True

    def __init__(self, net: nn.Module, seed: int = 0, *, heads: Heads = "multi", **settings: Any) -> None:
        choice(*get_args(Heads))(heads, "heads")
        self.head_filling = _HEAD if heads == "multi" else None
        super().__init__(net, seed, **settings)
        self.heads = heads
        self.needs_task = heads == "multi"

    def finish(self, task: Task, state: State) -> None:
        """A head of the task's own is put aside, and the next one begins where the first did."""
        own = {self.head: state[self.head]} if self.heads == "multi" else {}
        self.shared = {name: state[name] for name in self.shared} | {name: self.shared[name] for name in own}
        self.own[task.name] = own

    @property
    def bytes(self) -> int:
        heads = len(self.own) if self.heads == "multi" else 1
        return (
            storage.weight_bytes(self.shared, self.statistics | {self.head})
            + heads * storage.weight_bytes(self.shared, keep={self.head})
            + storage.statistics_bytes(self.net)
        )


class UpperBound(Baseline):
    """A whole network for each task."""

    head_filling = _HEAD
    broadcasts = True

    def finish(self, task: Task, state: State) -> None:
        self.own[task.name] = dict(state)
        self.shared = {name: value if name != self.head else self.shared[name] for name, value in state.items()}

    def lower_bound(self) -> LowerBound:
        """What is left if only the newest trunk is kept beside the heads: a Lower Bound of the same training."""
        lower = LowerBound(
            self.net, self.seed, recipe=self.recipe, first=self.first, filling=self.filling, device=self.device
        )
        lower.shared = dict(self.shared)
        lower.own = {task: {self.head: state[self.head]} for task, state in self.own.items()}
        lower.learned = dict(self.learned)
        return lower

    @property
    def bytes(self) -> int:
        network = storage.weight_bytes(self.shared, self.statistics) + len(self.own) * storage.statistics_bytes(
            self.net
        )
        return len(self.own) * network
