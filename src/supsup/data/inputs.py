"""How raw inputs become what a network sees: a layout, a kind of number, a normalisation. It belongs to a task.

A task without `Inputs` takes its inputs as the network sees them. Normalisation is x · gain + offset, along the first
dimension of an input: channels of an image, features of a table, or one number for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from supsup.runtime.devices import on_device
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import choice, flag, given

_NUMBERS_IN_A_CHUNK = 4096 * 784  # that are summed together
_WIDEST = 16.0  # a feature's range in what it is divided by: rare values stay within reach of a network
_FEW = 16  # channels of a series: more are taken for its length
_FITS, _FITS_EACH = 4.0, 8.0  # how far from 1 the size of inputs may be, as a whole and in one channel


@dataclass(frozen=True, eq=False)
class Inputs:
    """What is done with a task's raw inputs.

    gain, offset   float32, [] or [first dimension of an input]
    channels_last  images come as [height, width, channels]; the network sees the channels first
    tokens         whole numbers, which reach the network as they are
    fixed          the user has said so: a model does not put its own normalisation in place of this one
    """

    gain: Tensor = field(default_factory=lambda: torch.tensor(1.0))
    offset: Tensor = field(default_factory=lambda: torch.tensor(0.0))
    channels_last: bool = False
    tokens: bool = False
    fixed: bool = False

    def __post_init__(self) -> None:
        for name in ("channels_last", "tokens", "fixed"):
            flag(getattr(self, name), f"Inputs.{name}")
        for name in ("gain", "offset"):
            tensor = given(getattr(self, name), Tensor, f"Inputs.{name}")
            if tensor.dtype != torch.float32 or tensor.ndim > 1 or not bool(tensor.isfinite().all()):
                raise SupSupError(f"{name} of inputs must be finite float32, one number or one for each channel")
        if self.gain.shape != self.offset.shape:
            raise SupSupError("gain and offset of inputs must have the same shape")

    def __repr__(self) -> str:
        kind = "tokens" if self.tokens else f"normalised by {self.gain.numel()} means and deviations"
        return f"Inputs({kind}{', channels last' if self.channels_last else ''})"

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """The same for all inputs whose numbers are treated alike."""
        gain, offset = (tuple(tensor.flatten().tolist()) for tensor in (self.gain, self.offset))
        return gain, offset, self.tokens

    def seen(self, raw: Tensor, leading: int = 1) -> Tensor:
        """What the network sees of raw inputs in its own layout, behind so many leading dimensions."""
        if self.tokens:
            return raw.long()
        ones = [1] * (raw.ndim - leading - 1)
        gain, offset = (on_device(value, raw.device).view(-1, *ones) for value in (self.gain, self.offset))
        return raw.float() * gain + offset


AS_THEY_ARE = Inputs().key


class Pixels(NamedTuple):
    """Mean and deviation of each colour, where pixels go from 0 to 1, that a network with trained weights expects."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def inputs_of(self, images: Tensor, own: Inputs) -> Inputs:
        """The normalisation of images [n, channels, height, width], bytes or numbers from 0 to 1 or to 255.

        `own` for what is none of these: the user has normalised it, or it is not made of pixels.
        """
        if images.ndim != 4 or images.shape[1] not in (1, len(self.mean)) or own.tokens:
            return own
        low, high = (0.0, 255.0) if images.dtype == torch.uint8 else map(float, images.aminmax())
        if low < 0 or high > 255:
            return own
        mean, deviation = (torch.tensor(each, dtype=torch.float64) for each in self)
        if images.shape[1] == 1:
            mean, deviation = mean.mean(), deviation.mean()
        gain = 1 / (deviation * (255 if high > 1 else 1))
        return replace(own, gain=gain.float(), offset=(-mean / deviation).float())


def key_of(inputs: Inputs | None) -> tuple[Any, ...]:
    """`Inputs.key`, also of a task whose inputs are as the network sees them."""
    return AS_THEY_ARE if inputs is None else inputs.key


def channels_of(shape: tuple[int, ...]) -> int:
    """How many parts of an input have a mean of their own."""
    if len(shape) >= 3:
        return shape[0]
    return shape[0] if len(shape) == 2 and shape[0] <= _FEW and 2 * shape[0] < shape[1] else 1


def is_table(images: Tensor) -> bool:
    """Whether these are rows of features, each with a meaning and a scale of its own; bytes are pixels."""
    return images.ndim == 2 and images.dtype != torch.uint8


