"""Where the channels of an image are: first (NCHW), as networks see them, or last (NHWC), as in many libraries."""

from __future__ import annotations

from typing import Any, Literal, get_args

from torch import Tensor

from supsup.errors import SupSupError
from supsup.validation import choice

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
