"""The outcome of task inference: a mask for each decision, and how sure it is."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor

_FEW_CANDIDATES = 3  # too few for a standard deviation of the others


class Margin(NamedTuple):
    """How far the best of k candidates is ahead: its score, and mean and variance of all scores, each [r]."""

    best: Tensor
    mean: Tensor
    variance: Tensor
    candidates: int

    @classmethod
    def of(cls, best: Tensor, scores: Tensor) -> Margin:
        """From the scores [r, k] of all candidates, the larger the better."""
        variance, mean = torch.var_mean(scores, 1, correction=0)
        return cls(best, mean, variance, scores.shape[1])

    def confidence(self) -> Tensor:
        """The chance [r] that the best of k − 1 wrong candidates scores lower.

        Wrong candidates score normally, with the mean and deviation of the others. One or two others have no useful
        deviation: then it is the softmax of the best score against the others' mean.
        """
        k = self.candidates
        above = (self.best - self.mean).double() * (k / (k - 1))  # the mean of the others
        if k <= _FEW_CANDIDATES:
            return ((k - 1) * (-above).exp() + 1).reciprocal().float()
        variance = self.variance.double() * (k / (k - 1)) - above.square() / k
        deviations = above / variance.clamp(min=torch.finfo(torch.float64).tiny).sqrt()
        logarithm: Tensor = torch.special.log_ndtr(deviations)
        return ((k - 1) * logarithm).exp().float()


class NoMargin(Enum):
    """Why a decision has no margin; the value is its confidence."""

    CERTAIN = 1.0  # the task was given, or it is the only candidate
    NOT_MEASURED = float("nan")  # the method does not score every candidate


class Decision(NamedTuple):
    """The index of a mask for each decision [r], its margin, and how it was found (empty: by the method asked for)."""

    chosen: Tensor
    margin: Margin | NoMargin
    method_used: str = ""
