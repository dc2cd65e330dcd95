"""One image file to uint8 pixels with Pillow, in the same way wherever it happens.

This file is also the program that the processes of decoder_pool.py run. So that they start at once and stay small it
imports nothing but numpy and Pillow, and has an exception of its own for a bad file.
"""

from __future__ import annotations

import json
import struct
import sys
from typing import Any, BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
GOOD, BAD = b"\0", b"\1"
_RESIZED = 256 / 224  # shorter side of a test image / side of the middle that is kept


Image.init()  # every format now, since threads that do so at the same time may miss some


class Unreadable(Exception):
    """A file that is not an image that can be used; the message names it."""


def size_of(path: str) -> tuple[int, int]:
    """Width and height, from the head of the file alone."""
    try:
        with Image.open(path) as image:
            return image.size
    except Exception as error:  # a damaged file makes Pillow raise nearly anything
        raise Unreadable(f"{path} ({_reason(error)})") from error


def decoded(path: str, size: int | None = None, box: tuple[int, int, int, int, int] | None = None) -> Pixels:
    """The image as RGB, [3, height, width].

    With a box (left, top, width, height, mirrored) that part of it, brought to size × size. Without: the shorter side
    brought to size · 256 / 224 and the middle size × size kept; an image of that size, or any without `size`, stays.
    """
    try:
        with Image.open(path) as image:
            colour = rgb(image)
        if box is not None and size is not None:
            left, top, width, height, mirrored = box
            colour = colour.crop((left, top, left + width, top + height)).resize(
                (size, size), Image.Resampling.BILINEAR
            )
            if mirrored:
                colour = colour.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        elif size is not None and colour.size != (size, size):
            colour = middle(colour, size)
        return np.asarray(colour, np.uint8).transpose(2, 0, 1)
    except Exception as error:
        raise Unreadable(f"{path} ({_reason(error)})") from error


def rgb(image: Image.Image) -> Image.Image:
    """The image in three channels of 8 bits; itself, read from its file, if it has them."""
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


def middle(image: Image.Image, size: int) -> Image.Image:
    """The middle size × size, once the shorter side has been brought to size · 256 / 224."""
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
        return "not an image that Pillow knows"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer lines {"size": …, "images": [[path, box], …]} until they end.

    For each line: a 0 and the pixels of all its images; or, if one cannot be read, a 1, the length of a message in 4
    bytes, and the message. One answer for all, so that nobody waits for the other at every image.
    """
    for line in requests:
        request = json.loads(line)
        size, images = request["size"], request["images"]
        pixels = np.empty((len(images), 3, size, size), np.uint8)
        try:
            for place, (path, box) in enumerate(images):
                pixels[place] = decoded(path, size, box and tuple(box))
        except Unreadable as error:
            message = str(error).encode(errors="replace")
            answers.write(BAD + struct.pack("<I", len(message)) + message)
        else:
            answers.write(GOOD)
            answers.write(pixels.data)
        answers.flush()


if __name__ == "__main__":
    try:
        serve(sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:
        sys.stdout = None  # the parent has gone; nothing is left to flush
