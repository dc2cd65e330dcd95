"""One task of a stream and its two halves: shared images, and what turns them into this task's own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from supsup.data.augmentation import Augmentation
from supsup.data.inputs import Inputs, channels_last
from supsup.data.labels import Names, check_names
from supsup.runtime.devices import on_device, resolve
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import check_fields, given, text, whole

Device = str | torch.device
GREY, BLACK = -1, -2  # in a map of pixels: what is shown where no pixel of the image is
_PIXELS = (torch.uint8, torch.float32, torch.int64)


def pixels_per_channel(shape: tuple[int, ...]) -> int:
    """height · width of an image [channels, height, width], or the number of features of [features]."""
    return math.prod(shape[-2:])


@dataclass(frozen=True, eq=False)
class Part:
    """Images and labels of one half (train or test) of a task, made as tensors when asked for.

    images: [n, features] or [n, channels, height, width], uint8 or float32; shared by every task of a stream. int64 are
        tokens: whole numbers that reach the network as they are.
    labels: int64, the task's own labels 0 … classes − 1, one for each image kept.
    gain, offset: float32, one number or one for each channel (feature): normalised = pixel · gain + offset.
    rows: int64, which of the images are kept; all when None.
    pixels: int64, output pixel p of each channel shows input pixel pixels[p]; where that is BLACK, a pixel of 0 before
        normalisation, where it is GREY, 0 after it.
    augmentation: how `training_batches` varies the images, before their pixels are rearranged; not at all when None.
    turned_classes: how many classes there are where each rotation of one has a label (`data/rotations.py`); else 0.
    """

    images: Tensor
    labels: Tensor
    gain: Tensor = field(default_factory=lambda: torch.tensor(1.0))
    offset: Tensor = field(default_factory=lambda: torch.tensor(0.0))
    rows: Tensor | None = None
    pixels: Tensor | None = None
    augmentation: Augmentation | None = None
    rotated_classes: int = 0

    def __post_init__(self) -> None:
        self._check_kinds()
        kept = len(self.images) if self.rows is None else len(self.rows)
        if len(self.labels) != kept:
            raise SupSupError(f"{len(self.labels)} labels for {kept} images; give one label for each image kept")
        count = pixels_per_channel(self.shape)
        if self.pixels is not None and len(self.pixels) != count:
            raise SupSupError(f"the pixel map has {len(self.pixels)} entries; give one for each of the {count} pixels")
        if self.augmentation is not None and len(self.shape) != 3:
            raise SupSupError(f"images of shape {self.shape} cannot be cropped; give [n, channels, height, width]")

    def _check_kinds(self) -> None:
        """Kinds and shapes of tensors; their values are looked at when they are learned from."""
        given(self.images, Tensor, "Part.images")
        given(self.labels, Tensor, "Part.labels")
        if self.images.dtype not in _PIXELS or self.images.ndim < 2:
            raise SupSupError(
                f"images of a part must be uint8, float32 or int64, [n, features] or [n, channels, height, width]; "
                f"got {self.images.dtype} {list(self.images.shape)}"
            )
        for name in ("labels", "rows", "pixels"):
            tensor = getattr(self, name)
            if tensor is None and name != "labels":
                continue
            if given(tensor, Tensor, f"Part.{name}").dtype != torch.int64 or tensor.ndim != 1:
                raise SupSupError(
                    f"{name} of a part must be int64, one dimension; got {tensor.dtype} {list(tensor.shape)}"
                )
        self._check_within("rows", 0, len(self.images))
        self._check_within("pixels", BLACK, pixels_per_channel(self.shape))
        for name in ("gain", "offset"):
            tensor = given(getattr(self, name), Tensor, f"Part.{name}")
            if tensor.dtype != torch.float32 or tensor.numel() not in (1, self.shape[0]):
                raise SupSupError(
                    f"{name} of a part must be float32, one number or one for each channel; "
                    f"got {tensor.dtype} {list(tensor.shape)}"
                )
            if tensor.numel() > 1 and len(self.shape) < 3 and self.pixels is not None:
                raise SupSupError(
                    f"{name} of a part has a number for each feature, and its features are rearranged; normalise them "
                    "before: data.arrays does"
                )
        if self.augmentation is not None:
            given(self.augmentation, Augmentation, "Part.augmentation")

    def _check_within(self, name: str, least: int, below: int) -> None:
        """Kernels read memory at these indices; those on a GPU come from a part on the CPU, which was checked."""
        indices: Tensor | None = getattr(self, name)
        if indices is None or not indices.numel() or indices.device.type != "cpu":
            return
        low, high = indices.aminmax()
        if int(low) < least or int(high) >= below:
            raise SupSupError(f"{name} of a part must be from {least} to {below - 1}; got {int(low)} to {int(high)}")

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Part({len(self)} images of shape {self.shape})"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one image."""
        return tuple(self.images.shape[1:])

    @property
    def in_memory(self) -> bool:
        """Whether `images` holds the pixels; if not, only batches do."""
        return True

    def on(self, device: Device) -> Part:
        """The same part with its tensors on the device; parts that share images share the copy too."""
        target = torch.empty(0, device=resolve(device)).device  # "cuda" as tensors report it: "cuda:0"
        if self.images.device == target:
            return self
        return replace(
            self,
            images=on_device(self.images, target),
            labels=on_device(self.labels, target),
            gain=on_device(self.gain, target),
            offset=on_device(self.offset, target),
            rows=None if self.rows is None else on_device(self.rows, target),
            pixels=None if self.pixels is None else on_device(self.pixels, target),
        )

    @property
    def tokens(self) -> bool:
        """Whether the images are whole numbers for an embedding."""
        return self.images.dtype == torch.int64

    def raw(self, positions: Tensor) -> Tensor:
        """Images at these positions before normalisation, on the part's own device."""
        check_positions(positions)
        positions = positions.to(self.images.device)
        return self.images.index_select(0, positions if self.rows is None else self.rows.index_select(0, positions))

    def batch(self, positions: Tensor, device: Device | None = None) -> tuple[Tensor, Tensor]:
        """float32 images and int64 labels at these positions (0 … len − 1), on the part's own device if none is given.

        In a loop over batches call `on(device)` once, before it.
        """
        if device is not None:
            return self.on(device).batch(positions)
        check_positions(positions)
        try:
            return self._made(positions.to(self.images.device))
        except IndexError as error:
            raise SupSupError(f"there is no image at one of these positions of {self}: {error}") from error

    def training_batches(self, positions: Iterable[Tensor], seed: int, task: str) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches at these positions, step by step, with the augmentation drawn for each; see `batch`."""
        device = self.images.device
        for step, chosen in enumerate(positions):
            draws = None
            if self.augmentation is not None:
                draws = self.augmentation.draws(seed, task, step, len(chosen), device)
            images, labels = self._made(chosen.to(device), draws)
            yield images, labels if draws is None else self.labels_mirrored(labels, draws[:, 2])

    def labels_mirrored(self, labels: Tensor, mirrored: Tensor) -> Tensor:
        """Labels where images are mirrored (1) or not (0): a quarter to the left is one to the right in a mirror."""
        if not self.rotated_classes:
            return labels
        quarter = labels // self.rotated_classes
        odd = (quarter % 2 == 1) & (mirrored == 1)
        return torch.where(odd, labels + (4 - 2 * quarter) * self.rotated_classes, labels)

    def tensors(self, device: Device | None = None) -> tuple[Tensor, Tensor]:
        """All images and labels, in order."""
        return self.batch(torch.arange(len(self)), device)

    def batches(self, size: int, device: Device | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """All images and labels, in order, `size` at a time; the last batch may be shorter."""
        size = whole(1)(size, "size")
        part = self if device is None else self.on(device)
        starts = range(0, len(self), size)
        return (part.batch(torch.arange(start, min(start + size, len(self)))) for start in starts)

    def _made(self, positions: Tensor, draws: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Images and labels at positions on the part's device, augmented as drawn."""
        rows = positions if self.rows is None else self.rows.index_select(0, positions)
        images = self.images.index_select(0, rows)
        labels = self.labels.index_select(0, positions)
        if self.tokens:
            return images, labels
        images = images.float()
        if self.augmentation is not None and draws is not None:
            images = self.augmentation.apply(images, draws)
        pixels = images.view(-1, pixels_per_channel(self.shape))
        source, lit, visible = self._map
        if source is not None:
            pixels = pixels.index_select(1, source)
        if lit is not None:
            pixels.mul_(lit)
        shaped = pixels.view(rows.shape[0], *self.shape)
        gain, offset = self._scale
        shaped.mul_(gain).add_(offset)
        if visible is not None:
            pixels.mul_(visible)
        return shaped, labels

    @cached_property
    def _scale(self) -> tuple[Tensor, Tensor]:
        """Gain and offset along the first dimension of an image, on the device of the images."""
        ones = [1] * (len(self.shape) - 1)
        gain, offset = (on_device(number, self.images.device).view(-1, *ones) for number in (self.gain, self.offset))
        return gain, offset

    @cached_property
    def _map(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Which input pixel each output pixel shows, and masks that are 0 where it is black and where it is grey.

        The first is None where pixels stay as they are, the others where no pixel is so.
        """
        if self.pixels is None:
            return None, None, None
        shown = [self.pixels != kind for kind in (BLACK, GREY)]
        lit, visible = (None if bool(mask.all()) else mask.float() for mask in shown)
        return self.pixels.clamp(min=0), lit, visible


@dataclass(frozen=True, eq=False)
class Task:
    """One classification problem with a name, the labels 0 … classes − 1, and images to learn and to test on.

    names   of the classes, in order, as the user calls them; None: their numbers
    inputs  what a model does with raw inputs of this task before its network sees them, as `train` and `test` do; None:
            a model is given what the network sees
    """

    name: str
    train: Part
    test: Part
    classes: int
    names: Names | None = None
    inputs: Inputs | None = None

    def __post_init__(self) -> None:
        check_fields(self, name=text, classes=whole(1))
        given(self.train, Part, "Task.train")
        given(self.test, Part, "Task.test")
        if self.inputs is not None:
            given(self.inputs, Inputs, "Task.inputs")
        if self.names is not None:
            object.__setattr__(self, "names", check_names(self.names, "Task.names"))
            if len(self.names) != self.classes:
                raise SupSupError(f"Task.names has {len(self.names)} names for {self.classes} classes; give one each")

    @property
    def normalisation(self) -> Inputs | None:
        """How pixels (bytes) become the network's inputs, for a task without `inputs`; None where images are not bytes."""
        part = self.train
        if self.inputs is not None or part.images.dtype != torch.uint8:
            return None
        gain, offset = torch.broadcast_tensors(part.gain.cpu().flatten(), part.offset.cpu().flatten())
        return Inputs(gain, offset) if len(gain) > 1 else Inputs(gain[0], offset[0])

    def raw_test(self, positions: Tensor) -> Tensor:
        """Test images at these positions as they were handed in."""
        images = self.test.raw(positions)
        return channels_last(images) if self.inputs is not None and self.inputs.channels_last else images


def check_positions(positions: Tensor) -> None:
    """An error unless these can be positions of images in a part."""
    if given(positions, Tensor, "positions").dtype not in (torch.int64, torch.int32) or positions.ndim != 1:
        raise SupSupError(f"positions must be whole numbers [n]; got {positions.dtype} {list(positions.shape)}")
