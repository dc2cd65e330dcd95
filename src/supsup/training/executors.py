"""Which executor trains a mask, and what all executors share: jobs, results, batches, groups that fit into memory.

The first executor that takes a job trains it. An executor takes only what it can train exactly as `plain` would, up to
rounding: `plain` defines what is right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from supsup.data import Part, Task
from supsup.data.rotations import with_rotations
from supsup.data.task import BLACK, GREY
from supsup.masks import philox
from supsup.masks.bank import pack_columns
from supsup.masks.frozen import FrozenNet
from supsup.masks.scores import initial_scores, kept_scores
from supsup.runtime.errors import SupSupError
from supsup.runtime.progress import Advance

if TYPE_CHECKING:
    from supsup.training.recipe import Recipe

Item = TypeVar("Item")
_FILLED = 0.7  # the share of the free memory that may be filled
_POSITIONS = 1 << 26  # drawn at once
_CROPS = 1 << 22  # drawn at once

# Modules of other packages; the `EXECUTORS` of each come before those for any module. A package may be missing.
PLUG_INS = ["supsup_paper.residual"]


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

    def without_masks(self, places: Sequence[int], net: FrozenNet) -> Trained:
        """The same, but the tasks at these places keep every weight, with the network's own statistics."""
        every = {name: torch.ones(1, *shape, dtype=torch.bool, device=net.device) for name, shape in net.shapes.items()}
        packed = self.packed.clone()
        packed[:, places] = pack_columns(every)
        statistics = {name: value.clone() for name, value in self.statistics.items()}
        for name, value in statistics.items():
            value[places] = net.statistics[name]
        return self._replace(packed=packed, statistics=statistics)


class CannotTrain(RuntimeError):
    """An executor finds out, when it begins, that it cannot train these jobs; the next one in the list does."""


class Executor(Protocol):
    """One way to train masks."""

    name: str

    def takes(self, net: FrozenNet, jobs: Sequence[Job], precision: torch.dtype | None) -> bool:
        """Whether it may train all these jobs on the network's device; runs nothing and changes nothing."""

    def tasks_at_once(self, net: FrozenNet, job: Job, precision: torch.dtype | None) -> int:
        """How many jobs like this one fill the device: more would only wait for each other. 1 if that is not known."""
        return 1

    def train(
        self, net: FrozenNet, jobs: Sequence[Job], precision: torch.dtype | None, advance: Advance
    ) -> Generator[Trained, None, None]:
        """Yield tasks as they are finished, in the order of the jobs; or raise `CannotTrain`.

        advance  is called with the number of tasks finished since the last call, fractions included
        """


def executors() -> tuple[Executor, ...]:
    """All executors, the fastest first. They are imported here because they import this module."""
    from supsup.training.fast.batched import BatchedOnCPU, BatchedOnGPU
    from supsup.training.fast.captured import Captured
    from supsup.training.fast.side_by_side import SideBySide
    from supsup.training.plain import Plain

    installed = [name for name in PLUG_INS if find_spec(name.partition(".")[0]) is not None]
    plug_ins = [executor for name in installed for executor in import_module(name).EXECUTORS]
    return BatchedOnCPU(), BatchedOnGPU(), *plug_ins, SideBySide(), Captured(), Plain()


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


def same_images(one: Part, other: Part) -> bool:
    """Whether parts share images and show them in the same way, but for their pixels."""
    shared = one.images is other.images and one.augmentation == other.augmentation
    return shared and all(a is b or torch.equal(a, b) for a, b in ((one.gain, other.gain), (one.offset, other.offset)))


def alike(one: Job, other: Job) -> bool:
    """Whether two jobs have the same images and length, so that one feed serves both."""
    return same_images(one.task.train, other.task.train) and len(one.task.train) == len(other.task.train)


def _epoch_label(task: str, epoch: int) -> str:
    """The random stream that shuffles one epoch of one task."""
    return f"order/{task}/{epoch}"


def batch_positions(seed: int, task: str, images: int, batch_size: int, steps: int) -> Iterator[Tensor]:
    """Positions [batch_size] of the images of each step: a function of the seed, the task's name and its size alone."""
    waiting = torch.empty(0, dtype=torch.int64)
    epoch = 0
    for _ in range(steps):
        while len(waiting) < batch_size:
            waiting = torch.cat([waiting, philox.permutations(seed, [_epoch_label(task, epoch)], images)[0]])
            epoch += 1
        yield waiting[:batch_size]
        waiting = waiting[batch_size:]


def many_positions(seed: int, names: Sequence[str], size: int, drawn: int, device: torch.device) -> Tensor:
    """The first `drawn` positions of each task's epochs laid end to end: [tasks, drawn]."""
    epochs = [
        philox.permutations(seed, [_epoch_label(name, epoch) for name in names], size, device)
        for epoch in range(math.ceil(drawn / size))
    ]
    return torch.cat(epochs, 1)[:, :drawn]


def can_feed(part: Part) -> bool:
    """Whether a feed can hold a part's images and its crops, eight bits for each coordinate."""
    padding = 0 if part.augmentation is None else part.augmentation.padding
    return part.in_memory and 2 * padding < 256


