"""Reproducible random crops and flips of training images.

They depend only on the seed, the task's name, the step and the image's index in the batch. So every executor, on any
device and with any number of workers, trains on the same pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import pad

from supsup.masks import philox
from supsup.runtime.validation import CheckedFields, whole

_MOST_PADDING = 10_000  # pixels around an image
_ATTEMPTS = 10  # boxes tried for an image before the central one is used, as in torchvision


def augment_label(task: str, step: int) -> str:
    """The random stream for one batch of one task."""
    return f"augment/{task}/{step}"


@dataclass(frozen=True)
class Augmentation(CheckedFields):
    """Crop images at random from a frame of `padding` black pixels around them, and mirror half of them.

    Black is 0 before normalisation, as in torchvision.
    """

    padding: Annotated[int, whole(0, _MOST_PADDING)] = 0
    flip: bool = False

    def within(self, share: float) -> Augmentation:
        """The same augmentation with a share of the padding, rounded up to pixels."""
        return replace(self, padding=math.ceil(share * self.padding))

    def draws(self, seed: int, task: str, step: int, count: int, device: torch.device | str = "cpu") -> Tensor:
        """int64 [count, 3]: row shift and column shift (0 … 2 · padding), and 1 where the image is mirrored."""
        return self.draws_many(seed, [task], [step], count, device)[0, 0]

    def draws_many(
        self, seed: int, tasks: Sequence[str], steps: Sequence[int], count: int, device: torch.device | str = "cpu"
    ) -> Tensor:
        """`draws` of many tasks and steps at once: int64 [tasks, steps, count, 3], 24 bytes for each image."""
        labels = [augment_label(task, step) for task in tasks for step in steps]
        words = philox.words(seed, labels, 3 * count, device).view(len(tasks), len(steps), count, 3)
        shifts = (words[..., :2] * (2 * self.padding + 1)) >> 32
        flips = words[..., 2:] >> 31 if self.flip else torch.zeros_like(words[..., 2:])
        return torch.cat([shifts, flips], -1)

    def apply(self, images: Tensor, draws: Tensor) -> Tensor:
        """Images [n, channels, height, width] before normalisation, cropped and mirrored as drawn [n, 3]."""
        count, channels, height, width = images.shape
        device = images.device
        row, column, flip = draws.to(device)[:, :, None].unbind(1)
        across = torch.arange(width, device=device)
        rows = row + torch.arange(height, device=device)
        columns = column + torch.where(flip == 1, width - 1 - across, across)
        image = torch.arange(count, device=device)[:, None, None, None]
        channel = torch.arange(channels, device=device)[:, None, None]
        return pad(images, [self.padding] * 4)[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


@dataclass(frozen=True)
class ResizedCrop:
    """Cut a box of random area and shape out of a large image, to be resized; mirror half of them.

    area:   the smallest and largest share of the image.
    aspect: the narrowest and widest box, as width / height.
    """

    area: tuple[float, float] = (0.08, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True

    def boxes(self, seed: int, task: str, step: int, sizes: Tensor) -> Tensor:
        """int64 [n, 5]: left, top, width, height, and 1 where mirrored, for images of sizes [n, 2] (width, height)."""
        count = len(sizes)
        words = philox.words(seed, [augment_label(task, step)], count * (4 * _ATTEMPTS + 1))[0].view(count, -1)
        chances = words[:, 1:].view(count, _ATTEMPTS, 4).double() / 2**32
        width, height = sizes.double()[:, None, :].unbind(-1)
        area = width * height * (self.area[0] + (self.area[1] - self.area[0]) * chances[..., 0])
        narrow, wide = (math.log(number) for number in self.aspect)
        aspect = (narrow + (wide - narrow) * chances[..., 1]).exp()
        tried = torch.stack([(area * aspect).sqrt().round(), (area / aspect).sqrt().round()], -1)
        fits = ((tried >= 1) & (tried <= sizes[:, None])).all(-1)
        first, any_fits = fits.int().argmax(1), fits.any(1)[:, None]
        every = torch.arange(count)
        narrowed = torch.minimum(width[:, 0], (height[:, 0] * self.aspect[1]).round())
        lowered = torch.minimum(height[:, 0], (width[:, 0] / self.aspect[0]).round())
        central = torch.stack([narrowed, lowered], 1).clamp(min=1)  # the largest of an allowed shape
        box = torch.where(any_fits, tried[every, first], central)
        spare = sizes - box
        corner = (chances[every, first, 2:] * (spare + 1)).floor()
        corner = torch.where(any_fits, corner, (spare / 2).floor())
        flips = words[:, :1] >> 31 if self.flip else torch.zeros_like(words[:, :1])
        return torch.cat([corner.long(), box.long(), flips], 1)
