"""Features: tasks are found by the profiles they were given when they were learned; no mask is run.

Auto, the default: features first, the best few masks where they leave doubt, one gradient among many tasks.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from supsup.inference.candidates import Candidates, Decision, TaskNetworks, first_gradient
from supsup.inference.exhaustive import decide_exhaustive, mask_scores
from supsup.inference.gradient import Goal, choose_layers
from supsup.inference.one_shot import decide_one_shot
from supsup.inference.profiles.features import extract_features
from supsup.inference.profiles.profile import FeatureScores, familiarity, output_energy, profile_answers
from supsup.runtime.errors import SupSupError

_ENOUGH_IMAGES, _ENOUGH_FOUND = 50, 0.6  # images needed for a warning; expected share of tasks found that needs none
_FEW_TASKS = 32  # up to here every mask can be tried; among more, a gradient helps
_CLOSE = 2.0  # a gradient is computed where the best two scores are closer than this
_OUTSTANDING = 2.0  # weight of a standard deviation beyond the largest of as many random numbers


def decide_features(candidates: Candidates) -> Decision:
    """The task whose profile is likeliest; an error where a candidate has none."""
    return candidates.highest(task_likelihoods(candidates), are_log_p=True)


def task_likelihoods(candidates: Candidates) -> Tensor:
    """log p(features | task) [r, candidates]; an error where a candidate has no profile to compare."""
    found = feature_scores(candidates)
    if found is None:
        lacking = [task for task in candidates.tasks if task.profile is None or not task.profile.fitted]
        raise no_profile((lacking or candidates.tasks)[0].name)
    return found.of_tasks


def feature_scores(candidates: Candidates) -> FeatureScores | None:
    """How likely the features are for every candidate; None where one has no profile that fits them."""
    networks, views = candidates.networks, candidates.views
    if any(task.profile is None or not task.profile.fitted for task in candidates.tasks):
        return None
    profile_index = networks.profile_index(candidates.features[0].shape[-1])
    found = profile_index.scores(candidates.features, candidates.view_of, candidates.indices)
    if found is not None and profile_index.shares is not None and len(views) > 1:
        shape = views[0].x.shape[2:]
        scales = [0.0 if task.info.inputs is None else task.info.inputs.log_scale(shape) for task in candidates.tasks]
        # Densities of raw inputs: those of preprocessed ones cannot be compared if candidates scale differently.
        added = profile_index.weights[0] * torch.tensor(scales, device=found.of_tasks.device)
        found = found._replace(of_tasks=found.of_tasks + added)
    return found


def unfamiliar(networks: TaskNetworks, index: int, x: Tensor, shares: Tensor) -> Tensor:
    """Which images [n, …] are less familiar to a task than these shares [n] of the images it was learned with: [n]."""
    task = networks.tasks.at(index)
    profile = task.profile
    if profile is None or not profile.fits((features := extract_features(networks.net, x)).shape[1]):
        raise no_profile(task.name)
    scores = {
        "likelihood": profile.likelihood(features),
        "energy": output_energy(networks.outputs(index, x), task.classes),
        "discriminant": profile.gaussians.on(features.device).class_scores(features).amax(1),
    }
    return familiarity(scores, profile.spread) < profile.threshold(shares)


def with_profile(networks: TaskNetworks, index: int, x: Tensor, outputs: Tensor) -> Tensor:
    """Logits [n, C] of a task's classes: its mask's and, if it has a say, what its profile says, by fitted weights."""
    profile = networks.tasks.at(index).profile
    if profile is None or not profile.answers:
        return outputs
    return profile_answers(extract_features(networks.net, x), outputs, *profile.answering)


def no_profile(name: str) -> SupSupError:
    """The error for a task that features cannot find."""
    return SupSupError(
        f"task {name!r} has no profile (no statistics to recognise it by): learn it again while the model's inference "
        "is Inference('auto') or 'features'; `observe` and earlier versions made none"
    )


def _warn_of_similar_tasks(networks: TaskNetworks, decision: Decision) -> Decision:
    """The decision; a warning, once, where it is doubtful on average."""
    sure = decision.margin
    if not networks.warned and isinstance(sure, Tensor) and len(sure) >= _ENOUGH_IMAGES:
        expected = float(sure.mean())
        if expected < _ENOUGH_FOUND:
            networks.warned = True
            warnings.warn(
                f"tasks are similar: about {100 * expected:.0f} % of these images are expected to be assigned to the "
                "right one. Give the task, predict(x, task=…), or infer it from many images at once, "
                "infer_task(x, per='batch')",
                stacklevel=6,  # the caller of `predict`
            )
    return decision


@dataclass(frozen=True)
class AutoWeights:
    """How features and masks decide together.

    tried            most masks that are tried for one decision
    doubt            a task is tried if its feature score is at most this far behind the best
    energy           weight of a deviation of a mask's energy
    trained          the same on a network with trained weights
    self_labelled    the same for masks that learned rotations as classes, whose energy says most
    lowest, highest  limits of that deviation: to know an image better than its own is no evidence

    What features and log-probabilities count is fitted for each task. The energy's weights were chosen on held-back
    training images. SplitCIFAR100 with rotations as classes: 47 % of the labels with 0.3, 50 % with 1. Pretrained: 72 %
    with 0.3, less with 1. Omniglot, pairs of digits, rotated MNIST: 0.3 loses up to 1 % of the tasks, 1 up to 4 %.
    """

    tried: int = 8
    doubt: float = 6.0
    energy: float = 0.1
    trained: float = 0.3
    self_labelled: float = 1.0
    lowest: float = -6.0
    highest: float = 0.0


_WEIGHTS = AutoWeights()


def decide_auto(candidates: Candidates) -> Decision:
    """Features decide; where they leave doubt, masks and a gradient do; without profiles, `_fallback`.

    Features of vectors decide alone: masks find their tasks no better (docs/task-inference.md).
    """
    found = feature_scores(candidates)
    if found is None:
        return _fallback(candidates)
    if found.profile_index.shares is None:
        decision = _best_masks(candidates, found)
    else:
        decision = candidates.highest(found.of_tasks, "features", are_log_p=True)
    return _warn_of_similar_tasks(candidates.networks, decision)


def auto_scores(candidates: Candidates) -> Tensor:
    """The scores [r, candidates] of the first pass: of features, or of what is used without them."""
    found = feature_scores(candidates)
    if found is not None:
        return found.of_tasks
    return mask_scores(candidates) if len(candidates.indices) <= _FEW_TASKS else first_gradient(candidates)


def _fallback(candidates: Candidates) -> Decision:
    """Where a candidate has no profile, or one of an earlier version: every mask of a few tasks, else One-Shot."""
    if len(candidates.indices) <= _FEW_TASKS:
        return decide_exhaustive(candidates)._replace(method_used="exhaustive")
    return decide_one_shot(candidates)._replace(method_used="one-shot")


def _best_masks(candidates: Candidates, found: FeatureScores) -> Decision:
    """The few best by features are scored with their masks.

    Among many tasks, where the best two are close, the mask that stands out most in one gradient is tried too, and
    every candidate's score grows by how far it stands out.
    """
    levels = found.of_tasks
    best = levels.topk(min(_WEIGHTS.tried, levels.shape[1]), 1)
    open_ = best.values >= best.values[:, :1] - _WEIGHTS.doubt
    open_ &= open_.sum(1, keepdim=True) > 1
    tried = torch.zeros_like(levels, dtype=torch.bool).scatter_(1, best.indices, open_)
    scores = levels + _energy_weight(candidates) * _WEIGHTS.lowest
    _try_masks(candidates, found, tried, scores)
    close = None
    if _has_gradient(candidates):
        first, second = scores.topk(2, 1).values.T
        close = (first - second < _CLOSE).nonzero().flatten()
    if close is None or not len(close):
        return candidates.highest(scores, "features and masks", are_log_p=True)
    outstanding = torch.zeros_like(levels)
    outstanding[close] = _outstanding(candidates, close)
    most = (outstanding > 0) & (outstanding == outstanding.amax(1, keepdim=True))
    _try_masks(candidates, found, most & ~tried, scores)
    scores = scores + _OUTSTANDING * outstanding
    return candidates.highest(scores, "features, masks and a gradient", are_log_p=True)


def _try_masks(candidates: Candidates, found: FeatureScores, tried: Tensor, scores: Tensor) -> None:
    """Fill in scores [r, candidates] where `tried` says that a mask is run.

    A score is how likely the classes of the task are by features and by its mask together, plus the mask's energy in
    deviations from what its profile expects.
    """
    for column in tried.any(0).nonzero().flatten().tolist():
        index, rows = candidates.indices[column], tried[:, column].nonzero().flatten()
        outputs, task = candidates.outputs(index, rows), candidates.tasks[column]
        classes = task.classes or outputs.shape[-1]
        assert task.profile is not None
        weight = found.profile_index.masks if task.profile.mask_weight > 0 else 0.0
        log_p = weight * outputs[..., :classes].log_softmax(-1)
        likely = found.of_classes(index)[rows] + log_p
        standard = task.profile.spread["energy"].standard(output_energy(outputs, classes).mean(1))
        standard = standard.clamp(_WEIGHTS.lowest, _WEIGHTS.highest)
        scores[rows, column] = likely.logsumexp(-1).mean(1) + _energy_weight(candidates) * standard


def _energy_weight(candidates: Candidates) -> float:
    """Tasks of a model are learned alike, so the first one stands for all."""
    if candidates.tasks[0].info.rotated:
        return _WEIGHTS.self_labelled
    return _WEIGHTS.trained if candidates.networks.net.pretrained else _WEIGHTS.energy


def _has_gradient(candidates: Candidates) -> bool:
    """Whether there are many tasks, and a first layer that takes the whole input: the gradient is taken there."""
    net = candidates.networks.net
    return len(candidates.indices) > _FEW_TASKS and not net.pretrained and len(next(iter(net.shapes.values()))) == 2


def _outstanding(candidates: Candidates, decisions: Tensor) -> Tensor:
    """By how many deviations candidates stand out in one gradient [n, candidates], at least 0.

    Only what goes beyond the largest of as many random numbers counts.
    """
    net, classes = candidates.networks.net, candidates.goal.classes
    outputs = net.run(candidates.views[0].x[:1, 0], net.weights).shape[-1]
    goal, layers = Goal("G" if outputs > classes else "H", classes), choose_layers(net, "first")
    g = candidates.gradient(candidates.uniform, decisions, goal, layers)[:, candidates.index_tensor]
    deviation = g.std(1, keepdim=True).clamp(min=torch.finfo(g.dtype).tiny)
    random = math.sqrt(2 * math.log(len(candidates.indices)))
    return ((g - g.mean(1, keepdim=True)) / deviation - random).nan_to_num(0.0).clamp(min=0)
