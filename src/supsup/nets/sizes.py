"""How large a network may be: widths and counts that a user or a file gives, checked before memory is taken."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import listed, whole

_MOST_WEIGHTS = 1 << 36  # of one layer: 256 GiB
_COUNTED = {2: "two", 3: "three"}

size = whole(1, _MOST_WEIGHTS)


def sizes(values: Any, name: str) -> tuple[int, ...]:
    """Positive whole numbers."""
    return tuple(size(value, f"{name}[{i}]") for i, value in enumerate(listed(values, name, "whole numbers")))


def layer_widths(values: Any, least: int) -> tuple[int, ...]:
    """The widths of a chain of linear layers, inputs first, at least so many."""
    widths = sizes(values, "widths")
    if len(widths) < least:
        raise SupSupError(f"widths must be at least {_COUNTED[least]} numbers, inputs first; got {list(widths)}")
    for a, b in pairwise(widths):
        check_weights(a, b)
    return widths


def check_weights(*shape: int) -> None:
    """An error if one layer has more weights than any machine that this is for can hold."""
    if math.prod(shape) > _MOST_WEIGHTS:
        said = " × ".join(f"{number:,}" for number in shape)
        raise SupSupError(f"a layer of {said} weights is too large; the most are {_MOST_WEIGHTS:,}")
