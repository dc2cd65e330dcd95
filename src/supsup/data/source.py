"""A whole data set before it becomes a stream of tasks, and `arrays`, which makes one from anything in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from supsup.data.augmentation import Augmentation
from supsup.data.task import Part
from supsup.errors import SupSupError
from supsup.validation import check_fields, flag, given, plain_tensor, text, whole

_PIXELS_IN_A_CHUNK = 4096 * 784  # that are summed together
_DIMENSIONS = (2, 3, 4)
_LAYOUTS = "[n, features], [n, height, width] or [n, channels, height, width]"


@dataclass(frozen=True, eq=False)
class Source:
    """Training and test images with labels 0 … classes − 1.

    Images are [n, features] or [n, channels, height, width], uint8 or float32; labels are int64.
    gain, offset: float32, one number or one per channel: normalised = pixel · gain + offset.
    augmentation: how training images are varied; not at all when None.
    """

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    gain: Tensor
    offset: Tensor
    classes: int
    augmentation: Augmentation | None = None

    def __post_init__(self) -> None:
        check_fields(self, name=text, classes=whole(1))
        for half in ("train", "test"):
            images, labels = (given(getattr(self, f"{half}_{what}"), Tensor, what) for what in ("images", "labels"))
            part = self.train_part(labels) if half == "train" else self.test_part(labels)  # which checks them
            if not len(part) or int(labels.min()) < 0 or int(labels.max()) >= self.classes:
                raise SupSupError(
                    f"the {half} half of source {self.name} has {len(images)} images, and labels that are not all "
                    f"from 0 to {self.classes - 1}; give at least one image and labels within the classes"
                )

    def __repr__(self) -> str:
        counts = f"{len(self.train_images)} + {len(self.test_images)} images"
        return f"Source({self.name}: {counts} of shape {self.shape}, {self.classes} classes)"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one image."""
        return tuple(self.train_images.shape[1:])

    def train_part(self, labels: Tensor, rows: Tensor | None = None, pixels: Tensor | None = None) -> Part:
        """The training half of a task: these rows of the images, with the task's own labels and pixel map."""
        return Part(self.train_images, labels, self.gain, self.offset, rows, pixels, self.augmentation)

    def test_part(self, labels: Tensor, rows: Tensor | None = None, pixels: Tensor | None = None) -> Part:
        """The test half of a task."""
        return Part(self.test_images, labels, self.gain, self.offset, rows, pixels)


def arrays(
    train_x: Any, train_y: Any, test_x: Any, test_y: Any, *, name: str = "arrays", normalise: bool = True
) -> Source:
    """A source from numpy arrays or torch tensors, which are copied.

    Images: [n, features], [n, height, width] or [n, channels, height, width] (channels first; [n, height, width,
    channels] is not recognised: move the last axis yourself). uint8 pixels stay so, all others become float32.
    Labels: whole numbers 0 … classes − 1. With `normalise` the pixels are shifted and scaled by the mean and standard
    deviation of the training images, channel by channel where there are several; without it they stay as they are.
    """
    normalise = flag(normalise, "normalise")
    train_images, test_images = _images(train_x, "train_x"), _images(test_x, "test_x")
    if train_images.shape[1:] != test_images.shape[1:]:
        raise SupSupError(
            f"images of train_x have shape {list(train_images.shape[1:])}, those of test_x "
            f"{list(test_images.shape[1:])}; bring them to one shape"
        )
    train_labels = _labels(train_y, "train_y", len(train_images))
    test_labels = _labels(test_y, "test_y", len(test_images))
    gain, offset = measured_normalisation(train_images) if normalise else (torch.tensor(1.0), torch.tensor(0.0))
    classes = int(max(train_labels.max(), test_labels.max())) + 1
    return Source(name, train_images, train_labels, test_images, test_labels, gain, offset, classes)


def _tensor(values: Any, what: str) -> Tensor:
    """The values as uint8, int64 or float32, on the CPU and in memory of their own."""
    if isinstance(values, Tensor):
        if values.is_complex():
            raise SupSupError(f"{what} holds {values.dtype} values; give whole or real numbers")
        plain = plain_tensor(values, what)
        wide = torch.float32 if plain.is_floating_point() else torch.int64
        kept = torch.uint8 if plain.dtype == torch.uint8 else wide
        return plain.to("cpu", kept, copy=True).contiguous()
    try:
        array = np.asarray(values)
    except Exception as error:  # what is no array makes numpy raise nearly anything
        raise SupSupError(f"{what} is not an array ({error}); give rows of equal length") from error
    if isinstance(values, np.ma.MaskedArray):
        raise SupSupError(f"{what} is a masked array; fill its holes first, with filled(…)")
    if array.dtype.kind not in "biuf":
        raise SupSupError(f"{what} holds {array.dtype} values; give whole or real numbers")
    if array.dtype != np.uint8:
        with np.errstate(over="ignore"):
            array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64, copy=False)
    return torch.from_numpy(np.array(array, order="C"))


def _images(values: Any, what: str) -> Tensor:
    images = _tensor(values, what)
    if images.dim() not in _DIMENSIONS:
        raise SupSupError(f"{what} has shape {list(images.shape)}; give {_LAYOUTS}")
    if images.numel() == 0:
        raise SupSupError(f"{what} is empty (shape {list(images.shape)}); give at least one image")
    if images.dtype != torch.uint8:
        images = images.float()
        bad = (~images.isfinite()).nonzero()
        if len(bad):
            raise SupSupError(
                f"{what} has {len(bad)} values that are NaN or infinite as float32, the first at index "
                f"{bad[0].tolist()}; replace them"
            )
    return images[:, None] if images.dim() == 3 else images


def _labels(values: Any, what: str, count: int) -> Tensor:
    labels = _tensor(values, what)
    if labels.shape != (count,):
        raise SupSupError(f"{what} has shape {list(labels.shape)} for {count} images; give one label for each")
    if labels.is_floating_point():
        raise SupSupError(f"{what} holds real numbers (up to {labels.max().item():g}); give whole numbers 0, 1, 2, …")
    if labels.min() < 0:
        raise SupSupError(f"{what} has labels from {labels.min()} to {labels.max()}; number the classes 0, 1, 2, …")
    return labels.long()


def measured_normalisation(images: Tensor) -> tuple[Tensor, Tensor]:
    """gain and offset that give mean 0 and standard deviation 1; a channel that never varies is only shifted."""
    channels = images.shape[1] if images.dim() == 4 else 1
    count = images.numel() // channels
    pixels = images.view(len(images), channels, -1)
    mean = _sum(pixels, lambda chunk: chunk) / count
    std = (_sum(pixels, lambda chunk: (chunk - mean[:, None]).square()) / count).sqrt()
    varies = std > torch.finfo(torch.float32).eps * mean.abs()
    gain = 1 / torch.where(varies, std, 1.0)
    offset = -mean * gain
    return (gain.float(), offset.float()) if channels > 1 else (gain[0].float(), offset[0].float())


def _sum(pixels: Tensor, term: Callable[[Tensor], Tensor]) -> Tensor:
    """The sum of a term over images and pixels, [n, channels, pixels] → [channels], in float64 but a few at a time."""
    chunks = pixels.split(max(1, _PIXELS_IN_A_CHUNK // pixels[0].numel()))
    return torch.stack([term(chunk.double()).sum((0, 2)) for chunk in chunks]).sum(0)
