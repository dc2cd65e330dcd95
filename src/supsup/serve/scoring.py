"""How every mask scored for one image: what task inference looked at, for whoever wants to see it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from supsup.inference import alpha_gradient, choose_layers
from supsup.learner import SupSup
from supsup.objectives import LEVELS
from supsup.query import Goal

_MOST_SHOWN = 400  # numbers of a plot
_MOST_NAMED = 5


@dataclass(frozen=True)
class Scores:
    """The scores of the candidates in order, as standard deviations from their mean.

    values  where there are many, the largest of every `each` neighbours
    best    (task, score) of the highest, the highest first
    """

    values: list[float]
    each: int
    best: list[tuple[str, float]]


def scores(model: SupSup, image: Tensor, candidates: list[str]) -> Scores:
    """The scores of these tasks for one image [1, …], as the first pass of inference has them.

    −∂Obj/∂α at the mean of the masks; for "exhaustive" minus the objective under each mask.
    """
    how, tasks = model.inference, model.state.tasks
    indices = torch.tensor(tasks.indices(candidates), device=model.device)
    classes = tasks.most_classes(candidates)
    if how.method == "exhaustive":
        level = LEVELS[how.objective]
        outputs = (model.state.switched.run(model.bank, index, image) for index in indices.tolist())
        found = -torch.stack([level(each, classes).mean() for each in outputs])
    else:
        alpha = None
        if len(candidates) < len(model.bank):
            alpha = torch.zeros(len(model.bank), device=model.device).index_fill_(0, indices, 1 / len(candidates))
        goal, layers = Goal(how.objective, classes), choose_layers(model.net, how.layers)
        found = alpha_gradient(model.net, model.bank, image[None], alpha, goal, layers)[0, indices]
    return _shown(found.cpu().double(), candidates)


def _shown(found: Tensor, names: list[str]) -> Scores:
    spread = float(found.std(correction=0)) if len(found) > 1 else 0.0
    standard = (found - found.mean()) / spread if spread > 0 else torch.zeros_like(found)
    standard = standard.nan_to_num()
    each = -(-len(standard) // _MOST_SHOWN)
    values = [round(float(piece.max()), 3) for piece in standard.split(each)]
    top = standard.topk(min(_MOST_NAMED, len(standard)))
    best = [(names[index], round(value, 3)) for value, index in zip(top.values.tolist(), top.indices.tolist())]
    return Scores(values, each, best)
