"""Self-labels: a task learns every image in four rotations, with a label for each rotation of each class.

The network then learns more about the images of its task. Answers are averaged over the four rotations. With n classes,
output r · n + c stands for class c rotated by r quarters, so the first n outputs are the unrotated classes.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from supsup.data.task import BLACK, GREY, Part, Task, pixels_per_channel
from supsup.runtime.errors import SupSupError

ROTATIONS = 4
_rotated_copies: dict[int, Tensor] = {}  # images in all rotations, by the id of the images


def with_rotations(task: Task) -> Task:
    """The task with its training images in every rotation and a label for each; `classes` stays the same."""
    part = _apply_pixel_map(task.train)
    device = part.images.device
    rows = torch.arange(len(part.images), device=device) if part.rows is None else part.rows
    quarters = range(ROTATIONS)
    images = _all_rotations(part.images)
    train = replace(
        part,
        images=images,
        rows=torch.cat([rows + quarter * len(part.images) for quarter in quarters]),
        labels=torch.cat([part.labels + quarter * task.classes for quarter in quarters]),
        rotated_classes=task.classes,
    )
    return replace(task, train=train)


def check_can_rotate(task: Task, outputs: int) -> None:
    """An error unless a task's images can be rotated and the network has an output for every rotation of a class."""
    part, sides = task.train, task.train.shape[-2:]
    reason = ""
    if not part.in_memory:
        reason = "are read from their files while training; give image_folder stream=False"
    elif len(part.shape) not in (2, 3) or part.tokens:
        reason = f"have shape {part.shape}, which is not [channels, height, width]"
    elif sides[0] != sides[1]:
        reason = f"have shape {part.shape}, which is not square"
    elif part.pixels is not None and part.augmentation is not None:
        reason = "are cropped before their pixels are rearranged"
    if reason:
        raise SupSupError(
            f"self_labels rotates images, and those of task {task.name!r} {reason}; leave self_labels out"
        )
    if ROTATIONS * task.classes > outputs:
        raise SupSupError(
            f"task {task.name!r} has {task.classes} classes in {ROTATIONS} rotations, but the network has {outputs} "
            f"outputs; build it with outputs={ROTATIONS * task.classes} or more, or leave self_labels out"
        )


def mean_over_rotations(run: Callable[[Tensor], Tensor], classes: int, images: Tensor) -> Tensor:
    """Outputs [n, s] of a task that was learned in rotations: the mean of the probabilities over the four rotations.

    The outputs of each rotation are reordered so that the first ones stand for the classes. The log-sum-exp of the
    outputs becomes its mean over the rotations.
    """
    views = []
    for quarter in range(ROTATIONS):
        outputs = run(images.rot90(quarter, (-2, -1)))
        own, every = quarter * classes, ROTATIONS * classes
        views.append(torch.cat([outputs[:, own:every], outputs[:, :own], outputs[:, every:]], 1))
    stacked = torch.stack(views)
    return stacked.log_softmax(-1).logsumexp(0) - math.log(ROTATIONS) + stacked.logsumexp(-1, keepdim=True).mean(0)


def _all_rotations(images: Tensor) -> Tensor:
    """Images in one rotation after the other; cached as long as the images exist."""
    key = id(images)
    if key not in _rotated_copies:
        _rotated_copies[key] = torch.cat([images.rot90(quarter, (-2, -1)) for quarter in range(ROTATIONS)])
        weakref.finalize(images, _rotated_copies.pop, key, None)
    return _rotated_copies[key]


def _apply_pixel_map(part: Part) -> Part:
    """The part without a pixel map: its images are rearranged."""
    if part.pixels is None:
        return part
    raw = part.raw(torch.arange(len(part)))
    lines = raw.view(len(raw), -1, pixels_per_channel(part.shape))
    shown = lines.index_select(2, part.pixels.clamp(min=0))
    if bool((part.pixels == GREY).any()):  # the value that normalisation turns into 0
        zero = (-part.offset / part.gain).view(1, -1, 1)
        shown = torch.where(part.pixels == GREY, zero, shown.float())
    shown = shown.masked_fill(part.pixels == BLACK, 0)
    return replace(part, images=shown.view(raw.shape), rows=None, pixels=None)
