"""What strangers send: images and arrays, held to limits before anything is made of them, in the model's own shape."""

from __future__ import annotations

import base64
import binascii
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from PIL import Image
from starlette.concurrency import run_in_threadpool

from supsup.data.decode import middle, rgb
from supsup.data.folder import SUFFIXES
from supsup.serve.errors import Refused

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, ...]
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
_GREY = ("1", "L", "LA", "I;16")  # modes of Pillow
_MOST_DECODED = 2 << 30  # bytes of all images of one request
_SMALL_FILES, _SMALL_IMAGE = 1 << 14, 1 << 16  # bytes of all files and pixels of one: decoded in about a millisecond


@dataclass(frozen=True)
class Picture:
    """The bytes of an image file, and what to call it in a refusal."""

    content: bytes
    name: str = "the image"


def pictures(files: Sequence[Picture], shape: Shape | None, most_pixels: int) -> Array:
    """Image files as uint8 [n, *shape]; where no shape is known yet, all must have one size."""
    if not files:
        raise Refused(400, "there is no image in the request")
    if shape is not None and len(files) * math.prod(shape) > _MOST_DECODED:
        raise Refused(413, f"{len(files):,} images of shape {shape} are too many at a time")
    found: list[Array] = []
    for file in files:
        found.append(_pixels(file, shape, most_pixels))
        if found[-1].shape != found[0].shape:
            raise Refused(
                400,
                f"{file.name} is {_sized(found[-1])}, but {files[0].name} is {_sized(found[0])}; the model has "
                "learned nothing yet, so bring all images to one size and kind",
            )
    return np.stack(found)


async def decoded(files: Sequence[Picture], shape: Shape | None, most_pixels: int) -> Array:
    """`pictures` without keeping others waiting: here where they are small, in a thread where they are not."""
    if sum(len(file.content) for file in files) <= _SMALL_FILES:
        try:
            return pictures(files, shape, min(_SMALL_IMAGE, most_pixels))
        except Refused as error:
            if error.status != 413:
                raise
    return await run_in_threadpool(pictures, files, shape, most_pixels)


def _pixels(file: Picture, shape: Shape | None, most_pixels: int) -> Array:
    channels, height, width = _layout(shape)
    too_large = Refused(413, f"{file.name} has more than {most_pixels:,} pixels; send a smaller one")
    try:
        with Image.open(io.BytesIO(file.content), formats=FORMATS) as image:
            if math.prod(image.size) > most_pixels:
                raise too_large
            grey = image.mode in _GREY if channels is None else channels == 1
            fitted = rgb(image)
        if height is not None and width is not None and fitted.size != (width, height):
            if height == width:
                fitted = middle(fitted, height)
            else:
                fitted = fitted.resize((width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(fitted.convert("L") if grey else fitted, np.uint8)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning, MemoryError) as error:
        raise too_large from error
    except Refused:
        raise
    except Exception as error:  # a damaged file makes Pillow raise nearly anything
        raise Refused(400, f"{file.name} cannot be read as an image; send {', '.join(FORMATS)}") from error
    pixels = pixels[None] if grey else pixels.transpose(2, 0, 1)
    return pixels.copy() if shape is None else pixels.reshape(shape).copy()


def _layout(shape: Shape | None) -> tuple[int | None, int | None, int | None]:
    """Channels, height and width of images of a shape; None where images decide."""
    if shape is None:
        return None, None, None
    if len(shape) == 3 and shape[0] in (1, 3):
        return shape[0], shape[1], shape[2]
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    for channels in (1, 3):
        side = math.isqrt(math.prod(shape) // channels)
        if len(shape) == 1 and side > 1 and channels * side * side == shape[0]:
            return channels, side, side
    raise Refused(400, f"this model takes inputs of shape {shape}, which are no images; send JSON with arrays")


def _sized(pixels: Array) -> str:
    channels, height, width = pixels.shape
    return f"{width} × {height} in {'grey' if channels == 1 else 'colour'}"


def from_base64(text: object, name: str) -> Picture:
    """The image file that a text or a data: URL holds."""
    if not isinstance(text, str):
        raise Refused(400, f"{name} must be an image file in base64")
    try:
        return Picture(
            base64.b64decode(text.partition(",")[2] if text.startswith("data:") else text, validate=True), name
        )
    except (binascii.Error, ValueError) as error:
        raise Refused(400, f"{name} is not base64 ({error})") from error


def arrays(values: object, shape: Shape | None) -> Array:
    """Nested lists of numbers as [n, *shape]; a row of as many numbers as the shape has will do."""
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError, RecursionError) as error:
        raise Refused(400, "arrays must be lists of numbers, all of one shape") from error
    if array.dtype.kind not in "iuf" or array.ndim < 2 or not array.size:
        raise Refused(400, "arrays must be a list of at least one input, each a list of numbers, all of one shape")
    if shape is not None and math.prod(array.shape[1:]) != math.prod(shape):
        raise Refused(400, f"arrays have inputs of shape {array.shape[1:]}, but this model takes {shape}")
    return array if shape is None else array.reshape(len(array), *shape)


def class_of(name: str) -> str | None:
    """The class that an image file belongs to: the folder it lies in. None for a file that is no image by its name."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    if not parts or parts[-1].startswith(".") or PurePosixPath(parts[-1]).suffix.lower() not in SUFFIXES:
        return None
    if len(parts) < 2 or ".." in parts:
        raise Refused(400, f"{name!r} says no class; name files CLASS/anything.png, as in a folder of class folders")
    return parts[-2]
