"""What every learner answers with."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Prediction:
    """One answer per image: the label, the task whose mask gave it, and the probability of the label under it."""

    labels: Tensor
    tasks: list[str]
    confidence: Tensor
