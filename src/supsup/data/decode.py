"""One image file to uint8 pixels with Pillow, in the same way wherever it happens.

This file is also the program that the processes of decoder_pool.py run. So that they start at once and stay small it
imports nothing but numpy and Pillow, and has an exception of its own for a bad file.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any, BinaryIO, TypeVar

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from supsup.runtime import progress
from supsup.runtime.errors import SupSupError

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


# MERGED MODULE DOC: Many image files at once, decoded in threads (Pillow lets go of Python's lock), with errors a user can act on.
_NAMED = 3  # bad files that an error names
_BLOCK = 16  # files that a thread takes at a time
T = TypeVar("T")


def needs_pillow(what: str) -> None:
    """An error where Pillow is not installed."""
    if find_spec("PIL") is None:
        raise SupSupError(f"{what} are read with Pillow, which is not installed: pip install 'supsup[images]'")


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def sizes_of(paths: Sequence[str]) -> Tensor:
    """int64 [n, 2]: width and height of each image, from the heads of the files."""

    return torch.tensor(_in_threads(lambda index: size_of(paths[index]), paths, "looking at images")).view(-1, 2)


def decode_all(paths: Sequence[str], height: int, width: int, size: int | None = None) -> Tensor:
    """uint8 [n, 3, height, width]: the images as `decode.decoded` gives them, which must have this size."""

    images = torch.empty(len(paths), 3, height, width, dtype=torch.uint8)
    buffer = images.numpy()

    def decode(index: int) -> None:
        pixels = decoded(paths[index], size)
        if pixels.shape != buffer.shape[1:]:
            shape = "×".join(map(str, pixels.shape[:0:-1]))
            raise Unreadable(f"{paths[index]} ({shape} pixels, not {width}×{height})")
        buffer[index] = pixels

    _in_threads(decode, paths, "reading images")
    return images


def _in_threads(work: Callable[[int], T], paths: Sequence[str], doing: str) -> list[T]:
    """work(i) for the i-th path; one error for all the files that cannot be read."""

    results: list[T] = []
    bad: list[str] = []

    def attempt(block: range) -> list[T | Unreadable]:
        outcomes: list[T | Unreadable] = []
        for index in block:
            try:
                outcomes.append(work(index))
            except Unreadable as error:
                outcomes.append(error)
        return outcomes

    blocks = [range(start, min(start + _BLOCK, len(paths))) for start in range(0, len(paths), _BLOCK)]
    pool = ThreadPoolExecutor(cores())
    try:
        with progress.bar(doing, len(paths), "images") as advance:
            for outcomes in pool.map(attempt, blocks):
                bad += [str(outcome) for outcome in outcomes if isinstance(outcome, Unreadable)]
                results += [outcome for outcome in outcomes if not isinstance(outcome, Unreadable)]
                advance(len(outcomes))
    finally:
        pool.shutdown(cancel_futures=True)  # an interruption does not wait for the rest
    if bad:
        raise unreadable(bad)
    return results


def unreadable(bad: Sequence[str]) -> SupSupError:
    """An error that names the first of the bad files."""
    named = ", ".join(bad[:_NAMED]) + (f" and {len(bad) - _NAMED} more" if len(bad) > _NAMED else "")
    count = "1 file" if len(bad) == 1 else f"{len(bad)} files"
    return SupSupError(f"{count} cannot be read as images: {named}; replace or remove them")
