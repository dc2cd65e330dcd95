"""A data set (`Source`), and streams: sequences of tasks from one, by permuted pixels, rotated images or split classes.

Tasks are created on demand and share the source's images, so a stream of thousands takes no memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any, Literal, get_args, overload

import torch
from torch import Tensor

from supsup.data.augmentation import Augmentation
from supsup.data.inputs import Inputs, channels_first, has_channels_last, is_table, measure_normalisation
from supsup.data.task import BLACK, GREY, Names, Part, Task, check_names, pixels_per_channel
from supsup.data.user_data import encode_parts, input_tensor
from supsup.masks import philox
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import CheckedFields, choice, flag, given, real, text, whole

Corners = Literal["black", "grey"]
Half = Literal["train", "test"]
_LAYOUTS = "[n, features], [n, height, width], [n, channels, height, width] or [n, height, width, channels]"
_ORDERS_IN_A_CHUNK = 64
_count = whole(0, 10**9)  # of tasks


@dataclass(frozen=True, eq=False)
class Source(CheckedFields):
    """Training and test images with labels 0 … classes − 1.

    Images are [n, features] or [n, channels, height, width], uint8 or float32; labels are int64.
    gain, offset: float32, one number or one per channel: normalised = pixel · gain + offset.
    augmentation: how training images are varied; not at all when None.
    names: class names as the user has them; None: the class numbers.
    """

    name: Annotated[str, text]
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    gain: Tensor
    offset: Tensor
    classes: Annotated[int, whole(1)]
    augmentation: Augmentation | None = None
    names: Names | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.names is not None and len(check_names(self.names, "Source.names")) != self.classes:
            raise SupSupError(f"Source.names has {len(self.names)} names for {self.classes} classes; give one each")
        for half in get_args(Half):
            images, labels = (given(getattr(self, f"{half}_{what}"), Tensor, what) for what in ("images", "labels"))
            if images.dtype == torch.int64:
                raise SupSupError(f"images of source {self.name} must be uint8 or float32; tokens go into data.task")
            if not len(self.part(half, labels)) or int(labels.min()) < 0 or int(labels.max()) >= self.classes:
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

    def part(self, half: Half, labels: Tensor, rows: Tensor | None = None, pixels: Tensor | None = None) -> Part:
        """One half of a task: these rows of the images, with the task's own labels and pixel map."""
        train = half == "train"
        images, augmentation = (self.train_images, self.augmentation) if train else (self.test_images, None)
        return Part(images, labels, self.gain, self.offset, rows, pixels, augmentation)


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
    if images.dim() not in (2, 3, 4):
        raise SupSupError(f"{what} has shape {list(images.shape)}; give {_LAYOUTS}")
    images = images.clone() if images.dtype == torch.uint8 else images.to(torch.float32, copy=True)
    images = channels_first(images) if has_channels_last(images, layout) else images.contiguous()
    return images[:, None] if images.dim() == 3 else images


@dataclass(frozen=True, eq=False)
class Stream(Sequence[Task]):
    """A sequence of tasks, each created by `make(i)` on demand; a slice is also a stream."""

    name: str
    make: Callable[[int], Task] = field(repr=False)
    indices: range

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Stream: ...
    def __getitem__(self, index: int | slice) -> Task | Stream:
        if isinstance(index, slice):
            return Stream(self.name, self.make, self.indices[index])
        if not -len(self) <= index < len(self):
            raise IndexError(f"stream {self.name} has {len(self)} tasks; there is no task {index}")
        return self.make(self.indices[index])


def permuted(source: Source, tasks: int, seed: int = 0) -> Stream:
    """Tasks permutation-0, permutation-1, …: a fixed random order of the pixels in each, the same for every channel."""
    count = pixels_per_channel(given(source, Source, "source").shape)
    seed = whole()(seed, "seed")

    @lru_cache(maxsize=2)
    def orders(chunk: int) -> Tensor:
        """Many at once, since tasks are mostly used one after the other."""
        first = chunk * _ORDERS_IN_A_CHUNK
        labels = [f"permutation/{index}" for index in range(first, first + _ORDERS_IN_A_CHUNK)]
        return philox.permutations(seed, labels, count)

    def make(index: int) -> Task:
        chunk, number = divmod(index, _ORDERS_IN_A_CHUNK)
        return _remapped(source, f"permutation-{index}", orders(chunk)[number])

    return Stream(f"permuted-{source.name}", make, range(_count(tasks, "tasks")))


