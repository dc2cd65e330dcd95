"""The constants of an optimiser, as kernels take them; `Recipe` is where they come from."""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """One optimiser step: which, and its constants."""

    optimiser: str
    rate: float
    weight_decay: float
    momentum: float
    first_decay: float
    second_decay: float
    epsilon: float
