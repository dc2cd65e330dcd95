"""Limits on what a file may declare, checked before anything is allocated or decoded.

A file of a few kilobytes can name a network of any size and settings of any length. `SUPSUP_MAX_BYTES` raises the limit
on memory; the ranges of settings are fixed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from supsup.runtime.errors import Damaged, SupSupError, printable

VARIABLE = "SUPSUP_MAX_BYTES"
MOST_BYTES = 2 << 30  # of memory that one file may need beyond what its size explains
MOST_TENSORS = 10_000  # masked tensors of a network
MOST_POSITION = 1 << 62  # of a task
LONGEST_HEADER = 16 << 20  # characters
LONGEST_INFO = 4 << 20  # characters of one task's metadata
DEEPEST = 50  # nesting of lists and mappings
MOST_PARAMETERS = 2000  # tensors of a network whose header is lost
PER_WEIGHT = 40  # bytes per weight, while a network is built and its weights are drawn from the seed
_PER_LEVEL = 40  # bytes per weight, while the mean that masks are coded against is unpacked
_PER_BIT = 2  # bytes per weight, while masks are decoded
_EXPANSION = 64  # bytes of decoded masks per stored byte
_MOST_SIDES, _LONGEST_SIDE = 16, 1 << 40  # of one shape
_CHECKED_IMAGES = 8  # images of the shape in the file, made to check an export
_RANGES: dict[str, dict[str, int]] = {  # the largest value of a setting in a file
    "recipe": {"steps": 10**9, "epochs": 10**6, "batch_size": 1 << 20, "rounds": 1000},
    "inference": {"steps": 10_000, "coordinates": 1 << 40},
    "allocation": {"every": 10**9, "floor": 1000, "budget": 10**9},
    "recovery": {"starts": 1000, "batch_size": 1 << 20, "least_steps": 10_000},
}


class TooLarge(SupSupError):
    """A file that needs more memory than the limit."""


def most_bytes() -> int:
    """The limit on memory, in bytes."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return MOST_BYTES
    if not text.isdecimal() or not 0 < len(text) < 20:
        raise SupSupError(f"{VARIABLE} is {printable(text, 40)!r}; it must be a number of bytes")
    return int(text)


def check_bytes(needed: int, what: str) -> None:
    """An error if what a file declares would take more memory than the limit."""
    most = most_bytes()
    if needed > most:
        amount = f"{needed:,}" if needed < 10**18 else "more than 10¹⁸"
        raise TooLarge(
            f"{what} would take {amount} bytes of memory, and the limit for a file is {most:,}; "
            f"if you trust it and have that much memory, set the variable {VARIABLE} to that number"
        )


def check_shapes(shapes: Mapping[str, Any], image_shape: Any) -> None:
    """An error unless masks and images can have these shapes."""
    if not 0 < len(shapes) <= MOST_TENSORS:
        raise Damaged(f"it names {len(shapes):,} weights; there must be 1 to {MOST_TENSORS:,}")
    for shape in [*shapes.values(), image_shape or [1]]:
        sides = isinstance(shape, list) and all(type(side) is int and 0 < side < _LONGEST_SIDE for side in shape)
        if not sides or not 0 < len(shape) <= _MOST_SIDES:
            raise Damaged("weights or images of impossible shapes")
    check_bytes(_PER_BIT * sum(map(math.prod, shapes.values())), "masks of the shapes in the file")
    check_bytes(4 * _CHECKED_IMAGES * math.prod(image_shape or []), "images of the shape in the file")


def check_reference(weights: int) -> None:
    """An error if the mean of masks would take too much memory."""
    check_bytes(_PER_LEVEL * weights, "the mean that masks are coded against")


def check_masks(count: int, weights: int, stored: int) -> None:
    """An error if so many masks need much more memory than the bytes that they are stored in explain."""
    excess = count * -(-weights // 8) - _EXPANSION * stored
    if excess > 0:
        check_bytes(excess, "its masks, which are stored in far fewer bytes,")


def check_settings(settings: Mapping[str, Any], kind: str) -> None:
    """An error unless the settings in a file are plain values within their ranges."""
    for name, value in settings.items():
        listed = isinstance(value, list) and len(value) <= MOST_TENSORS and all(isinstance(each, str) for each in value)
        if not listed and not isinstance(value, str | int | float | None):
            raise Damaged(f"the setting {printable(name, 40)} of {kind} is not a plain value")
        if isinstance(value, int | float):
            most = _RANGES[kind].get(name, 10**12)
            if abs(value) > most or not math.isfinite(value):
                raise SupSupError(
                    f"the setting {printable(name, 40)} of {kind} is {printable(value, 40)}; "
                    f"in a file it may be {most:,} at most"
                )


def check_details(details: Mapping[str, Any], outputs: int) -> None:
    """An error unless these are the `details` of a HopSupSup model."""
    tasks, recovery = details.get("tasks"), details.get("recovery")
    if not isinstance(tasks, list) or not isinstance(recovery, dict) or not isinstance(details.get("rule"), str):
        raise Damaged("the rule, the recovery or the tasks are missing")
    check_settings(recovery, "recovery")
    if not all(isinstance(task, list) and [*map(type, task)] == [str, int, str] and task[1] > 0 for task in tasks):
        raise Damaged("the list of its tasks cannot be read")
    if len({name for name, _, _ in tasks}) < len(tasks):
        raise Damaged("two of its tasks have the same name")
    info = details.get("facts", {})
    if not isinstance(info, dict) or not all(isinstance(text, str) for text in info.values()):
        raise Damaged("the metadata of its tasks cannot be read")
    if sum(count for _, count, _ in tasks) > outputs:
        raise Damaged(f"its tasks have more classes than the network has outputs, {outputs:,}")


def check_architecture(architecture: Mapping[str, Any] | None) -> None:
    """An error unless this names a builder and its arguments."""
    wanted = {"name": str, "arguments": dict}
    if architecture is not None and {key: type(value) for key, value in architecture.items()} != wanted:
        raise Damaged("the architecture is not a name with arguments")


def check_depth(value: Any, level: int = 0) -> None:
    """An error if lists and mappings are nested too deeply."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if inside and level == DEEPEST:
        raise Damaged(f"lists and mappings are nested more than {DEEPEST} deep")
    for each in inside:
        if isinstance(each, dict | list):
            check_depth(each, level + 1)
