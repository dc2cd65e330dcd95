"""What an executor is given and what it gives back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from supsup.data import Task
from supsup.data.self_labels import turned
from supsup.frozen import FrozenNet
from supsup.scores import initial_scores, kept_scores
from supsup.training.recipe import Recipe


class Job(NamedTuple):
    """A mask to train: a task, how, and where its scores start (None: as the recipe says, from seed and name).

    keep_scores  whether somebody will ask for the scores as they end
    """

    task: Task
    recipe: Recipe
    scores: Mapping[str, Tensor] | None = None
    keep_scores: bool = False

    @property
    def steps(self) -> int:
        """How many batches it takes."""
        return self.recipe.steps_for(len(self.task.train))

    def first_scores(self, net: FrozenNet) -> Mapping[str, Tensor]:
        """Where its scores start on a network."""
        return first_scores(net, self.task.name, self.recipe) if self.scores is None else self.scores


def as_learned(task: Task, recipe: Recipe) -> Task:
    """A task as executors see it: cropped as far as the recipe says, and with self-labels in all rotations."""
    varied = task.train.augmentation
    if varied is not None and recipe.crops is not None:
        task = replace(task, train=replace(task.train, augmentation=varied.within(recipe.crops)))
    return task if recipe.self_labels is None else turned(task)


def first_scores(net: FrozenNet, task: str, recipe: Recipe) -> dict[str, Tensor]:
    """Where a task's scores start if nothing was learned before: every weight kept, or at random."""
    if recipe.keeps_all_of(net.pretrained):
        return {name: kept_scores(shape, net.device, recipe.score_bound) for name, shape in net.shapes.items()}
    return initial_scores(net.seed, task, net.shapes, net.device, recipe.score_bound)


class Trained(NamedTuple):
    """Tasks that were trained together, their masks as bytes [bytes, tasks], and their statistics [tasks, …] by name.

    scores  as they ended, [tasks, …] by weight; None where nobody will ask for them
    """

    tasks: list[Task]
    packed: Tensor
    statistics: dict[str, Tensor]
    scores: dict[str, Tensor] | None = None

    def split(self, size: int = 1) -> Iterator[Trained]:
        """So many tasks at a time."""
        for start in range(0, len(self.tasks), size):
            some = slice(start, start + size)
            statistics = {name: value[some] for name, value in self.statistics.items()}
            scores = None if self.scores is None else {name: value[some] for name, value in self.scores.items()}
            yield Trained(self.tasks[some], self.packed[:, some], statistics, scores)


def same_but_for_budget(one: Recipe, other: Recipe) -> bool:
    """Whether two recipes differ in nothing but how many weights a mask keeps."""
    return one.selection == other.selection and replace(one, budget=other.budget, density=other.density) == other
