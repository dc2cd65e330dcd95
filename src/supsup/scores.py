"""Scores, one real number per weight, and how they become masks with a straight-through gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from supsup import philox
from supsup.frozen import fan_in


def initial_scores(
    seed: int, task: str, shapes: Mapping[str, torch.Size], device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """Where a task's scores start: U(−1/√fan_in, 1/√fan_in), a function of seed, task and weight name alone."""
    return {
        name: philox.uniform(seed, [score_label(task, name)], shape.numel(), score_bound(shape), device).view(shape)
        for name, shape in shapes.items()
    }


def score_label(task: str, weight: str) -> str:
    """The random stream that a task's starting scores for one weight come from."""
    return f"scores/{task}/{weight}"


def score_bound(shape: torch.Size) -> float:
    """Kaiming uniform with a = √5."""
    return 1.0 / math.sqrt(fan_in(shape))


class _Threshold(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        return (scores >= 0).to(scores.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def threshold(scores: Tensor) -> Tensor:
    """1 where the score is at least 0, else 0; backwards the identity."""
    mask: Tensor = _Threshold.apply(scores)  # type: ignore[no-untyped-call]
    return mask
