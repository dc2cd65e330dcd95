"""A Gaussian in the space of features for each class of a task.

A task keeps the means of its classes and the few directions in which its images vary most about them; in all others the
variance is one number. They are stored as integers of one or two bytes with a scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_IMAGES = 4  # at least, for each direction
_PASSES = 4  # of the power iteration
_APART = 1e-6  # keeps equal columns apart, relative to their length
_LEAST = 1e-3  # least variance in every direction, relative to the mean variance of a feature
SMOOTHING = 0.03  # added to the variance in every direction, relative to the mean variance


class Gaussians(NamedTuple):
    """The Gaussians of a task with C classes and d features; of several such tasks, with a leading dimension each.

    means       [C, d], float32
    directions  [r, d] of unit length, at right angles
    variances   [r] along them
    rest        [], the variance in every other direction
    """

    means: Tensor
    directions: Tensor
    variances: Tensor
    rest: Tensor

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, classes: int, directions: int) -> Gaussians:
        """From features [n, d] of images and their classes [n], with at most this many directions."""
        images, numbers = features.shape[-2:]
        member = torch.nn.functional.one_hot(labels, classes).to(features.dtype)
        counts = member.sum(-2)
        means = member.mT @ features / counts.clamp(min=1)[..., None]
        variance = (features - features.mean(-2, keepdim=True)).square().mean((-2, -1))
        least = (_LEAST * variance.double() + torch.finfo(torch.float32).tiny).float()
        count = max(0, min(directions, (images - classes) // _IMAGES, numbers - 1))
        freedom = (images - (counts > 0).sum(-1)).clamp(min=1)
        centred = features - means.gather(-2, labels[..., None].expand(features.shape))
        return cls(means, *_principal(centred, count, least, freedom))

    def likelihoods(self, features: Tensor) -> Tensor:
        """log p(features | task) [n] by the task's covariance, all its classes equally frequent."""
        means, axes, spread, rest = (value.to(features.device) for value in self)
        along = ((features @ axes.T)[:, None] - means @ axes.T).square()  # [n, C, r]
        lengths = features.square().sum(1)[:, None] + means.square().sum(1)
        distance = (lengths - 2 * features @ means.T - along.sum(-1)).clamp(min=0)  # in all other directions
        volume = spread.log().sum() + (features.shape[1] - len(axes)) * rest.log()
        found: Tensor = (-0.5 * ((along / spread).sum(-1) + distance / rest + volume)).logsumexp(-1)
        return found - math.log(len(means))

    def recognised(self, features: Tensor, rivals: Sequence[Tensor]) -> Tensor:
        """Which rows [n, d] fit this task better than others with these means, all with its covariance."""
        _, axes, spread, rest = self
        means = torch.cat([self.means, *rivals]) - self.means.mean(0)
        centred = features - self.means.mean(0)
        more = SMOOTHING * (spread.sum() + (features.shape[1] - len(axes)) * rest) / features.shape[1]
        weights = means / (rest + more)
        weights = weights - ((means @ axes.T) * (1 / (rest + more) - 1 / (spread + more))) @ axes
        scores = centred @ weights.T - 0.5 * (weights * means).sum(1)
        return task_likelihood(scores, [len(self.means), *map(len, rivals)]).argmax(1) == 0


def task_likelihood(scores: Tensor, classes: Sequence[int]) -> Tensor:
    """log p(features | task) [n, tasks] from log p(features | class), the classes of a task equally frequent."""
    if len(set(classes)) == 1:
        each_task: Tensor = scores.unflatten(1, (len(classes), -1)).logsumexp(-1)
        return each_task - math.log(classes[0])
    each = [own.logsumexp(1) - math.log(own.shape[1]) for own in scores.split(list(classes), 1)]
    return torch.stack(each, 1)


def whole_numbers(vectors: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """Vectors as integers of a type [..., d], and the scale of each [...]."""
    scales = (vectors.abs().amax(-1) / torch.iinfo(kind).max).clamp(min=torch.finfo(torch.float32).tiny)
    return (vectors / scales[..., None]).round().to(kind), scales


def _principal(centred: Tensor, count: int, least: Tensor, freedom: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The directions [r, d] in which rows [n, d] vary most, the variance along each, and the mean in all others.

    least    the smallest variance
    freedom  degrees of freedom, by which sums of squares are divided
    """
    n, d = centred.shape[-2:]
    total = centred.double().square().sum((-2, -1)) / freedom
    directions, variances = centred[..., :0, :], centred[..., :0, 0]
    if count > 0:
        start = centred[..., :: max(1, n // count), :][..., :count, :].mT
        basis = _orthonormal(start + 1e-6 * torch.eye(d, count, device=centred.device))
        for _ in range(_PASSES):
            basis = _orthonormal(centred.mT @ (centred @ basis))
        seen = (centred @ basis).double()
        values, turn = torch.linalg.eigh(seen.mT @ seen / freedom[..., None, None])
        directions = (basis.double() @ turn).mT.float()
        variances = values.float().maximum(least[..., None])
    rest = (total - variances.double().sum(-1)) / (d - count)
    return directions, variances, rest.float().maximum(least)


def _orthonormal(columns: Tensor) -> Tensor:
    """Orthonormal columns [d, r] with the same span.

    On a GPU `qr` takes one matrix after the other; Cholesky factors of many Gram matrices are one call.
    """
    return torch.linalg.qr(columns).Q if columns.device.type == "cpu" else orthonormal_by_factors(columns)


def orthonormal_by_factors(columns: Tensor) -> Tensor:
    """The same for any number of matrices at once; columns that depend on others are replaced."""
    found = columns.double()
    apart = _APART * torch.eye(*columns.shape[-2:], dtype=found.dtype, device=found.device)
    found = torch.nn.functional.normalize(torch.nn.functional.normalize(found, dim=-2) + apart, dim=-2)
    for _ in range(2):  # the second corrects rounding
        factor = torch.linalg.cholesky_ex(found.mT @ found).L
        found = torch.linalg.solve_triangular(factor, found.mT, upper=False).mT
    return found.float()
