"""Many image files at once, decoded in threads (Pillow lets go of Python's lock), with errors a user can act on."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import TypeVar

import torch
from torch import Tensor

from supsup import progress
from supsup.errors import SupSupError

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
    from supsup.data.decode import size_of

    return torch.tensor(_in_threads(lambda index: size_of(paths[index]), paths, "looking at images")).view(-1, 2)


def decode_all(paths: Sequence[str], height: int, width: int, size: int | None = None) -> Tensor:
    """uint8 [n, 3, height, width]: the images as `decode.decoded` gives them, which must have this size."""
    from supsup.data.decode import Unreadable, decoded

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
    from supsup.data.decode import Unreadable

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