def measured(images: Tensor) -> tuple[Tensor, Tensor]:
    """gain and offset that give mean 0 and standard deviation 1, feature by feature for a table, else by channels.

    What never varies is only shifted. A feature is divided by a sixteenth of its range at least.
    """
    if not is_table(images):
        return measured_normalisation(images)
    low, high = images.amin(0).double(), images.amax(0).double()
    mean, std = _moments(images[..., None])
    gain = 1 / torch.where(_varies(mean, std), std.maximum((high - low) / _WIDEST), 1.0)
    return gain.float(), (-mean * gain).float()


def measured_normalisation(images: Tensor) -> tuple[Tensor, Tensor]:
    """The same with one mean for all numbers of a channel: pixels are alike."""
    channels = channels_of(tuple(images.shape[1:]))
    mean, std = _moments(images.view(len(images), channels, -1))
    gain = 1 / torch.where(_varies(mean, std), std, 1.0)
    offset = -mean * gain
    return (gain.float(), offset.float()) if channels > 1 else (gain[0].float(), offset[0].float())


def fits(own: Inputs, other: Inputs | None) -> bool:
    """Whether inputs that `own` gives mean 0 and deviation 1 are of a size for a network after `other` as well."""
    if own.tokens or (other is not None and other.tokens):
        return own.tokens and other is not None and other.tokens
    gain, offset = (torch.tensor(1.0), torch.tensor(0.0)) if other is None else (other.gain, other.offset)
    if gain.numel() not in (1, own.gain.numel()):
        return False
    slope = gain.double() / own.gain.double()  # of `other` in terms of `own`
    shift = offset.double() - slope * own.offset.double()
    size = (slope.square() + shift.square()).sqrt()
    whole = float(size.square().mean().sqrt())
    return 1 / _FITS <= whole <= _FITS and float(size.max()) <= _FITS_EACH


def _varies(mean: Tensor, std: Tensor) -> Tensor:
    return std > torch.finfo(torch.float32).eps * mean.abs()


def _moments(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation [channels] of numbers [n, channels, pixels], in float64."""
    count = pixels.numel() // pixels.shape[1]
    mean = _sum(pixels, lambda chunk: chunk) / count
    return mean, (_sum(pixels, lambda chunk: (chunk - mean[:, None]).square()) / count).sqrt()


def _sum(pixels: Tensor, term: Callable[[Tensor], Tensor]) -> Tensor:
    """The sum of a term over images and pixels, [n, channels, pixels] → [channels], in float64 but a few at a time."""
    chunks = pixels.split(max(1, _NUMBERS_IN_A_CHUNK // math.prod(pixels.shape[1:])))
    return torch.stack([term(chunk.double()).sum((0, 2)) for chunk in chunks]).sum(0)


# MERGED MODULE DOC: Where the channels of an image are: first (NCHW), as networks see them, or last (NHWC), as in many libraries.
Layout = Literal["NCHW", "NHWC"]
_COLOURS = (1, 3, 4)  # how many channels pictures have
_SMALLEST = 5  # a side of an image that nobody takes for channels


def is_last(images: Tensor, layout: Any = None) -> bool:
    """Whether images [n, …] have their channels last: as said, else by their shape where that leaves no doubt."""
    if layout is not None:
        said = choice(*get_args(Layout))(layout, "layout")
        if said == "NHWC" and images.ndim != 4:
            raise SupSupError(f"inputs have shape {list(images.shape)}, and layout='NHWC' is for [n, height, width, c]")
        return said == "NHWC"
    if images.ndim != 4:
        return False
    first, height, width = images.shape[1], images.shape[2], images.shape[3]
    return width in _COLOURS and first >= _SMALLEST and height >= _SMALLEST


def channels_first(images: Tensor, leading: int = 1) -> Tensor:
    """Images with the channels last as a network sees them, behind so many leading dimensions."""
    return images.movedim(-1, leading).contiguous()


def channels_last(images: Tensor) -> Tensor:
    """The other way round, for images [n, channels, height, width]."""
    return images.movedim(1, -1).contiguous()


def as_learned(raw: Tensor, shape: tuple[int, ...], last: bool, leading: int = 1) -> Tensor:
    """Raw inputs in the shape that a model has learned, or an error: the channels may be last, or missing if one.

    last  which of the two it is where height, width and channels are the same number
    """
    given = tuple(raw.shape[leading:])
    moved = (given[-1], *given[:-1]) if len(given) == 3 else None
    if moved == shape and (last or given != shape):
        return channels_first(raw, leading)
    if given == shape:
        return raw
    if (1, *given) == shape:
        return raw.unsqueeze(leading)
    raise SupSupError(f"images have shape {given}, but this model learned images of shape {shape}")
