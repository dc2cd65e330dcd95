"""What an executor is given and what it gives back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from supsup.data import Task
from supsup.data.rotations import with_rotations
from supsup.masks.frozen import FrozenNet
from supsup.masks.scores import initial_scores, kept_scores
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
    return task if recipe.self_labels is None else with_rotations(task)


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


# MERGED MODULE DOC: Which jobs are trained together: neighbours that are alike, as many as the device has memory for.
Item = TypeVar("Item")

_FILLED = 0.7  # the share of the free memory that may be filled


def free_memory(device: torch.device) -> int:
    """Bytes on a GPU that torch could still take."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def fitting(bytes_each: int, memory: int, most: int) -> int:
    """How many of a size fit into memory: at least 1, at most `most`."""
    return max(1, min(most, int(_FILLED * memory) // max(1, bytes_each)))


def groups(
    items: Sequence[Item],
    alike: Callable[[Item, Item], bool],
    bytes_each: Callable[[Item], int],
    memory: int,
    most: int,
) -> list[list[Item]]:
    """Items in order, in groups of about equal size; all of a group are like its first and fit into memory together."""
    return groups_of(items, alike, lambda first: fitting(bytes_each(first), memory, most))


def groups_of(
    items: Sequence[Item], alike: Callable[[Item, Item], bool], most: Callable[[Item], int]
) -> list[list[Item]]:
    """The same where it is known how many go at most with such a first item."""
    runs: list[list[Item]] = []
    for item in items:
        if runs and alike(runs[-1][0], item):
            runs[-1].append(item)
        else:
            runs.append([item])
    out = []
    for run in runs:
        count = math.ceil(len(run) / most(run[0]))
        size = math.ceil(len(run) / count)
        out += [run[start : start + size] for start in range(0, len(run), size)]
    return out
