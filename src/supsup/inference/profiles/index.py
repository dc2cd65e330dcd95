"""The profiles of all tasks, ready to be searched by features: one product of matrices for an image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from supsup.inference.profiles.gaussians import SMOOTHING, Gaussians, task_likelihood
from supsup.inference.profiles.profile import TaskProfile
from supsup.runtime.errors import SupSupError


class GaussianIndex:
    """The Gaussians of many tasks, compared with one covariance: the mean of all tasks' covariances.

    first  an index of earlier tasks, to which these are added
    """

    def __init__(self, tasks: Sequence[Gaussians], device: torch.device, first: GaussianIndex | None = None) -> None:
        before: list[Tensor] = [] if first is None else first._means
        self._means: list[Tensor] = [*before, *(each.means.to(device, torch.float64) for each in tasks)]
        features = self._means[0].shape[1]
        if any(means.shape[1] != features for means in self._means):
            raise SupSupError(
                "tasks were learned with different numbers of features; give the task, or learn them again"
            )
        self._sum = torch.zeros(features, features, dtype=torch.float64, device=device)
        if first is not None:
            self._sum += first._sum
        for each in tasks:  # one by one: the sum does not depend on which tasks were added together
            _add_covariance(self._sum, each)
        self.classes = [len(means) for means in self._means]
        ends = torch.tensor(self.classes).cumsum(0).tolist()
        self.columns = [slice(end - count, end) for end, count in zip(ends, self.classes)]
        covariance = self._sum / len(self._means)
        variance = covariance.diagonal().mean().clamp(min=torch.finfo(torch.float32).tiny)
        covariance.diagonal().add_(SMOOTHING * variance)
        means = torch.cat(self._means)
        middle = means.mean(0)
        self._factor = torch.linalg.cholesky(covariance)
        centred = means - middle
        weights = torch.cholesky_solve(centred.T, self._factor).T
        self._constant = (-0.5 * (weights * centred).sum(1)).float()
        self._weights, self._middle = weights.float(), middle.float()

    def class_scores(self, features: Tensor, *, absolute: bool = False) -> Tensor:
        """log p(features | class) [n, classes of all tasks], up to a constant per image that all classes share.

        absolute  with that constant: needed where tasks preprocess an image differently
        """
        centred = features - self._middle
        scores = centred @ self._weights.T + self._constant
        if absolute:
            whitened = torch.linalg.solve_triangular(self._factor, centred.double().T, upper=False)
            scores = scores - 0.5 * whitened.square().sum(0).float()[:, None]
        return scores

    def task_scores(self, scores: Tensor) -> Tensor:
        """log p(features | task) [n, tasks] from those of classes, all classes of a task equally frequent."""
        return task_likelihood(scores, self.classes)


def _add_covariance(total: Tensor, task: Gaussians) -> None:
    """Add a task's covariance matrix to a sum [d, d]."""
    axes, spread, rest = (value.to(total) for value in task[1:])
    total.addmm_(axes.T * (spread - rest), axes)
    total.diagonal().add_(rest)


class ProfileIndex(NamedTuple):
    """The profiles with a number of features, at a version of the task table; it is never changed, only replaced.

    place  where a task's Gaussians are in `gaussians`, by the task's index
    """

    version: object = None
    features: int = 0
    profiles: Sequence[TaskProfile] = ()
    gaussians: GaussianIndex | None = None
    place: Mapping[int, int] = {}

    def updated(
        self, version: object, features: int, every: Sequence[TaskProfile | None], device: torch.device
    ) -> ProfileIndex:
        """At another version, from the profiles of all tasks; new ones are added to the Gaussians of the others."""
        fitting = [
            (index, profile) for index, profile in enumerate(every) if profile is not None and profile.fits(features)
        ]
        profiles = [profile for _, profile in fitting]
        grown = self.gaussians is not None and list(self.profiles) == profiles[: len(self.profiles)]
        gaussians, new = (self.gaussians, profiles[len(self.profiles) :]) if grown else (None, profiles)
        if new:
            gaussians = GaussianIndex([profile.gaussians for profile in new], device, gaussians)
        place = {index: number for number, (index, _) in enumerate(fitting)}
        return ProfileIndex(version, features, profiles, gaussians, place)

    def scores(
        self, features: Sequence[Tensor], view_of: Mapping[int, int], candidates: Sequence[int]
    ) -> FeatureScores | None:
        """How likely features [r, b, d] are for each candidate; None where one has no profile that fits.

        features  of the same images, for each way that tasks preprocess inputs
        view_of   which of those a task has, by its index; the first if missing
        """
        if self.gaussians is None or any(index not in self.place for index in candidates):
            return None
        gaussians, several = self.gaussians, len(features) > 1
        of_classes = [gaussians.class_scores(each.flatten(0, 1), absolute=several) for each in features]
        shape, device = features[0].shape[:2], features[0].device
        of_tasks = [gaussians.task_scores(scores).unflatten(0, shape).mean(1) for scores in of_classes]
        columns = torch.tensor([self.place[index] for index in candidates], device=device)
        levels = of_tasks[0][:, columns]
        for number in range(1, len(features)):
            in_view = torch.tensor([view_of.get(index, 0) == number for index in candidates], device=device)
            levels = torch.where(in_view, of_tasks[number][:, columns], levels)
        return FeatureScores([each.unflatten(0, shape) for each in of_classes], view_of, self, levels)


class FeatureScores(NamedTuple):
    """How likely the features of r decisions from b images each are.

    all_classes  log p(features | class) [r, b, classes of all tasks], for each view
    view_of      which view a task has, by its index; the first if missing
    of_tasks     log p(features | task) [r, candidates]
    """

    all_classes: list[Tensor]
    view_of: Mapping[int, int]
    profile_index: ProfileIndex
    of_tasks: Tensor

    def of_classes(self, index: int) -> Tensor:
        """[r, b, classes] of one task."""
        assert self.profile_index.gaussians is not None
        columns = self.profile_index.gaussians.columns[self.profile_index.place[index]]
        return self.all_classes[self.view_of.get(index, 0)][..., columns]
