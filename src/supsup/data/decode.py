"""One image file → uint8 pixels with Pillow, and the program of the decoder processes (`data/folder.py`).

It imports nothing but numpy and Pillow, so that processes start quickly and stay small.
"""

from __future__ import annotations

import json
import sys
from typing import Any, BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Box = tuple[int, int, int, int, int]  # left, top, width, height, mirrored
_RESIZED = 256 / 224  # shorter side of a test image / side of the square that is cropped from it

Image.init()  # all formats now: threads that do it at the same time may miss some


class Unreadable(Exception):
    """A file that is not a usable image; the message names it."""


def image_size(path: str) -> tuple[int, int]:
    """Width and height, from the file's header alone."""
    try:
        with Image.open(path) as image:
            return image.size
    except Exception as error:  # Pillow raises nearly anything for a damaged file
        raise Unreadable(f"{path} ({_reason(error)})") from error


def decode_image(path: str, size: int | None = None, box: Box | None = None) -> Pixels:
    """The image as RGB, [3, height, width].

    With a box: that part of it, resized to size × size. Without: resized and cropped to size × size as by
    `resize_and_crop`; unchanged if it has that size, or without `size`.
    """
    try:
        with Image.open(path) as image:
            colour = to_rgb(image)
        if box is not None and size is not None:
            left, top, width, height, mirrored = box
            colour = colour.crop((left, top, left + width, top + height))
            colour = colour.resize((size, size), Image.Resampling.BILINEAR)
            if mirrored:
                colour = colour.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        elif size is not None and colour.size != (size, size):
            colour = resize_and_crop(colour, size)
        return np.asarray(colour, np.uint8).transpose(2, 0, 1)
    except Exception as error:
        raise Unreadable(f"{path} ({_reason(error)})") from error


def to_rgb(image: Image.Image) -> Image.Image:
    """The image in three channels of 8 bits; itself, loaded, if it has them."""
    if image.mode == "RGB":
        image.load()
        return image
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise ValueError("its pixels have 32 bits; convert it to 8 bits a channel")
    if image.mode == "P" and "transparency" in image.info:
        return image.convert("RGBA").convert("RGB")
    return image.convert("RGB")


def resize_and_crop(image: Image.Image, size: int) -> Image.Image:
    """The shorter side resized to size · 256 / 224, then the central size × size."""
    width, height = image.size
    shorter = round(size * _RESIZED)
    if width <= height:
        width, height = shorter, max(size, shorter * height // width)
    else:
        width, height = max(size, shorter * width // height), shorter
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image.resize((width, height), Image.Resampling.BILINEAR).crop((left, top, left + size, top + size))


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "unsupported image format"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def serve_requests(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer lines {"size": …, "images": [[path, box], …]} until they end.

    The answer to a line: 4 bytes of 0 and the pixels of all its images; or, if one cannot be read, the length of a
    message in 4 bytes and the message. One answer for all images, so that the two processes rarely wait for each other.
    """
    for line in requests:
        request = json.loads(line)
        size, images = request["size"], request["images"]
        pixels = np.empty((len(images), 3, size, size), np.uint8)
        message = b""
        try:
            for place, (path, box) in enumerate(images):
                pixels[place] = decode_image(path, size, box and tuple(box))
        except Unreadable as error:
            message = str(error).encode(errors="replace")
        answers.write(len(message).to_bytes(4, "little"))
        answers.write(message or pixels.data)
        answers.flush()


if __name__ == "__main__":
    try:
        serve_requests(sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:
        sys.stdout = None  # the parent process has ended; nothing is left to flush
