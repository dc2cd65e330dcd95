"""What Online EWC and SI share: all weights are trained, but those that earlier tasks need are held back by a spring.

labels  "shared": every task uses the same outputs (GNs). "unshared": each task has outputs of its own and an answer
        picks one among those of all tasks learned (GNu, class-incremental); with the task given, among its own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from supsup.data import Task
from supsup.model import checks
from supsup.model.checks import Array
from supsup.model.prediction import Outputs, Prediction, answer_among
from supsup.runtime.validation import choice, real
from supsup.training import Recipe
from supsup.training.trainee import State
from supsup_paper.rivals import storage
from supsup_paper.rivals.rival import Baseline

Labels = Literal["shared", "unshared"]
OPEN = "open outputs"  # 0 for the outputs in use, −∞ for those of tasks to come


class Consolidation(Baseline):
    """The penalty strength · Σ importance · (w − anchor)² on every weight w."""

    filling = "kaiming_uniform"
    needs_task = False

    def __init__(
        self, net: nn.Module, seed: int = 0, *, strength: float, labels: Labels = "shared", **settings: Any
    ) -> None:
        choice(*get_args(Labels))(labels, "labels")
        strength = real(0)(strength, "strength")
        if settings.get("recipe") is None:
            settings["recipe"] = Recipe("adam", 1e-4)
        super().__init__(net, seed, **settings)
        self.strength, self.labels = strength, labels
        self.weights = [name for name in self.shared if name not in self.statistics]
        self.memory: State = {}
        for name in self.weights:
            self.memory[importance(name)] = torch.zeros_like(self.shared[name])
            self.memory[anchor(name)] = self.shared[name].clone()
        self._outputs: dict[str, range] = {}

    def outputs_of(self, task: Task) -> range:
        """The outputs that belong to a task, learned or the next to be."""
        if task.name in self._outputs:
            return self._outputs[task.name]
        used = sum(len(outputs) for outputs in self._outputs.values()) if self.labels == "unshared" else 0
        return range(used, used + task.classes)

    def label_offset(self, task: Task) -> int:
        return self.outputs_of(task).start

    def begin(self, task: Task) -> State:
        state = self.shared | self.memory
        if self.labels == "unshared":
            closed = torch.full((self.shared[self.head].shape[0],), -torch.inf, device=self.device)
            closed[: self.outputs_of(task).stop] = 0
            state[OPEN] = closed
        return state

    def trains(self, name: str, first: bool) -> bool:
        return name in self.shared and super().trains(name, first)

    def run(self, state: State, x: Tensor, module: nn.Module | None = None) -> Tensor:
        outputs = super().run(state, x, module)
        return outputs + state[OPEN] if OPEN in state else outputs

    def run_side_by_side(self, state: State, x: Tensor) -> Tensor:
        outputs = super().run_side_by_side(state, x)
        return outputs + state[OPEN][:, None] if OPEN in state else outputs

    def penalty(self, state: State) -> Tensor | None:
        springs = [(state[importance(name)] * (state[name] - state[anchor(name)]) ** 2).sum() for name in self.weights]
        return self.strength * torch.stack(springs).sum()

    @torch.no_grad()
    def closed(self, task: Task, state: State) -> State:
        found = self.importances(task, state)
        return state | {importance(name): state[importance(name)] + value for name, value in found.items()}

    def finish(self, task: Task, state: State) -> None:
        self._outputs[task.name] = self.outputs_of(task)
        super().finish(task, state)
        for name in self.weights:
            self.memory[importance(name)] = state[importance(name)]
            self.memory[anchor(name)] = state[name].clone()

    @abstractmethod
    def importances(self, task: Task, state: State) -> State:
        """How much the task just learned needs each weight."""

    @torch.no_grad()
    def predict(
        self, x: Array, task: str | None = None, *, among: Sequence[str] | None = None, outputs: Outputs = "classes"
    ) -> Prediction:
        """A label for every image and, where labels are unshared, the task whose output is the largest.

        among    where the task is not given: only the outputs of these may answer (of all tasks by default)
        outputs  "all": where labels are shared, also those that stand for no class may answer, as the paper grades
        """
        among = checks.among_tasks(among)
        with self.lock.reading():
            name = self.answering(task, among)
            if self.labels == "shared":
                return super().predict(x, task, among=among, outputs=outputs)
            images = self.checked_images(x)
            asked = [name] if task is not None else self.tasks if among is None else list(dict.fromkeys(among))
            columns = [output for each in asked for output in self._outputs[each]]
            answers = self.outputs_with(images, self.shared)[:, columns]
            classes = {each: len(self._outputs[each]) for each in asked}
            return answer_among(answers, classes, self.info_of(asked))

    @property
    def bytes(self) -> int:
        return 3 * storage.weight_bytes(self.shared, self.statistics) + storage.statistics_bytes(self.net)


def importance(name: str) -> str:
    """Where a weight's importance is in a state."""
    return f"importance/{name}"


def anchor(name: str) -> str:
    """Where a weight's value after the last task is in a state."""
    return f"anchor/{name}"
