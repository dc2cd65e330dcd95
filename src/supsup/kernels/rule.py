"""The constants of an optimiser in the form that kernels take; they come from a `Recipe`."""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """An optimiser and its constants, except the learning rate, which may change from step to step."""

    optimiser: str
    weight_decay: float
    momentum: float
    first_decay: float
    second_decay: float
    epsilon: float
