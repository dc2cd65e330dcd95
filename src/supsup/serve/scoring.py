"""The scores of all candidate tasks for an image, in a form that fits a plot."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from supsup import Inference, SupSup

_MOST_VALUES = 400  # of a plot
_MOST_NAMED = 5


@dataclass(frozen=True)
class TaskScores:
    """The scores of the candidates in order, as standard deviations from their mean.

    values  one per candidate; of many candidates, the largest of every `each` neighbours
    best    (task, score) of the highest, the highest first
    """

    values: list[float]
    each: int
    best: list[tuple[str, float]]


def scores(model: SupSup, inputs: object, candidates: list[str], how: Inference | None = None) -> list[TaskScores]:
    """The scores of these tasks for each input [n, …], by the model's inference setting or another."""
    found = model.task_scores(inputs, among=candidates, inference=how)
    return [_standardised(row, candidates) for row in found.cpu().double()]


def _standardised(found: Tensor, names: list[str]) -> TaskScores:
    spread = float(found.std(correction=0)) if len(found) > 1 else 0.0
    standard = (found - found.mean()) / spread if spread > 0 else torch.zeros_like(found)
    standard = standard.nan_to_num()
    each = -(-len(standard) // _MOST_VALUES)
    values = [round(float(piece.max()), 3) for piece in standard.split(each)]
    top = standard.topk(min(_MOST_NAMED, len(standard)))
    best = [(names[index], round(value, 3)) for value, index in zip(top.values.tolist(), top.indices.tolist())]
    return TaskScores(values, each, best)
