"""Exhaustive: run every candidate's network, and take the task with the best objective."""

from __future__ import annotations

import torch
from torch import Tensor

from supsup.inference.candidates import Candidates, Decision
from supsup.inference.objectives import LEVELS
from supsup.inference.profiles.profile import CALIBRATED


def decide_exhaustive(candidates: Candidates) -> Decision:
    """The candidate whose network has the best score."""
    objective = candidates.settings.objective
    used = f"exhaustive, {objective}" if objective in CALIBRATED else ""
    return candidates.highest(mask_scores(candidates), used)


def mask_scores(candidates: Candidates) -> Tensor:
    """Minus the objective under every candidate's mask [r, candidates], the mean over the images of a decision.

    Calibrated objectives are in standard deviations from what a task's profile expects; raw if a profile is missing.
    """
    objective, tasks = candidates.settings.objective, candidates.tasks
    classes, calibrated = max(task.classes for task in tasks), objective in CALIBRATED
    profiles = [task.profile for task in tasks if task.profile is not None]
    spreads = [profile.spread[objective] for profile in profiles] if calibrated and len(profiles) == len(tasks) else []
    scores = []
    for column, (index, task) in enumerate(zip(candidates.indices, tasks)):
        outputs = candidates.outputs(index)
        if not calibrated:
            scores.append(-LEVELS[objective](outputs, classes).mean(1))
            continue
        score = CALIBRATED[objective](outputs, task.classes or outputs.shape[-1]).mean(1)
        scores.append(spreads[column].standard(score) if spreads else score)
    return torch.stack(scores, 1)
