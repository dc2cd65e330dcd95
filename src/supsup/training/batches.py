"""Which images a batch holds (shuffled epochs, end to end, cut into full batches), and how they reach a device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from supsup.data import Part, Task
from supsup.data.task import BLACK, GREY
from supsup.masks import philox

_POSITIONS = 1 << 26  # drawn at once
_CROPS = 1 << 22  # drawn at once


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

    def next(self, batch_size: int) -> tuple[Tensor, Tensor]:
        """The next batch of the only task, as on the plain path. It never waits for the host, so it can be captured."""
        rows, labels = (table.view(-1, batch_size).index_select(0, self.step)[0] for table in (self.rows, self.labels))
        images = self.part.images.index_select(0, rows)
        if self.part.tokens:
            self.step += 1
            return images, labels.long()
        images = images.float()
        if self.part.augmentation is not None and self.crops is not None:
            crops = self.crops.view(-1, batch_size).index_select(0, self.step)[0].long()
            drawn = torch.stack([crops & 255, (crops >> 8) & 255, crops >> 16], 1)
            images = self.part.augmentation.apply(images, drawn)
        self.step += 1
        if self.maps is None:
            gain, offset = self._broadcast
            return images * gain + offset, labels.long()
        source = self.maps[0]
        pixels = images.flatten(1).index_select(1, source.clamp(min=0)) * (source != BLACK)
        return ((pixels * self.gain + self.offset) * (source != GREY)).view(images.shape), labels.long()

    @cached_property
    def gain(self) -> Tensor:
        """For each feature of an image."""
        return _by_feature(self.part, self.part.gain)

    @cached_property
    def offset(self) -> Tensor:
        """For each feature of an image."""
        return _by_feature(self.part, self.part.offset)

    @cached_property
    def channel_gain(self) -> Tensor:
        """For each channel of an image."""
        return self.part.gain.float().expand(self.part.shape[0]).contiguous()

    @cached_property
    def channel_offset(self) -> Tensor:
        """For each channel of an image."""
        return self.part.offset.float().expand(self.part.shape[0]).contiguous()

    @cached_property
    def _broadcast(self) -> tuple[Tensor, Tensor]:
        """Gain and offset in a shape that broadcasts over images."""
        ones = [1] * (len(self.part.shape) - 1)
        return self.part.gain.float().view(-1, *ones), self.part.offset.float().view(-1, *ones)


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


def _by_feature(part: Part, values: Tensor) -> Tensor:
    """Expand one number, or one per channel, to one per feature of an image."""
    return values.float().view(-1, 1).expand(-1, math.prod(part.shape) // values.numel()).flatten().contiguous()
