"""What kernels of an optimiser take: its constants, which come from a `Recipe`, and the tensors of a layer."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

# Frozen weights [out, in]; for t tasks scores and masked weights [t, out, in]; first and second moment where there are.
ScoreState = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]


class Rule(NamedTuple):
    """An optimiser and its constants, except the learning rate, which may change from step to step."""

    optimiser: str
    weight_decay: float
    momentum: float
    first_decay: float
    second_decay: float
    epsilon: float
