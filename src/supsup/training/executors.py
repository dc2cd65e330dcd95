"""Which executor trains a mask, and what all executors share: jobs, results, and groups that fit into memory.

The first executor that takes a job trains it. An executor takes only what it can train exactly as `plain` would, up to
rounding: `plain` defines what is right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from supsup.data import Part, Task
from supsup.data.rotations import with_rotations
from supsup.kernels import available
from supsup.masks.frozen import FrozenNet
from supsup.masks.scores import initial_scores, kept_scores
from supsup.runtime.errors import SupSupError
from supsup.runtime.progress import Advance

if TYPE_CHECKING:
    from supsup.training.recipe import Recipe

Item = TypeVar("Item")
_FILLED = 0.7  # the share of the free memory that may be filled


class Job(NamedTuple):
    """A mask to train.

    scores       where its scores start; None: where the recipe says, from the seed and the task's name
    keep_scores  whether the final scores are needed
    """

    task: Task
    recipe: Recipe
    scores: Mapping[str, Tensor] | None = None
    keep_scores: bool = False

    @property
    def steps(self) -> int:
        """The number of batches."""
        return self.recipe.steps_for(len(self.task.train))

    def first_scores(self, net: FrozenNet) -> Mapping[str, Tensor]:
        """Where its scores start on a network."""
        return first_scores(net, self.task.name, self.recipe) if self.scores is None else self.scores


class Trained(NamedTuple):
    """Tasks that were trained together.

    packed      their masks as bytes [bytes, tasks]
    statistics  [tasks, …] by name
    scores      final scores [tasks, …] by weight; None unless a job keeps them
    recipes     the recipe chosen for each task; None: they were trained by the model's own
    splits      for each task the images that it was trained on, and those held back (None: there are none)
    rotated     whether the tasks were learned in four rotations, so that answers are averaged over them
    """

    tasks: Sequence[Task]
    packed: Tensor
    statistics: dict[str, Tensor]
    scores: dict[str, Tensor] | None = None
    recipes: Sequence[Recipe] | None = None
    splits: Sequence[tuple[Part, Part | None]] | None = None
    rotated: bool = False

    def split(self, size: int = 1) -> Iterator[Trained]:
        """The same tasks, `size` at a time."""
        for start in range(0, len(self.tasks), size):
            some = slice(start, start + size)
            yield self._replace(
                tasks=self.tasks[some],
                packed=self.packed[:, some],
                statistics={name: value[some] for name, value in self.statistics.items()},
                scores=None if self.scores is None else {name: value[some] for name, value in self.scores.items()},
                recipes=None if self.recipes is None else self.recipes[some],
                splits=None if self.splits is None else self.splits[some],
            )


class CannotTrain(RuntimeError):
    """An executor finds out, when it begins, that it cannot train these jobs; the next one in the list does."""


class Executor(Protocol):
    """One way to train masks."""

    name: str

    def takes(self, net: FrozenNet, jobs: Sequence[Job], precision: torch.dtype | None) -> bool:
        """Whether it may train all these jobs on the network's device; runs nothing and changes nothing."""

    def tasks_at_once(self, net: FrozenNet, job: Job, precision: torch.dtype | None) -> int:
        """How many jobs like this one fill the device: more would only wait for each other."""

    def train(
        self, net: FrozenNet, jobs: Sequence[Job], precision: torch.dtype | None, advance: Advance
    ) -> Generator[Trained, None, None]:
        """Yield tasks as they are finished, in the order of the jobs; or raise `CannotTrain`.

        advance  is called with the number of tasks finished since the last call, fractions included
        """


@cache
def executors() -> tuple[Executor, ...]:
    """All executors, the fastest first. They are imported here because they import this module."""
    from supsup.training.fast.batched import BatchedOnCPU, BatchedOnGPU
    from supsup.training.fast.captured import Captured
    from supsup.training.fast.side_by_side import SideBySide
    from supsup.training.plain import Plain

    others = (BatchedOnGPU(), BatchedOnCPU(), SideBySide(), Captured(), Plain())
    if not available.TRITON:
        return others
    from supsup.training.fast.residual import ResidualOnGPU

    return (ResidualOnGPU(), *others)


def executors_for(
    net: FrozenNet, jobs: Sequence[Job], precision: torch.dtype | None = None
) -> Generator[Executor, None, None]:
    """The executors that take all these jobs, the fastest first; an error after the last one."""
    yield from (executor for executor in executors() if executor.takes(net, jobs, precision))
    raise SupSupError(
        f"precision={precision} is not known for this network, recipe and data on {net.device.type}; leave it out, or "
        "use torch.float32"
    )


def train_masks(
    net: FrozenNet, jobs: Sequence[Job], precision: torch.dtype | None = None, advance: Advance = lambda _: None
) -> Generator[Trained, None, None]:
    """Tasks as they are finished, with their masks. A mask depends on its own job and the seed, not on the others.

    precision  of the matrix products: by default bfloat16 on a GPU and float32 on a CPU
    """
    for executor in executors_for(net, jobs, precision):
        try:
            with closing(executor.train(net, jobs, precision, advance)) as finished:
                for trained in finished:
                    jobs = jobs[len(trained.tasks) :]
                    yield trained
            return
        except CannotTrain:
            continue


def prepare_task(task: Task, recipe: Recipe) -> Task:
    """A task as executors train it: cropped as far as the recipe says, and with self-labels in all rotations."""
    varied = task.train.augmentation
    if varied is not None and recipe.crops is not None:
        task = replace(task, train=replace(task.train, augmentation=varied.within(recipe.crops)))
    return task if recipe.self_labels is None else with_rotations(task)


def first_scores(net: FrozenNet, task: str, recipe: Recipe) -> dict[str, Tensor]:
    """Where a task's scores start if nothing was learned before: every weight kept, or at random."""
    if recipe.keeps_all_of(net.pretrained):
        return {name: kept_scores(shape, net.device, recipe.score_bound) for name, shape in net.shapes.items()}
    return initial_scores(net.seed, task, net.shapes, net.device, recipe.score_bound)


def free_memory(device: torch.device) -> int:
    """Bytes on a GPU that torch could still take."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def count_fitting(bytes_each: int, memory: int, most: int) -> int:
    """How many items of a size fit into memory: at least 1, at most `most`."""
    return max(1, min(most, int(_FILLED * memory) // max(1, bytes_each)))


def grouped(
    items: Sequence[Item], alike: Callable[[Item, Item], bool], most: Callable[[Item], int]
) -> list[list[Item]]:
    """Items in order, in groups of about equal size; all of a group are like its first, and at most `most` of it."""
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
