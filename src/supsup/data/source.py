"""A data set from which streams of tasks are made, and `arrays`, which builds one from data in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from supsup.data.augmentation import Augmentation
from supsup.data.inputs import Inputs, channels_first, has_channels_last, is_table, measure_normalisation
from supsup.data.labels import Names, check_names, encode_parts
from supsup.data.task import Part
from supsup.data.user_data import input_tensor
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import check_fields, flag, given, text, whole

_DIMENSIONS = (2, 3, 4)
_LAYOUTS = "[n, features], [n, height, width], [n, channels, height, width] or [n, height, width, channels]"


@dataclass(frozen=True, eq=False)
class Source:
    """Training and test images with labels 0 … classes − 1.

    Images are [n, features] or [n, channels, height, width], uint8 or float32; labels are int64.
    gain, offset: float32, one number or one per channel: normalised = pixel · gain + offset.
    augmentation: how training images are varied; not at all when None.
    names: class names as the user has them; None: the class numbers.
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
    names: Names | None = None

    def __post_init__(self) -> None:
        check_fields(self, name=text, classes=whole(1))
        if self.names is not None and len(check_names(self.names, "Source.names")) != self.classes:
            raise SupSupError(f"Source.names has {len(self.names)} names for {self.classes} classes; give one each")
        for half in ("train", "test"):
            images, labels = (given(getattr(self, f"{half}_{what}"), Tensor, what) for what in ("images", "labels"))
            if images.dtype == torch.int64:
                raise SupSupError(f"images of source {self.name} must be uint8 or float32; tokens go into data.task")
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
    train_x: Any,
    train_y: Any,
    test_x: Any,
    test_y: Any,
    *,
    name: str = "arrays",
    normalise: bool = True,
    layout: str | None = None,
) -> Source:
    """A source from arrays of any library, frames or lists, which are copied.

    Images: [n, features], [n, height, width], [n, channels, height, width] or [n, height, width, channels]. `layout` is
    "NCHW" or "NHWC", where the shape is ambiguous. uint8 stays uint8, all other types become float32.
    Labels: whole numbers or names of any kind. `normalise`: by the mean and standard deviation of the training images,
    for each channel, or for each feature of a table.
    """
    normalise = flag(normalise, "normalise")
    train_images, test_images = _images(train_x, "train_x", layout), _images(test_x, "test_x", layout)
    if train_images.shape[1:] != test_images.shape[1:]:
        raise SupSupError(
            f"images of train_x have shape {list(train_images.shape[1:])}, those of test_x "
            f"{list(test_images.shape[1:])}; bring them to one shape"
        )
    (train_labels, test_labels), classes, names = encode_parts([train_y, test_y], ["train_y", "test_y"])
    for images, labels, what in ((train_images, train_labels, "train_y"), (test_images, test_labels, "test_y")):
        if len(labels) != len(images):
            raise SupSupError(f"{what} has {len(labels)} labels for {len(images)} images; give one label for each")
    inputs = Inputs(*measure_normalisation(train_images)) if normalise else Inputs()
    if inputs.gain.numel() > 1 and is_table(train_images):  # so that features can be rearranged
        train_images, test_images, inputs = inputs.preprocess(train_images), inputs.preprocess(test_images), Inputs()
    return Source(
        name, train_images, train_labels, test_images, test_labels, inputs.gain, inputs.offset, classes, names=names
    )


def _images(values: Any, what: str, layout: str | None) -> Tensor:
    try:
        images = input_tensor(values)
    except SupSupError as error:
        raise SupSupError(f"{what}: {error}") from error
    if images.dim() not in _DIMENSIONS:
        raise SupSupError(f"{what} has shape {list(images.shape)}; give {_LAYOUTS}")
    images = images.clone() if images.dtype == torch.uint8 else images.to(torch.float32, copy=True)
    images = channels_first(images) if has_channels_last(images, layout) else images.contiguous()
    return images[:, None] if images.dim() == 3 else images
