"""How every mask scored for an image: what task inference looked at, for whoever wants to see it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from supsup.inference.methods import Inference, TaskView, first_gradient
from supsup.inference.objectives import LEVELS
from supsup.model.predictor import predictor_of
from supsup.model.state import state_of
from supsup.model.supsup import SupSup

_MOST_SHOWN = 400  # numbers of a plot
_MOST_NAMED = 5


@dataclass(frozen=True)
class TaskScores:
    """The scores of the candidates in order, as standard deviations from their mean.

    values  where there are many, the largest of every `each` neighbours
    best    (task, score) of the highest, the highest first
    """

    values: list[float]
    each: int
    best: list[tuple[str, float]]


def scores(model: SupSup, inputs: object, candidates: list[str], how: Inference | None = None) -> list[TaskScores]:
    """The scores of these tasks for each input of [n, …], as the first pass of inference has them.

    −∂Obj/∂α at the mean of the masks; for "exhaustive" minus the objective under each mask; where tasks are found by
    their features, the log-likelihood of those. `how` in place of the model's own setting.
    """
    how = how or model.inference
    tasks, bank, asking = state_of(model).tasks, state_of(model).bank, predictor_of(model)
    indices = tasks.indices(candidates)
    every = len(set(indices)) == len(bank)
    views = tasks.views(None if every else indices)
    images, classes = asking.images(inputs, views), tasks.most_classes(candidates)
    if how.needs_profiles:
        likely = asking.likelihoods(images, views, None if every else indices)
        if likely is not None:
            return [_shown(row, candidates) for row in likely[:, indices].cpu().double()]
        how = Inference()
    if how.method == "exhaustive":
        level = LEVELS[how.objective]
        seen = (images.seen(tasks.at(index).info.inputs) for index in indices)
        outputs = (state_of(model).switched.run(bank, index, x) for index, x in zip(indices, seen))
        found = torch.stack([-level(each, classes) for each in outputs], 1)
    else:
        shown = [TaskView(images.seen(kind)[:, None], members) for kind, members in views]
        found = first_gradient(state_of(model).net, bank, shown, indices, classes, how)
    return [_shown(row, candidates) for row in found.cpu().double()]


def _shown(found: Tensor, names: list[str]) -> TaskScores:
    spread = float(found.std(correction=0)) if len(found) > 1 else 0.0
    standard = (found - found.mean()) / spread if spread > 0 else torch.zeros_like(found)
    standard = standard.nan_to_num()
    each = -(-len(standard) // _MOST_SHOWN)
    values = [round(float(piece.max()), 3) for piece in standard.split(each)]
    top = standard.topk(min(_MOST_NAMED, len(standard)))
    best = [(names[index], round(value, 3)) for value, index in zip(top.values.tolist(), top.indices.tolist())]
    return TaskScores(values, each, best)
