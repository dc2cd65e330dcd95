"""Scores, one real number per weight, and how they become masks with a straight-through gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from supsup.masks import philox
from supsup.masks.frozen import fan_in

_TIE = 0.01  # scale of a task's random scores relative to the mean of earlier masks, to break ties


def initial_scores(
    seed: int,
    task: str,
    shapes: Mapping[str, torch.Size],
    device: torch.device | str = "cpu",
    bound: float | None = None,
) -> dict[str, Tensor]:
    """Where a task's scores start: U(−b, b) with b = `score_bound`, a function of seed, task and weight name alone."""

    def drawn(name: str, shape: torch.Size) -> Tensor:
        label = score_label(task, name)
        return philox.uniform(seed, [label], shape.numel(), score_bound(shape, bound), device).view(shape)

    return {name: drawn(name, shape) for name, shape in shapes.items()}


def kept_scores(shape: torch.Size, device: torch.device | str = "cpu", bound: float | None = None) -> Tensor:
    """Where scores start if every weight is kept at first: all as large as random ones are at most."""
    return torch.full(shape, score_bound(shape, bound), device=device)


def score_label(task: str, weight: str) -> str:
    """The random stream that a task's starting scores for one weight come from."""
    return f"scores/{task}/{weight}"


def score_bound(shape: torch.Size, bound: float | None = None) -> float:
    """How large scores are at first: as given, or 1/√fan_in (Kaiming uniform with a = √5)."""
    return 1.0 / math.sqrt(fan_in(shape)) if bound is None else bound


def scores_of(mask: Mapping[str, Tensor], bound: float | None = None) -> dict[str, Tensor]:
    """Scores that give this mask, all of the same size: half the bound of random ones."""
    return {name: (bits.float() - 0.5) * score_bound(bits.shape, bound) for name, bits in mask.items()}


def transferred(
    mean: Mapping[str, Tensor], own: Mapping[str, Tensor], centred: bool, bound: float | None = None
) -> dict[str, Tensor]:
    """Scores from the mean of earlier masks, scaled to the bound of random scores.

    A hundredth of the task's own random scores decides between weights that were kept equally often; without it all
    weights that were never kept would have the score 0, which has no sign for a gradient to go through.
    centred  −bound … bound in place of 0 … bound, for masks that a threshold at 0 makes
    """
    out = {}
    for name, random in own.items():
        share = 2 * mean[name] - 1 if centred else mean[name]
        out[name] = score_bound(random.shape, bound) * share + _TIE * random
    return out


@dataclass(frozen=True)
class RunningMean:
    """The mean of the scores of all tasks so far."""

    count: int = 0
    total: Mapping[str, Tensor] = field(default_factory=dict)

    def with_more(self, scores: Mapping[str, Tensor]) -> RunningMean:
        """The mean with more scores, [tasks, …] by weight."""
        sums = {name: values.sum(0) for name, values in scores.items()}
        total = {name: self.total[name] + more if name in self.total else more for name, more in sums.items()}
        return RunningMean(self.count + len(next(iter(scores.values()))), total)

    def mean(self) -> dict[str, Tensor]:
        return {name: total / self.count for name, total in self.total.items()}


def weights_kept(shape: torch.Size, budget: float | None, density: float | None) -> int:
    """How many weights of a tensor edge-popup keeps: s·(in + out) but at most half, or a share of all; at least 1."""
    if budget is not None:
        return max(1, min(shape.numel() // 2, int(budget * (shape[0] + shape[1]))))
    assert density is not None
    return max(1, round(density * shape.numel()))


class _Threshold(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        return (scores >= 0).to(scores.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class _EdgePopup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, keep: int) -> Tensor:
        ctx.save_for_backward(scores)
        size = scores.abs()
        least = size.flatten().kthvalue(size.numel() - keep + 1).values
        return (size >= least).to(scores.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (scores,) = ctx.saved_tensors
        return torch.where(scores >= 0, gradient, -gradient), None


def soft_mask(scores: Tensor, keep: int | None) -> Tensor:
    """A mask of 0.0 and 1.0 that a gradient goes straight through.

    keep None: 1 where the score is at least 0. Else edge-popup: 1 where the score is, in size, at least the keep-th
    largest; backwards the gradient takes the score's sign, as that of |score|.
    """
    mask: Tensor = _Threshold.apply(scores) if keep is None else _EdgePopup.apply(scores, keep)  # type: ignore[no-untyped-call]
    return mask


def hard_mask(scores: Tensor, keep: int | None) -> Tensor:
    """The mask as booleans; with `keep` exactly so many, whatever scores are equal."""
    if keep is None:
        return scores >= 0
    chosen = torch.zeros(scores.numel(), dtype=torch.bool, device=scores.device)
    chosen[scores.abs().flatten().topk(keep).indices] = True
    return chosen.view(scores.shape)
