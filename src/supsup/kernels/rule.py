"""The constants of an optimiser, as kernels take them; `Recipe` is where they come from."""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """Which optimiser, and all its constants but the learning rate, which may change from step to step."""

    optimiser: str
    weight_decay: float
    momentum: float
    first_decay: float
    second_decay: float
    epsilon: float
