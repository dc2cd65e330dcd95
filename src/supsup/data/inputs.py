"""How raw inputs become network inputs: layout, kind of number, normalisation. Each task has its own `Inputs`.

Normalisation is x · gain + offset along the first dimension of an input: channels of an image, features of a table, or
one number for all. A task without `Inputs` is given inputs that are normalised already.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from supsup.nets.published import Colours
from supsup.runtime.devices import on_device
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import CheckedFields, choice, given

Layout = Literal["NCHW", "NHWC"]  # channels first, as networks take images, or last, as in many libraries
_CHUNK_NUMBERS = 4096 * 784  # numbers summed at a time
_MOSTLY = 0.5  # of the numbers of a sparse table are zeros
_WIDEST_RANGE = 16.0  # a feature's range after normalisation, at most: rare large values stay usable
_MOST_SERIES_CHANNELS = 16  # of inputs [channels, length]
_MOST_SCALE, _MOST_CHANNEL_SCALE = 4.0, 8.0  # how far from 1 the size of inputs may be, overall and in one channel
_IMAGE_CHANNELS = (1, 3, 4)
_SMALLEST_SIDE = 5  # of an image; smaller dimensions may be channels


@dataclass(frozen=True, eq=False)
class Inputs(CheckedFields):
    """How a task's raw inputs become network inputs.

    gain, offset   float32, [] or [first dimension of an input]
    channels_last  raw images are [height, width, channels]; the network takes channels first
    tokens         whole numbers that reach the network unchanged
    fixed          chosen by the user: a model does not replace it with its own normalisation
    """

    gain: Tensor = field(default_factory=lambda: torch.tensor(1.0))
    offset: Tensor = field(default_factory=lambda: torch.tensor(0.0))
    channels_last: bool = False
    tokens: bool = False
    fixed: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
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
        """Equal for all `Inputs` that give the same numbers."""
        gain, offset = (tuple(tensor.flatten().tolist()) for tensor in (self.gain, self.offset))
        return gain, offset, self.tokens

    def log_scale(self, shape: tuple[int, ...]) -> float:
        """The log of the factor by which inputs of this shape grow in volume."""
        return float(self.gain.abs().clamp(min=1e-30).log().expand(shape[0]).sum()) * math.prod(shape[1:])

    def preprocess(self, raw: Tensor, leading: int = 1) -> Tensor:
        """Network inputs from raw ones with channels first; `leading` dimensions count inputs."""
        if self.tokens:
            return raw.long()
        ones = [1] * (raw.ndim - leading - 1)
        gain, offset = (on_device(value, raw.device).view(-1, *ones) for value in (self.gain, self.offset))
        return raw.float() * gain + offset


IDENTITY_KEY = Inputs().key


def inputs_key(inputs: Inputs | None) -> tuple[Any, ...]:
    """`Inputs.key`; that of the identity for a task without `Inputs`."""
    return IDENTITY_KEY if inputs is None else inputs.key


def pixel_inputs(images: Tensor, expected: Colours, otherwise: Inputs) -> Inputs:
    """The normalisation of images [n, channels, height, width], bytes or numbers from 0 to 1 or 0 to 255.

    Any other inputs are not pixels, or are normalised already: they keep `otherwise`.
    """
    if images.ndim != 4 or images.shape[1] not in (1, len(expected[0])) or otherwise.tokens:
        return otherwise
    low, high = (0.0, 255.0) if images.dtype == torch.uint8 else map(float, images.aminmax())
    if low < 0 or high > 255:
        return otherwise
    mean, deviation = (torch.tensor(each, dtype=torch.float64) for each in expected)
    if images.shape[1] == 1:
        mean, deviation = mean.mean(), deviation.mean()
    gain = 1 / (deviation * (255 if high > 1 else 1))
    return replace(otherwise, gain=gain.float(), offset=(-mean / deviation).float())


def is_table(images: Tensor) -> bool:
    """Whether these are rows of features, each with its own meaning and scale; bytes are pixels."""
    return images.ndim == 2 and images.dtype != torch.uint8


def measure_normalisation(images: Tensor) -> tuple[Tensor, Tensor]:
    """gain and offset that give mean 0 and standard deviation 1, by feature for a table, else by channel.

    Constant features are only shifted. A feature of a table is divided by at least a sixteenth of its range. In a
    sparse table, which is mostly zeros, features that are mostly zero keep their zeros and share one scale.
    """
    shape, table = images.shape[1:], is_table(images)
    is_series = len(shape) == 2 and shape[0] <= _MOST_SERIES_CHANNELS and 2 * shape[0] < shape[1]
    channels = shape[0] if table or len(shape) >= 3 or is_series else 1
    pixels = images.view(len(images), channels, -1)
    chunks = pixels.split(max(1, _CHUNK_NUMBERS // math.prod(pixels.shape[1:])))

    def average(term: Callable[[Tensor], Tensor]) -> Tensor:
        """The mean of a term of the numbers of each channel, in float64."""
        return torch.stack([term(chunk.double()).sum((0, 2)) for chunk in chunks]).sum(0) / (pixels.numel() // channels)

    mean = average(lambda chunk: chunk)
    std = average(lambda chunk: (chunk - mean[:, None]).square()).sqrt()
    varies, divisor = std > torch.finfo(torch.float32).eps * mean.abs(), std
    if table:
        divisor = std.maximum((images.amax(0).double() - images.amin(0).double()) / _WIDEST_RANGE)
    gain = 1 / torch.where(varies, divisor, 1.0)
    offset = -mean * gain
    if table and float((zeros := (images == 0).float().mean(0)).mean()) > _MOSTLY:
        sparse = zeros > _MOSTLY  # also those that never differ from 0 here: in another task's table they may
        size = (std.square() + mean.square())[sparse].mean().sqrt()
        gain[sparse], offset[sparse] = (1 / size if size > 0 else 1.0), 0
    return (gain.float(), offset.float()) if table or channels > 1 else (gain[0].float(), offset[0].float())


def is_compatible(inputs: Inputs, other: Inputs | None) -> bool:
    """Whether data that `inputs` normalises to mean 0 and deviation 1 also gets a usable size from `other`."""
    if inputs.tokens or (other is not None and other.tokens):
        return inputs.tokens and other is not None and other.tokens
    other = Inputs() if other is None else other
    if other.gain.numel() not in (1, inputs.gain.numel()):
        return False
    slope = other.gain.double() / inputs.gain.double()  # of `other` as a function of `inputs`
    shift = other.offset.double() - slope * inputs.offset.double()
    size = (slope.square() + shift.square()).sqrt()
    overall = float(size.square().mean().sqrt())
    return 1 / _MOST_SCALE <= overall <= _MOST_SCALE and float(size.max()) <= _MOST_CHANNEL_SCALE


def has_channels_last(images: Tensor, layout: Any = None) -> bool:
    """Whether images [n, …] have their channels last: by `layout`, else by their shape if it is unambiguous."""
    if layout is not None:
        chosen = choice(*get_args(Layout))(layout, "layout")
        if chosen == "NHWC" and images.ndim != 4:
            raise SupSupError(f"inputs have shape {list(images.shape)}, and layout='NHWC' is for [n, height, width, c]")
        return chosen == "NHWC"
    if images.ndim != 4:
        return False
    first, height, width = images.shape[1:]
    return width in _IMAGE_CHANNELS and first >= _SMALLEST_SIDE and height >= _SMALLEST_SIDE


def channels_first(images: Tensor, leading: int = 1) -> Tensor:
    """Images with channels last → channels first; `leading` dimensions count images."""
    return images.movedim(-1, leading).contiguous()


def to_learned_shape(raw: Tensor, shape: tuple[int, ...], last: bool, leading: int = 1) -> Tensor:
    """Raw inputs in the shape that a model has learned: channels may be last, or missing if there is one.

    last  decides where height, width and channels are the same number
    """
    found = tuple(raw.shape[leading:])
    moved = (found[-1], *found[:-1]) if len(found) == 3 else None
    if moved == shape and (last or found != shape):
        return channels_first(raw, leading)
    if found == shape:
        return raw
    if (1, *found) == shape:
        return raw.unsqueeze(leading)
    raise SupSupError(f"images have shape {found}, but this model learned images of shape {shape}")
