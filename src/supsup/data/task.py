"""A task: its name and classes, and the training and test images with all that turns them into network inputs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from supsup.data.augmentation import Augmentation
from supsup.data.inputs import Inputs
from supsup.runtime.devices import on_device, resolve
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import CheckedFields, given, listed, quoted, text, whole

Device = str | torch.device
GREY, BLACK = -1, -2  # entries of a pixel map for output pixels outside the image
Label = str | int | bool | tuple[Any, ...]  # tuples hold labels
Names = tuple[Label, ...]
PlainValues = Mapping[str, str | int | float | None]
_LONGEST = 1000  # characters of a name
_DEEPEST = 4  # nested tuples
_LARGEST = 1 << 62  # number
LABEL_KINDS = "text, whole numbers, True and False, or tuples of them"
_IMAGE_TYPES = (torch.uint8, torch.float32, torch.int64)


def pixels_per_channel(shape: tuple[int, ...]) -> int:
    """height · width of an image [channels, height, width], or the number of features of [features]."""
    return math.prod(shape[-2:])


@dataclass(frozen=True, eq=False)
class Part:
    """Images and labels of one half (train or test) of a task; batches of network inputs are computed on demand.

    images: [n, features] or [n, channels, height, width], uint8 or float32; shared by every task of a stream. int64 are
        tokens: whole numbers that reach the network unchanged.
    labels: int64, the task's class numbers 0 … classes − 1, one for each image kept.
    gain, offset: float32, one number or one for each channel (feature): normalised = pixel · gain + offset.
    rows: int64, which of the images are kept; all when None.
    pixels: int64, output pixel p of each channel is input pixel pixels[p]; BLACK is 0 before normalisation, GREY 0
        after it.
    augmentation: how `training_batches` varies the images, before their pixels are rearranged; not at all when None.
    rotated_classes: the number of classes, where each rotation of a class has a label (`data/rotations.py`); else 0.
    """

    images: Tensor
    labels: Tensor
    gain: Tensor = field(default_factory=lambda: torch.tensor(1.0))
    offset: Tensor = field(default_factory=lambda: torch.tensor(0.0))
    rows: Tensor | None = None
    pixels: Tensor | None = None
    augmentation: Augmentation | None = None
    rotated_classes: int = 0
    _on_device: ClassVar[tuple[str, ...]] = ("images", "labels", "gain", "offset", "rows", "pixels")

    def __post_init__(self) -> None:
        """Types, shapes and indices; pixel values are checked when they are learned."""
        if given(self.images, Tensor, "Part.images").dtype not in _IMAGE_TYPES or self.images.ndim < 2:
            raise SupSupError(
                f"images of a part must be uint8, float32 or int64, [n, features] or [n, channels, height, width]; "
                f"got {self.images.dtype} {list(self.images.shape)}"
            )
        count = pixels_per_channel(self.shape)
        allowed = {"labels": None, "rows": range(len(self.images)), "pixels": range(BLACK, count)}
        for name, within in allowed.items():  # kernels read memory at `rows` and `pixels`
            indices = getattr(self, name)
            if indices is None and within is not None:
                continue
            if given(indices, Tensor, f"Part.{name}").dtype != torch.int64 or indices.ndim != 1:
                raise SupSupError(
                    f"{name} of a part must be int64, one dimension; got {indices.dtype} {list(indices.shape)}"
                )
            if within is None or not indices.numel() or indices.device.type != "cpu":  # parts on a GPU are copies
                continue
            low, high = map(int, indices.aminmax())
            if low not in within or high not in within:
                raise SupSupError(
                    f"{name} of a part must be from {within.start} to {within.stop - 1}; got {low} to {high}"
                )
        kept = len(self.images) if self.rows is None else len(self.rows)
        if len(self.labels) != kept:
            raise SupSupError(f"{len(self.labels)} labels for {kept} images; give one label for each image kept")
        if self.pixels is not None and len(self.pixels) != count:
            raise SupSupError(f"the pixel map has {len(self.pixels)} entries; give one for each of the {count} pixels")
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
            if len(self.shape) != 3:
                raise SupSupError(f"images of shape {self.shape} cannot be cropped; give [n, channels, height, width]")

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
        return not self.images.is_meta

    @property
    def tokens(self) -> bool:
        """Whether the images are whole numbers for an embedding."""
        return self.images.dtype == torch.int64

    def on(self, device: Device) -> Self:
        """The same part with its tensors on the device; parts that share images share the copy."""
        target = torch.empty(0, device=resolve(device)).device  # "cuda" as tensors report it: "cuda:0"
        tensors = {name: each for name in self._on_device if (each := getattr(self, name)) is not None}
        if all(each.device == target for each in tensors.values()):
            return self
        moved: dict[str, Any] = {name: on_device(each, target) for name, each in tensors.items()}
        return replace(self, **moved)

    def raw(self, positions: Tensor) -> Tensor:
        """Images at these positions before normalisation, on the part's device."""
        _check_positions(positions)
        return self.images.index_select(0, self._rows_at(positions.to(self.images.device)))

    def batch(self, positions: Tensor, device: Device | None = None) -> tuple[Tensor, Tensor]:
        """float32 images and int64 labels at these positions (0 … len − 1), by default on the part's device.

        In a loop over batches call `on(device)` once, before it.
        """
        if device is not None:
            return self.on(device).batch(positions)
        _check_positions(positions)
        try:
            return self._compute(positions)
        except IndexError as error:
            raise SupSupError(f"there is no image at one of these positions of {self}: {error}") from error

    def tensors(self, device: Device | None = None) -> tuple[Tensor, Tensor]:
        """All images and labels, in order."""
        return self.batch(torch.arange(len(self)), device)

    def batches(self, size: int, device: Device | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """All images and labels, in order, `size` at a time; the last batch may be shorter."""
        size = whole(1)(size, "size")
        part = self if device is None else self.on(device)
        starts = range(0, len(self), size)
        return part._compute_all((torch.arange(start, min(start + size, len(self))), None) for start in starts)

    def training_batches(self, positions: Iterable[Tensor], seed: int, task: str) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches at these positions, step by step, with the augmentation drawn for each; see `batch`."""
        return self._compute_all(
            (chosen, self._draws(chosen, seed, task, step)) for step, chosen in enumerate(positions)
        )

    def labels_mirrored(self, labels: Tensor, mirrored: Tensor) -> Tensor:
        """Labels of mirrored (1) or unchanged (0) images: a mirror turns a left quarter turn into a right one."""
        if not self.rotated_classes:
            return labels
        quarter = labels // self.rotated_classes
        odd = (quarter % 2 == 1) & (mirrored == 1)
        return torch.where(odd, labels + (4 - 2 * quarter) * self.rotated_classes, labels)

    def _rows_at(self, positions: Tensor) -> Tensor:
        return positions if self.rows is None else self.rows.index_select(0, positions)

    def _draws(self, positions: Tensor, seed: int, task: str, step: int) -> Tensor | None:
        if self.augmentation is None:
            return None
        return self.augmentation.draws(seed, task, step, len(positions), self.images.device)

    def _compute_all(self, wanted: Iterable[tuple[Tensor, Tensor | None]]) -> Iterator[tuple[Tensor, Tensor]]:
        return (self._compute(positions, draws) for positions, draws in wanted)

    def _compute(self, positions: Tensor, draws: Tensor | None = None) -> tuple[Tensor, Tensor]:
        positions = positions.to(self.images.device)
        images = self.images.index_select(0, self._rows_at(positions))
        labels = self.labels.index_select(0, positions)
        if self.tokens:
            return images, labels
        images = images.float()
        if self.augmentation is not None and draws is not None:
            images = self.augmentation.apply(images, draws)
            labels = self.labels_mirrored(labels, draws[:, 2])
        pixels = images.view(-1, pixels_per_channel(self.shape))
        source, not_black, not_grey = self._pixel_map
        if source is not None:
            pixels = pixels.index_select(1, source)
        if not_black is not None:
            pixels.mul_(not_black)
        shaped = pixels.view(images.shape)
        gain, offset = self._scale
        shaped.mul_(gain).add_(offset)
        if not_grey is not None:
            pixels.mul_(not_grey)
        return shaped, labels

    @cached_property
    def _scale(self) -> tuple[Tensor, Tensor]:
        """Gain and offset along the first dimension of an image, on the part's device."""
        ones = [1] * (len(self.shape) - 1)
        gain, offset = (on_device(number, self.labels.device).view(-1, *ones) for number in (self.gain, self.offset))
        return gain, offset

    @cached_property
    def _pixel_map(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The input pixel of each output pixel, and masks that are 0 at BLACK and at GREY pixels; None: not needed."""
        if self.pixels is None:
            return None, None, None
        masks = [self.pixels != kind for kind in (BLACK, GREY)]
        not_black, not_grey = (None if bool(mask.all()) else mask.float() for mask in masks)
        return self.pixels.clamp(min=0), not_black, not_grey


@dataclass(frozen=True, eq=False)
class Task(CheckedFields):
    """One classification problem with a name, the classes 0 … classes − 1, and images to train and test on.

    names   class names as the user has them; None: the class numbers
    inputs  how a model turns raw inputs of this task into network inputs; None: it is given normalised inputs
    """

    name: Annotated[str, text]
    train: Part
    test: Part
    classes: Annotated[int, whole(1)]
    names: Names | None = None
    inputs: Inputs | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
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
        """How pixels (bytes) become network inputs, for a task without `inputs`; None where images are not bytes."""
        part = self.train
        if self.inputs is not None or part.images.dtype != torch.uint8:
            return None
        gain, offset = torch.broadcast_tensors(part.gain.cpu().flatten(), part.offset.cpu().flatten())
        return Inputs(gain, offset) if len(gain) > 1 else Inputs(gain[0], offset[0])

    def raw_test(self, positions: Tensor) -> Tensor:
        """Test images at these positions as they were given."""
        images = self.test.raw(positions)
        return images.movedim(1, -1).contiguous() if self.inputs is not None and self.inputs.channels_last else images


@dataclass(frozen=True)
class TaskInfo:
    """What a model keeps of a task beside its mask; a model file stores it with the mask.

    names          class names as the user has them; None: the class numbers
    inputs         how raw inputs become network inputs; None: the model is given normalised inputs
    recipe         how the mask was trained, as plain values, where the recipe was chosen for this task
    rotated        the task was learned in all rotations of its images, each with its outputs (`data/rotations.py`)
    normalisation  how pixels (bytes) become network inputs, where `inputs` is None; None: unknown
    """

    names: Names | None = None
    inputs: Inputs | None = None
    recipe: PlainValues | None = None
    rotated: bool = False
    normalisation: Inputs | None = None

    @classmethod
    def of(cls, task: Task, recipe: PlainValues | None = None, rotated: bool = False) -> TaskInfo:
        """The metadata of a task that was learned. `observe` has no `Task`, so it keeps none."""
        return cls(task.names, task.inputs, recipe, rotated, task.normalisation)

    def class_name(self, label: int) -> Label:
        """The user's name for a class."""
        return label if self.names is None or label >= len(self.names) else self.names[label]

    def describe(self) -> dict[str, Any]:
        """The metadata as plain values, for `supsup tasks --json` and GET /tasks/NAME; None: unknown.

        A new field that users should see needs a line here. The table of `supsup tasks` and GET /tasks have fields of
        their own.
        """
        words = []
        if self.inputs is not None:
            count = self.inputs.gain.numel()
            words.append("tokens" if self.inputs.tokens else f"raw, {count} mean{'' if count == 1 else 's'}")
            words += ["channels last"] if self.inputs.channels_last else []
        words += ["in four rotations"] if self.rotated else []
        return {
            "class_names": None if self.names is None else list(self.names),
            "inputs": ", ".join(words) or None,
            "recipe": None if self.recipe is None else dict(self.recipe),
        }


NO_INFO = TaskInfo()


def _check_positions(positions: Tensor) -> None:
    if given(positions, Tensor, "positions").dtype not in (torch.int64, torch.int32) or positions.ndim != 1:
        raise SupSupError(f"positions must be whole numbers [n]; got {positions.dtype} {list(positions.shape)}")


def check_names(names: Any, what: str = "names") -> Names:
    """Class names in plain types, or an error unless they differ and a file can hold them."""
    plain = tuple(plain_label(name, what) for name in listed(names, what, "names of classes"))
    if len({label_key(name) for name in plain}) < len(plain):
        raise SupSupError(f"two of the {what} are the same; give each class a name of its own")
    return plain


def plain_label(value: Any, what: str, depth: int = 0) -> Label:
    """One label in a plain type of Python, or an error that says what a label can be."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < _LARGEST:
        return int(value)
    if isinstance(value, str) and len(value) <= _LONGEST and value == value.encode(errors="replace").decode():
        return str.__str__(value)
    if isinstance(value, tuple) and depth < _DEEPEST and len(value) <= _LONGEST:
        return tuple(plain_label(each, what, depth + 1) for each in value)
    if value is None or (isinstance(value, float) and value != value):
        raise SupSupError(f"some {what} are missing ({quoted(value)}); remove those inputs or fill them in")
    if isinstance(value, float):
        raise SupSupError(f"{what} hold the real number {quoted(value)}; give classes: whole numbers or names")
    raise SupSupError(f"{what} hold {quoted(value)} ({type(value).__name__}); give {LABEL_KINDS}, such as str(label)")


def label_key(label: Label) -> Any:
    """Distinguishes labels that Python takes for equal, such as True and 1."""
    return tuple(map(label_key, label)) if isinstance(label, tuple) else (type(label), label)