@dataclass
class Feed:
    """The batches of t tasks, drawn beforehand, on one device; a step takes b images of each task.

    part    whose images, normalisation and augmentation all tasks share
    rows    [t, steps · b] int32: which images
    labels  [t, steps · b] int32
    crops   [t, steps · b] int32: line + 256 · column + 65536 · mirrored; None where images are not augmented
    maps    [t, features] int32: the pixel at each feature of an image, GREY or BLACK for none; None where all stay
    step    [1] int32: the number of the next step
    """

    part: Part
    rows: Tensor
    labels: Tensor
    crops: Tensor | None
    maps: Tensor | None
    step: Tensor

    @classmethod
    def empty(cls, part: Part, tasks: int, drawn: int, *, mapped: bool) -> Feed:
        """A feed from a part's images, on their device, with a buffer for `drawn` images of each task."""
        device = part.images.device

        def buffer(width: int) -> Tensor:
            return torch.zeros(tasks, width, dtype=torch.int32, device=device)

        return cls(
            part,
            rows=buffer(drawn),
            labels=buffer(drawn),
            crops=None if part.augmentation is None else buffer(drawn),
            maps=buffer(math.prod(part.shape)) if mapped else None,
            step=torch.zeros(1, dtype=torch.int32, device=device),
        )

    @classmethod
    def of(cls, net: FrozenNet, jobs: Sequence[Job], *, mapped: bool) -> Feed:
        """All batches of jobs that are `alike`, on the network's device."""
        batch_size = jobs[0].recipe.batch_size
        feed = cls.empty(jobs[0].task.train.on(net.device), len(jobs), jobs[0].steps * batch_size, mapped=mapped)
        feed.fill([job.task for job in jobs], net.seed, batch_size)
        return feed

    def fill(
        self, tasks: Sequence[Task], seed: int, batch_size: int, indices: Sequence[int] | None = None, offset: int = 0
    ) -> None:
        """Draw all batches of tasks, in the order of `batch_positions`.

        indices  of the tasks in this feed (the first ones by default)
        offset   is added to their labels
        """
        indices = range(len(tasks)) if indices is None else indices
        drawn = self.rows.shape[1]
        alike: dict[tuple[int, int], list[int]] = {}  # tasks with the same rows and labels
        for i, task in enumerate(tasks):
            alike.setdefault((id(task.train.rows), id(task.train.labels)), []).append(i)
        for members in alike.values():
            part = tasks[members[0]].train.on(self.rows.device)
            at_once = max(1, _POSITIONS // max(len(part), drawn))
            for start in range(0, len(members), at_once):
                chosen = members[start : start + at_once]
                names = [tasks[i].name for i in chosen]
                positions = many_positions(seed, names, len(part), drawn, self.rows.device)
                here = [indices[i] for i in chosen]
                self.rows[here] = (positions if part.rows is None else part.rows[positions]).int()
                self.labels[here] = part.labels[positions].int() + offset
        if self.maps is not None:
            self.maps[list(indices)] = torch.stack([feature_map(task.train) for task in tasks]).to(self.maps.device)
        if self.crops is not None:
            self._draw_crops([task.name for task in tasks], seed, batch_size, list(indices))
            for index, task in zip(indices, tasks):
                self.labels[index] = task.train.labels_mirrored(self.labels[index], self.crops[index] >> 16)
        self.step.zero_()

    def _draw_crops(self, names: Sequence[str], seed: int, batch_size: int, indices: list[int]) -> None:
        augmentation = self.part.augmentation
        assert augmentation is not None
        assert self.crops is not None
        steps = self.crops.shape[1] // batch_size
        at_once = max(1, _CROPS // (batch_size * len(names)))
        for start in range(0, steps, at_once):
            numbers = range(start, min(start + at_once, steps))
            drawn = augmentation.draws_many(seed, names, numbers, batch_size, self.crops.device)
            line, column, mirrored = drawn.unbind(-1)
            span = slice(start * batch_size, numbers.stop * batch_size)
            self.crops[indices, span] = (line + (column << 8) + (mirrored << 16)).flatten(1).int()

    def batch(self, task: int, batch_size: int) -> tuple[Tensor, Tensor]:
        """A task's batch of the present step, as on the plain path; the host never waits, so this can be captured."""

        def taken(table: Tensor) -> Tensor:
            return table[task].view(-1, batch_size).index_select(0, self.step)[0]

        images, labels = self.part.images.index_select(0, taken(self.rows)), taken(self.labels).long()
        if self.part.tokens:
            return images, labels
        images = images.float()
        if self.part.augmentation is not None and self.crops is not None:
            crops = taken(self.crops).long()
            drawn = torch.stack([crops & 255, (crops >> 8) & 255, crops >> 16], 1)
            images = self.part.augmentation.apply(images, drawn)
        pixels, (gain, offset) = images.flatten(1), self.by_feature
        if self.maps is None:
            return (pixels * gain + offset).view(images.shape), labels
        source = self.maps[task]
        pixels = pixels.index_select(1, source.clamp(min=0)) * (source != BLACK)
        return ((pixels * gain + offset) * (source != GREY)).view(images.shape), labels

    @cached_property
    def by_feature(self) -> tuple[Tensor, Tensor]:
        """Gain and offset for each feature of an image."""
        count = math.prod(self.part.shape)
        gain, offset = (
            values.float().view(-1, 1).expand(-1, count // values.numel()).flatten().contiguous()
            for values in (self.part.gain, self.part.offset)
        )
        return gain, offset


def feature_map(part: Part) -> Tensor:
    """The source pixel of each feature of a flattened image, GREY or BLACK for none: [features] int32."""
    features = math.prod(part.shape)
    if part.pixels is None:
        return torch.arange(features, dtype=torch.int32, device=part.images.device)
    pixels = part.pixels.int()
    if len(pixels) == features:
        return pixels
    shift = torch.arange(0, features, len(pixels), dtype=torch.int32, device=pixels.device)[:, None]
    return torch.where(pixels < 0, pixels, pixels + shift).flatten()
