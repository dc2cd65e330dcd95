"""Features: tasks are found by the profiles they were given when they were learned; no mask is run."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from supsup.inference.candidates import Candidates, Decision, TaskNetworks
from supsup.inference.objectives import CALIBRATED
from supsup.inference.profiles.features import extract_features
from supsup.inference.profiles.profile import FeatureScores
from supsup.runtime.errors import SupSupError

_ENOUGH_IMAGES, _ENOUGH_FOUND = 50, 0.6  # held-back images needed for a warning; share of them found that needs none


def decide_features(candidates: Candidates) -> Decision:
    """The task whose profile is likeliest; an error where a candidate has none."""
    return candidates.highest(task_likelihoods(candidates))


def task_likelihoods(candidates: Candidates) -> Tensor:
    """log p(features | task) [r, candidates]; an error where a candidate has no profile to compare."""
    found = feature_scores(candidates)
    if found is None:
        lacking = [task for task in candidates.tasks if task.profile is None or not task.profile.comparable]
        raise no_profile((lacking or candidates.tasks)[0].name)
    return found.of_tasks


def feature_scores(candidates: Candidates) -> FeatureScores | None:
    """How likely the features are for every candidate; None where one has no profile that fits them."""
    networks, views = candidates.networks, candidates.views
    if any(task.profile is None for task in candidates.tasks):
        return None
    features = [extract_features(networks.net, view.x.flatten(0, 1)).unflatten(0, view.x.shape[:2]) for view in views]
    profile_index = networks.profile_index(features[0].shape[-1])
    found = profile_index.scores(features, candidates.view_of, candidates.indices)
    if found is not None:
        _warn_of_similar_tasks(candidates)
    return found


def unfamiliar(networks: TaskNetworks, index: int, x: Tensor, share: float) -> Tensor:
    """Which images [n, …] are less familiar to a task than this share of the images it was learned with: [n]."""
    task, features = networks.tasks.at(index), extract_features(networks.net, x)
    profile = task.profile
    if profile is None or not profile.fits(features.shape[1]):
        raise no_profile(task.name)
    energy = -CALIBRATED["energy"](networks.outputs(index, x), task.classes)
    return profile.familiarity(profile.gaussians.likelihoods(features), energy) < profile.threshold(share)


def no_profile(name: str) -> SupSupError:
    """The error for a task that features cannot find."""
    return SupSupError(
        f"task {name!r} has no profile (no statistics to recognise it by): learn it again while the model's inference "
        "is Inference('auto') or 'features'; `observe` and earlier versions made none"
    )


def _warn_of_similar_tasks(candidates: Candidates) -> None:
    """Warn once where held-back images were often taken for another task's when the tasks were learned."""
    networks = candidates.networks
    if networks.warned or networks.checked_version is networks.tasks.version:
        return
    networks.checked_version = networks.tasks.version
    checked = torch.stack([task.profile.checked for task in candidates.tasks if task.profile is not None])
    images, found = checked.sum(0).tolist()
    if images >= _ENOUGH_IMAGES and found < _ENOUGH_FOUND * images:
        networks.warned = True
        warnings.warn(
            f"tasks are similar: only {100 * found / images:.0f} % of held-back images were assigned to the right one. "
            "Give the task, predict(x, task=…), or infer it from many images at once, infer_task(x, per='batch')",
            stacklevel=7,  # the caller of `predict`, with "auto"
        )
