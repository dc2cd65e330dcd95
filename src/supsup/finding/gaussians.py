"""A Gaussian for each class of a task in the space of features: means, and the few directions in which images vary.

Directions are a class's own where a task has few classes, else shared by its classes; in all others the variance is one
number. They are kept as whole numbers from −127 to 127 and a scale. Nothing depends on another task.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from supsup.errors import SupSupError

_OWN = 24  # vectors of a task whose classes have directions of their own, with their means
_SHARED = 8  # directions that the classes of a task share where they are many
_IMAGES = 4  # for each direction at least
_PASSES = 12  # of the power iteration
_LEAST = 1e-3  # of the mean variance of a feature over all classes, in every direction
_AT_ONCE = 1 << 24  # numbers in memory


class Gaussians(NamedTuple):
    """The Gaussians of one task's C classes among d features.

    means       [C, d], float32
    directions  [g, r, d] of unit length, at right angles; g is C or 1
    variances   [g, r] along them
    rest        [g], the variance in every other direction
    """

    means: Tensor
    directions: Tensor
    variances: Tensor
    rest: Tensor

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, classes: int) -> Gaussians:
        """From features [n, d] of images and their classes [n]."""
        member = torch.nn.functional.one_hot(labels, classes).to(features.dtype)
        counts = member.sum(0)
        means = member.T @ features / counts.clamp(min=1)[:, None]
        centred = features - means[labels]
        least = _LEAST * float((features - features.mean(0)).square().mean()) + torch.finfo(torch.float32).tiny
        per_class = _OWN // classes - 1
        if per_class > 0 and int(counts.min()) >= _IMAGES * per_class:
            found = [_principal(centred[labels == c], per_class, least, 1) for c in range(classes)]
        else:
            shared = max(0, min(_SHARED, (len(features) - classes) // _IMAGES))
            found = [_principal(centred, shared, least, classes)]
        directions, variances, rest = (torch.stack(values) for values in zip(*found))
        return cls(means, directions, variances, rest)


def whole_numbers(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """int8 numbers [..., d], and the scale of each vector [...]."""
    scales = (vectors.abs().amax(-1) / 127).clamp(min=torch.finfo(torch.float32).tiny)
    return (vectors / scales[..., None]).round().to(torch.int8), scales


def _principal(centred: Tensor, count: int, least: float, means: int) -> tuple[Tensor, Tensor, Tensor]:
    """The directions [r, d] in which rows vary most, the variance along each, and the mean variance in all others."""
    n, d = centred.shape
    count = min(count, d - 1)
    freedom = max(1, n - means)
    total = centred.double().square().sum() / freedom
    directions = centred.new_zeros(0, d)
    variances = centred.new_zeros(0)
    if count > 0:
        scatter = (centred.T @ centred).double() / freedom
        basis = torch.linalg.qr(centred[:count].double().T + 1e-6 * torch.eye(d, count).to(scatter)).Q
        for _ in range(_PASSES):
            basis = torch.linalg.qr(scatter @ basis).Q
        values, turn = torch.linalg.eigh(basis.T @ scatter @ basis)
        directions, variances = (basis @ turn).T.float(), values.float().clamp(min=least)
    rest = (total - variances.double().sum()) / (d - count)
    return directions, variances, rest.float().clamp(min=least)


class Gallery:
    """The Gaussians of many tasks, those of one shape in one stack, on a device."""

    def __init__(self, tasks: Sequence[Gaussians], device: torch.device) -> None:
        self._tasks = len(tasks)
        alike: dict[tuple[torch.Size, torch.Size], list[int]] = {}
        for index, each in enumerate(tasks):
            alike.setdefault((each.means.shape, each.directions.shape), []).append(index)
        self._groups = [
            (torch.tensor(indices, device=device), _Stack([tasks[i] for i in indices], device))
            for indices in alike.values()
        ]

    def likelihoods(self, features: Tensor) -> Tensor:
        """log p(features | task) [n, tasks], all classes of a task equally frequent."""
        found = features.new_empty(len(features), self._tasks)
        for indices, stack in self._groups:
            if stack.features != features.shape[1]:
                raise SupSupError(
                    f"tasks were learned with {stack.features} features of an image, and this network has "
                    f"{features.shape[1]}: they are of another network. Give the task, or learn the tasks again"
                )
            at_once = max(1, _AT_ONCE // stack.width)
            found[:, indices] = torch.cat([stack.likelihoods(piece) for piece in features.split(at_once)])
        return found


class _Stack:
    """Gaussians of T tasks with the same numbers of classes and directions: one product of matrices for an image."""

    def __init__(self, tasks: Sequence[Gaussians], device: torch.device) -> None:
        means, directions, variances, rest = (torch.stack(values).to(device) for values in zip(*tasks))
        tasks_count, self._classes, self.features = means.shape
        self._shape = tasks_count, directions.shape[1], directions.shape[2]
        self.width = tasks_count * self._classes * max(1, directions.shape[2])
        self._vectors = torch.cat([means.flatten(0, 1), directions.flatten(0, 2)])
        self._lengths = means.square().sum(-1)  # [T, C]
        every = directions.expand(-1, self._classes, -1, -1)  # a task's own classes, or one for all of them
        self._along = torch.einsum("tcd,tcrd->tcr", means, every)
        self._precision, self._rest = variances.reciprocal(), rest
        volume = variances.log().sum(-1) + (self.features - directions.shape[2]) * rest.log()
        self._constant = -0.5 * volume.expand(-1, self._classes) - math.log(self._classes)

    def likelihoods(self, x: Tensor) -> Tensor:
        """[n, T] for features [n, d]."""
        tasks, groups, count = self._shape
        products = x @ self._vectors.T
        on_means, on_directions = products.split([tasks * self._classes, tasks * groups * count], 1)
        along = on_directions.view(len(x), tasks, groups, count) - self._along  # [n, T, C, r]
        squares = along.square()
        distance = x.square().sum(1)[:, None, None] - 2 * on_means.view(len(x), tasks, self._classes) + self._lengths
        outside = (distance - squares.sum(-1)).clamp(min=0) / self._rest
        inside = (squares * self._precision).sum(-1)
        found: Tensor = (self._constant - 0.5 * (inside + outside)).logsumexp(-1)
        return found
