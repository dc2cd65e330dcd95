"""Which task do these images belong to, for BatchE: One-Shot over its rank-one matrices, and ABatchE.

one-shot  W ⊙ Σ αᵢ rᵢ sᵢᵀ at α = 1/k: the largest −∂Obj/∂αᵢ wins. One backward pass.
abatche   the data is repeated k times, each time with another task's vectors: the lowest objective, summed over the
          images, wins. No backward pass, but k forward passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from torch import Tensor

from supsup.inference import objectives
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import CheckedFields, choice, whole

if TYPE_CHECKING:
    from supsup_paper.baselines.batche import BatchE

BatchEMethod = Literal["one-shot", "abatche"]
_VALUES = {"cpu": 1 << 24, "cuda": 1 << 28}  # how many numbers one pass may hold


@dataclass(frozen=True)
class TaskInference(CheckedFields):
    """How BatchE infers a task.

    objective  "H" entropy, "M" minus the largest probability, "G" superfluous outputs only
    images     so many images of a batch decide (None: all of them)
    """

    method: BatchEMethod = "one-shot"
    objective: Annotated[str, choice(*objectives.OBJECTIVES)] = "H"
    images: Annotated[int, whole(1)] | None = None


def infer_batche_task(model: BatchE, x: Tensor, names: Sequence[str], classes: int, how: TaskInference) -> Tensor:
    """The index of the task, among those named, that each batch of x [r, b, …] seems to belong to."""
    x = x[:, : how.images]
    if not model.stackable:
        scores = batche_plain_one_shot if how.method == "one-shot" else batche_plain_exhaustive
        return torch.stack([scores(model, batch, names, classes, how.objective) for batch in x]).argmax(1)
    vectors = {
        key: torch.stack([model.own[name][key] for name in names])
        for key in model.own[names[0]]
        if key not in model.shared
    }
    x = x.flatten(2)
    widest = max(max(model.shared[name].shape) for name in model.layers)
    if how.method == "one-shot":
        row = max(x.shape[1] * widest, widest * widest, len(names) * widest)
        pieces = x.split(max(1, _VALUES[x.device.type] // row))
        return torch.cat([batche_one_shot(model, piece, vectors, classes, how.objective).argmax(1) for piece in pieces])
    pieces = x.split(max(1, _VALUES[x.device.type] // (len(names) * x.shape[1] * widest)))
    return torch.cat([batche_exhaustive(model, piece, vectors, classes, how.objective).argmax(1) for piece in pieces])


def batche_one_shot(model: BatchE, x: Tensor, vectors: dict[str, Tensor], classes: int, objective: str) -> Tensor:
    """−∂Obj/∂αᵢ [r, k] for fully connected networks, from vectors [k, …], forward and backward by hand."""
    _needs_rank_one(model)
    rows, images = x.shape[:2]
    pairs = [(vectors[f"out/{name}"], vectors[f"in/{name}"]) for name in model.layers]
    base = [model.shared[name] for name in model.layers]
    effective = [w * (out.T @ inputs) / len(out) for w, (out, inputs) in zip(base, pairs)]
    hidden = [x.flatten(0, 1)]
    for weight in effective[:-1]:
        hidden.append((hidden[-1] @ weight.T).relu_())
    delta = objectives.gradient(objective, hidden[-1] @ effective[-1].T, classes).div_(-images)
    scores = torch.zeros(rows, len(pairs[0][0]), device=x.device)
    for i in reversed(range(len(base))):
        query = torch.bmm(delta.view(rows, images, -1).mT, hidden[i].view(rows, images, -1)).mul_(base[i])
        out, inputs = pairs[i]
        scores += (out @ query).mul_(inputs).sum(-1)
        if i:
            delta = (delta @ effective[i]).mul_(hidden[i] > 0)
    return scores


def batche_exhaustive(model: BatchE, x: Tensor, vectors: dict[str, Tensor], classes: int, objective: str) -> Tensor:
    """Minus the objective, summed over a batch's images, under each task: [r, k]."""
    rows, images = x.shape[:2]
    repeated = x.reshape(1, rows * images, -1)
    outputs = model.run_side_by_side(model.shared | vectors, repeated)
    level = objectives.LEVELS[objective](outputs, classes)
    return -level.view(-1, rows, images).sum(-1).T


def batche_plain_one_shot(model: BatchE, x: Tensor, names: Sequence[str], classes: int, objective: str) -> Tensor:
    """−∂Obj/∂αᵢ [k] for one batch on any module, by autograd: what defines the meaning."""
    from supsup_paper.baselines.batche import rank_one

    _needs_rank_one(model)
    with torch.enable_grad():
        alpha = torch.full((len(names),), 1.0 / len(names), device=x.device, requires_grad=True)
        weights = {name: model.shared[name] for name in model.shared}
        for layer in model.layers:
            matrices = [
                rank_one(model.own[name][f"out/{layer}"], model.own[name][f"in/{layer}"], weights[layer].ndim)
                for name in names
            ]
            weights[layer] = weights[layer] * sum(a * matrix for a, matrix in zip(alpha, matrices))
        outputs = model.run_with(weights, x)
        value = objectives.OBJECTIVES[objective](outputs, classes).mean()
    return -torch.autograd.grad(value, alpha)[0]


def batche_plain_exhaustive(model: BatchE, x: Tensor, names: Sequence[str], classes: int, objective: str) -> Tensor:
    """Minus the summed objective [k] for one batch on any module, task by task."""
    level = objectives.LEVELS[objective]
    return torch.stack([-level(model.run(model.state_of(name), x), classes).sum() for name in names])


def _needs_rank_one(model: BatchE) -> None:
    if model.last != "rank-one":
        raise SupSupError(
            "one-shot needs a rank-one matrix on every layer: BatchE(last='rank-one'), or method='abatche'"
        )
