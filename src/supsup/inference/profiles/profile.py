"""`TaskProfile`: the statistics by which a task is recognised, in memory and in a model file.

It holds no image. None of it depends on another task, so after one is forgotten the others are found as if it had never
been learned. The exception is `checked`: it compares with the tasks of that time, and only a warning uses it.

A profile has a Gaussian in the space of features for each class: its mean, and the few directions in which the task's
images vary most; in all others the variance is one number. They are stored as one- or two-byte integers with a scale.
`ProfileIndex` holds the Gaussians of all tasks, so that one product of matrices scores an image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from supsup.runtime.errors import SupSupError

SHARES = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of a task's images that are less familiar
_ENERGY = 0.3  # its weight in the mixture
_SMALLEST, _LARGEST = 1e-30, 1e15  # numbers that float32 can compute with
_FORMS: dict[str, tuple[torch.dtype, int]] = {
    "means": (torch.int16, 2),
    "mean_scales": (torch.float32, 1),
    "directions": (torch.int8, 3),
    "direction_scales": (torch.float32, 2),
    "variances": (torch.float32, 2),
    "rest": (torch.float32, 1),
    "spreads": (torch.float32, 2),
    "familiar": (torch.float32, 1),
    "checked": (torch.int64, 1),
}


def output_energy(outputs: Tensor, classes: int) -> Tensor:
    """Logsumexp of the outputs [..., s] of a task's classes: high where its network knows an image."""
    return outputs[..., :classes].logsumexp(-1)


def output_mixture(outputs: Tensor, classes: int) -> Tensor:
    """The log-probability of the label among a task's classes + 0.3 · their logsumexp."""
    real = outputs[..., :classes]
    return real.amax(-1) - (1 - _ENERGY) * real.logsumexp(-1)


# Scores of outputs that compare masks in deviations from the mean of each task's own images; also objectives.
CALIBRATED: dict[str, Callable[[Tensor, int], Tensor]] = {"energy": output_energy, "mixture": output_mixture}
SCORES = ("likelihood", *CALIBRATED)  # scores with a mean and a deviation


class Spread(NamedTuple):
    """Mean and deviation of a score on a task's images."""

    mean: float | Tensor
    deviation: float | Tensor

    def standard(self, score: Tensor) -> Tensor:
        """A score in deviations from the mean."""
        return (score - self.mean) / self.deviation


def familiarity(likelihood: Tensor, energy: Tensor, spreads: Mapping[str, Spread]) -> Tensor:
    """How familiar images are to a task with these spreads: about the lower of two scores, in deviations.

    The scores are the log-likelihood of the features and the energy under the task's mask.
    """
    one, other = spreads["likelihood"].standard(likelihood), spreads["energy"].standard(energy)
    return -torch.logaddexp(-one, -other)


@dataclass(frozen=True, eq=False)
class TaskProfile:
    """Statistics of a task with C classes among d features, on the CPU.

    means, directions, variances, rest  the Gaussians of its classes (`gaussians.py`), as whole numbers with scales
    spreads   [3, 2]: mean and deviation of log-likelihood, energy and mixture on its images
    familiar  quantiles of the familiarity of its images, at `SHARES`
    checked   [2]: how many of its images were compared with other tasks when it was learned, and how many fit it best
    """

    means: Tensor
    mean_scales: Tensor
    directions: Tensor
    direction_scales: Tensor
    variances: Tensor
    rest: Tensor
    spreads: Tensor
    familiar: Tensor
    checked: Tensor

    @classmethod
    def of(cls, gaussians: Gaussians, spreads: Tensor, familiar: Tensor, checked: Tensor) -> TaskProfile:
        """On the device of the Gaussians, and not validated; `from_tensors` does both."""
        means, axes, variances, rest = gaussians
        directions = whole_numbers(axes[None], torch.int8)
        values = (*whole_numbers(means, torch.int16), *directions, variances[None], rest[None])
        return cls(*(value.contiguous() for value in (*values, spreads, familiar, checked)))

    @property
    def features(self) -> int:
        """How many there are."""
        return self.means.shape[1]

    @property
    def comparable(self) -> bool:
        """Whether its Gaussians are of this version; earlier ones had other features, and directions per class."""
        return self.means.dtype == torch.int16

    def fits(self, features: int) -> bool:
        """Whether it can be compared with that many features."""
        return self.features == features and self.comparable

    @property
    def class_means(self) -> Tensor:
        """[C, d], float32."""
        return self.means.float() * self.mean_scales[:, None]

    @property
    def gaussians(self) -> Gaussians:
        """Of a comparable profile."""
        directions = self.directions[0].float() * self.direction_scales[0, :, None]
        return Gaussians(self.class_means, directions, self.variances[0], self.rest[0])

    @cached_property
    def spread(self) -> dict[str, Spread]:
        """Of each of `SCORES`."""
        return {name: Spread(*row) for name, row in zip(SCORES, self.spreads.tolist())}

    def familiarity(self, likelihood: Tensor, energy: Tensor) -> Tensor:
        """How familiar images are to the task."""
        return familiarity(likelihood, energy, self.spread)

    def threshold(self, share: float) -> float:
        """The familiarity below which this share of the task's images is."""
        position = next(i for i, each in enumerate(SHARES) if each >= share)
        if position == 0:
            return float(self.familiar[0])
        low, high = SHARES[position - 1], SHARES[position]
        below, above = self.familiar[position - 1 : position + 1].tolist()
        return float(below + (above - below) * (share - low) / (high - low))

    def tensors(self) -> dict[str, Tensor]:
        """By name, for a file."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], classes: int) -> TaskProfile:
        """From a file; an error unless it can belong to a task with this many classes."""
        if tensors.keys() != _FORMS.keys():
            raise SupSupError("its profile is incomplete")
        for name, (dtype, dimensions) in _FORMS.items():
            value = tensors[name]
            earlier = name == "means" and value.dtype == torch.int8
            if (value.dtype != dtype and not earlier) or value.ndim != dimensions:
                raise SupSupError(f"its profile has {name} of a wrong type or shape")
        found = cls(**{name: value.cpu() for name, value in tensors.items()})
        found._check(classes)
        return found

    def _check(self, classes: int) -> None:
        """An error unless shapes agree and numbers can be used."""
        groups, count, features = self.directions.shape
        shapes: dict[str, tuple[int, ...]] = {
            "means": (classes, features),
            "mean_scales": (classes,),
            "direction_scales": (groups, count),
            "variances": (groups, count),
            "rest": (groups,),
            "spreads": (len(SCORES), 2),
            "familiar": (len(SHARES),),
            "checked": (2,),
        }
        values: dict[str, Any] = self.tensors()
        wrong = [name for name, shape in shapes.items() if tuple(values[name].shape) != shape]
        if wrong or groups not in (1, classes) or not count < features:
            raise SupSupError(f"its profile has shapes that disagree ({', '.join(wrong) or 'directions'})")
        positive = [self.mean_scales, self.direction_scales, self.variances, self.rest, self.spreads[:, 1]]
        finite = [*positive, self.spreads, self.familiar]
        if any(bool((~(value.abs() < _LARGEST)).any()) for value in finite) or any(
            bool((value < _SMALLEST).any()) for value in positive
        ):
            raise SupSupError("its profile has numbers that no training gives")
        asked, right = self.checked.tolist()
        if bool((self.familiar.diff() < 0).any()) or not 0 <= right <= asked:
            raise SupSupError("its profile has numbers that no training gives")


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
