"""A Gaussian for each class of a task in the space of features, and which class of which task an image is likely of.

A task keeps the means of its classes and the few directions in which its images vary most about them; in all others the
variance is one number. They are kept as whole numbers of one or two bytes and a scale, and nothing in them depends on
another task. Classes of different tasks are compared with one covariance, the mean of all tasks'.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from supsup.errors import SupSupError

_IMAGES = 4  # for each direction at least
_PASSES = 4  # of the power iteration
_LEAST = 1e-3  # of the mean variance of a feature over all classes, in every direction
_ROUND = 0.03  # of the mean variance, added to the variance in every direction


class Gaussians(NamedTuple):
    """The Gaussians of one task's C classes among d features.

    means       [C, d], float32
    directions  [g, r, d] of unit length, at right angles; g is 1 (earlier versions have C, one set for each class)
    variances   [g, r] along them
    rest        [g], the variance in every other direction
    """

    means: Tensor
    directions: Tensor
    variances: Tensor
    rest: Tensor

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, classes: int, directions: int) -> Gaussians:
        """From features [n, d] of images and their classes [n], with so many directions at most."""
        member = torch.nn.functional.one_hot(labels, classes).to(features.dtype)
        counts = member.sum(0)
        means = member.T @ features / counts.clamp(min=1)[:, None]
        least = _LEAST * float((features - features.mean(0)).square().mean()) + torch.finfo(torch.float32).tiny
        count = max(0, min(directions, (len(features) - classes) // _IMAGES, features.shape[1] - 1))
        found = _principal(features - means[labels], count, least, int((counts > 0).sum()))
        along, variances, rest = (value[None] for value in found)
        return cls(means, along, variances, rest)

    def likelihoods(self, features: Tensor) -> Tensor:
        """log p(features | task) [n] by the task's own covariance, all its classes equally frequent."""
        means, directions, variances, rest = (value.to(features.device) for value in self)
        axes, spread = directions[0], variances[0]
        along = ((features @ axes.T)[:, None] - means @ axes.T).square()  # [n, C, r]
        lengths = features.square().sum(1)[:, None] + means.square().sum(1)
        distance = (lengths - 2 * features @ means.T - along.sum(-1)).clamp(min=0)  # in all other directions
        volume = spread.log().sum() + (features.shape[1] - len(axes)) * rest.log()
        found: Tensor = (-0.5 * ((along / spread).sum(-1) + distance / rest + volume)).logsumexp(-1)
        return found - math.log(len(means))


def whole_numbers(vectors: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """Whole numbers of a kind [..., d], and the scale of each vector [...]."""
    scales = (vectors.abs().amax(-1) / torch.iinfo(kind).max).clamp(min=torch.finfo(torch.float32).tiny)
    return (vectors / scales[..., None]).round().to(kind), scales


def _principal(centred: Tensor, count: int, least: float, means: int) -> tuple[Tensor, Tensor, Tensor]:
    """The directions [r, d] in which rows vary most, the variance along each, and the mean variance in all others."""
    n, d = centred.shape
    freedom = max(1, n - means)
    total = centred.double().square().sum() / freedom
    directions, variances = centred.new_zeros(0, d), centred.new_zeros(0)
    if count > 0:
        start = centred[:: max(1, n // count)][:count].T + 1e-6 * torch.eye(d, count, device=centred.device)
        basis = torch.linalg.qr(start).Q
        for _ in range(_PASSES):
            basis = torch.linalg.qr(centred.T @ (centred @ basis)).Q
        seen = (centred @ basis).double()
        values, turn = torch.linalg.eigh(seen.T @ seen / freedom)
        directions, variances = (basis.double() @ turn).T.float(), values.float().clamp(min=least)
    rest = (total - variances.double().sum()) / (d - count)
    return directions, variances, rest.float().clamp(min=least)


class Gallery:
    """The Gaussians of many tasks, compared with one covariance: one product of matrices for an image.

    first  a gallery of the tasks before these, which are added to it
    """

    def __init__(self, tasks: Sequence[Gaussians], device: torch.device, first: Gallery | None = None) -> None:
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
        for each in tasks:  # one after the other, so that the sum is the same whenever tasks came
            _add_covariance(self._sum, each)
        self.classes = [len(means) for means in self._means]
        ends = torch.tensor(self.classes).cumsum(0).tolist()
        self.columns = [slice(end - count, end) for end, count in zip(ends, self.classes)]
        self._solve()

    def __len__(self) -> int:
        return len(self._means)

    def _solve(self) -> None:
        covariance = self._sum / len(self)
        variance = covariance.diagonal().mean().clamp(min=torch.finfo(torch.float32).tiny)
        covariance.diagonal().add_(_ROUND * variance)
        means = torch.cat(self._means)
        middle = means.mean(0)
        self._factor = torch.linalg.cholesky(covariance)
        centred = means - middle
        weights = torch.cholesky_solve(centred.T, self._factor).T
        self._constant = (-0.5 * (weights * centred).sum(1)).float()
        self._weights, self._middle = weights.float(), middle.float()

    def class_scores(self, features: Tensor, *, absolute: bool = False) -> Tensor:
        """log p(features | class) [n, classes of all tasks], all but a number that an image has for all classes.

        absolute  with that number: features of one image are different ones for different tasks
        """
        centred = features - self._middle
        scores = centred @ self._weights.T + self._constant
        if absolute:
            whitened = torch.linalg.solve_triangular(self._factor, centred.double().T, upper=False)
            scores = scores - 0.5 * whitened.square().sum(0).float()[:, None]
        return scores

    def task_scores(self, scores: Tensor) -> Tensor:
        """log p(features | task) [n, tasks] from those of classes, all classes of a task equally frequent."""
        if len(set(self.classes)) == 1:
            each_task: Tensor = scores.unflatten(1, (len(self), -1)).logsumexp(-1)
            return each_task - math.log(self.classes[0])
        each = [scores[:, columns].logsumexp(1) - math.log(count) for columns, count in zip(self.columns, self.classes)]
        return torch.stack(each, 1)


def _add_covariance(total: Tensor, task: Gaussians) -> None:
    """Add a task's covariance matrix to a sum [d, d]."""
    axes = task.directions[0].to(total)
    rest = task.rest[0].to(total)
    total.addmm_(axes.T * (task.variances[0].to(total) - rest), axes)
    total.diagonal().add_(rest)