def rotated(source: Source, tasks: int = 36, step: float = 10.0, corners: Corners = "black") -> Stream:
    """Tasks rotation-0, rotation-10, …: images rotated anticlockwise, by `step` degrees more in each task.

    Each pixel takes its nearest neighbour. Pixels from outside the image are black, as in the released scripts, which
    rotate before normalisation. "grey" corners are 0 after normalisation and reveal the angle.
    """
    outside = BLACK if choice(*get_args(Corners))(corners, "corners") == "black" else GREY
    if len(given(source, Source, "source").shape) != 3:
        raise SupSupError(
            f"source {source.name} has {source.shape[0]} features and no height and width to rotate; "
            f"give images [n, height, width] or [n, channels, height, width]"
        )
    if not real()(step, "step"):
        raise SupSupError(f"step is {step}; give the degrees from one task to the next, not 0")
    height, width = source.shape[1:]

    def make(index: int) -> Task:
        angle = Decimal(str(float(step))) * index
        name = f"rotation-{angle.normalize() + 0:f}"
        pixels = rotation_map(height, width, float(angle % 360))
        return _remapped(source, name, pixels.masked_fill(pixels < 0, outside))

    return Stream(f"rotated-{source.name}", make, range(_count(tasks, "tasks")))


def split(source: Source, classes_per_task: int, seed: int | None = None, tasks: int | None = None) -> Stream:
    """Tasks of a few classes each, renumbered 0, 1, …: classes-0-1, classes-2-3, … or, with a seed, a random partition.

    `tasks` limits their number.
    """
    given(source, Source, "source")
    size = whole()(classes_per_task, "classes_per_task")
    divisors = [number for number in range(1, source.classes + 1) if source.classes % number == 0]
    if size not in divisors:
        raise SupSupError(
            f"the {source.classes} classes of {source.name} do not divide into tasks of {size}; "
            f"use classes_per_task = {' or '.join(map(str, divisors))}"
        )
    count = source.classes // size
    if tasks is not None and whole()(tasks, "tasks") > count:
        raise SupSupError(f"{tasks} tasks were asked for, but {source.classes} classes by {size} make only {count}")
    order = torch.arange(source.classes)
    if seed is not None:
        order = philox.permutations(whole()(seed, "seed"), ["split"], source.classes)[0]
    groups = order.view(count, size).sort(dim=1).values

    def make(index: int) -> Task:
        group = groups[index]
        name = "classes-" + "-".join(map(str, group.tolist()))
        train = _of_classes(source, "train", source.train_labels, group)
        test = _of_classes(source, "test", source.test_labels, group)
        names = None if source.names is None else tuple(source.names[number] for number in group.tolist())
        return Task(name, train, test, size, names)

    return Stream(f"split-{source.name}", make, range(count if tasks is None else _count(tasks, "tasks")))


def _remapped(source: Source, name: str, pixels: Tensor) -> Task:
    train = source.part("train", source.train_labels, pixels=pixels)
    test = source.part("test", source.test_labels, pixels=pixels)
    return Task(name, train, test, source.classes, source.names)


def _of_classes(source: Source, half: Half, labels: Tensor, group: Tensor) -> Part:
    """The images whose label is in the sorted group, labelled by their index in it."""
    rows = torch.isin(labels, group).nonzero()[:, 0]
    return source.part(half, torch.searchsorted(group, labels[rows]), rows)


def rotation_map(height: int, width: int, degrees: float) -> Tensor:
    """The source pixel of each pixel of an image rotated anticlockwise, or −1 outside; int64 [height · width].

    So a rotated task costs no more than a permuted one.
    """
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    middle_row, middle_column = (height - 1) / 2, (width - 1) / 2
    y = torch.arange(height, dtype=torch.float64)[:, None] - middle_row
    x = torch.arange(width, dtype=torch.float64) - middle_column
    row = _nearest(x * sine + y * cosine + middle_row)
    column = _nearest(x * cosine - y * sine + middle_column)
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    return torch.where(inside, row * width + column, -1).flatten()


def _nearest(coordinate: Tensor) -> Tensor:
    """The nearest whole number; the 1e-9 breaks ties the same way on machines whose sines differ in the last bit."""
    return torch.floor(coordinate + (0.5 + 1e-9)).long()
