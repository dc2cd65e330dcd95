"""`TaskProfile`: what a task is recognised by, statistics of the features of its inputs (`features.py`).

A profile is what a task leaves behind, in memory and in a model file. It holds no image. None of it depends on
another task, so after one is forgotten the others are found as if it had never been learned. A profile has a Gaussian
in the space of features for each class: its mean, and the few directions in which the task's images vary most; in all
others the variance is one number. They are stored as bytes with a scale. Weights say how much they and the mask count;
they are fitted to images that were held back. Profiles of vectors also have what `vectors.py` describes.

`ProfileIndex` holds the Gaussians of all tasks, so that one product of matrices scores an image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from supsup.inference.profiles import vectors
from supsup.runtime.errors import SupSupError

SHARES = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of a task's images that are less familiar
FINDING, ANSWERING = 2, 3  # weights that find a task: of Gaussians and shares; that answer for it: also of its mask
_USUAL = (0.03, 4.0)  # where no task has weights: those of CLINC150, rounded
_ENERGY = 0.3  # its weight in the mixture
_SMALLEST, _LARGEST = 1e-30, 1e15  # numbers that float32 can compute with


def output_energy(outputs: Tensor, classes: int) -> Tensor:
    """Logsumexp of the outputs [..., s] of a task's classes: high where its network knows an image."""
    return outputs[..., :classes].logsumexp(-1)


def output_mixture(outputs: Tensor, classes: int) -> Tensor:
    """The log-probability of the label among a task's classes + 0.3 · their logsumexp."""
    real = outputs[..., :classes]
    return real.amax(-1) - (1 - _ENERGY) * real.logsumexp(-1)


# Scores of outputs that compare masks in deviations from the mean of each task's own images; also objectives.
CALIBRATED: dict[str, Callable[[Tensor, int], Tensor]] = {"energy": output_energy, "mixture": output_mixture}
FAMILIAR = ("likelihood", "energy", "discriminant")  # scores that say how familiar an image is
SCORES = ("likelihood", *CALIBRATED, "discriminant")  # scores with a mean and a deviation


class Spread(NamedTuple):
    """Mean and deviation of a score on a task's images."""

    mean: float | Tensor
    deviation: float | Tensor

    def standard(self, score: Tensor) -> Tensor:
        """A score in deviations from the mean."""
        return (score - self.mean) / self.deviation


def familiarity(scores: Mapping[str, Tensor], spreads: Mapping[str, Spread]) -> Tensor:
    """How familiar images are to a task with these spreads: about the lowest of its scores, in deviations.

    The scores are `FAMILIAR`: the log-likelihood of the features, the energy under the task's mask, and the best
    discriminant of the task's classes, which is high for what these classes do not share. Profiles of earlier versions
    have no spread of the last.
    """
    standard = [spreads[name].standard(scores[name]) for name in FAMILIAR if name in spreads]
    return -torch.stack(standard).neg().logsumexp(0)


@dataclass(frozen=True, eq=False)
class TaskProfile:
    """Statistics of a task with C classes among d features, on the CPU.

    means, directions, variances, rest  the `Gaussians` of its classes, as whole numbers with scales. Of vectors the
              means are those of positive and of negative parts [C, 2 · d], as bytes
    spreads   [4, 2]: mean and deviation of `SCORES` on its images; [3, 2] of an earlier version, without the last
    familiar  quantiles of the familiarity of its images, at `SHARES`
    weights   [5]: what Gaussians and shares count where the task is asked for; then what they and the mask count where
              its class is. None: of an earlier version, as `noise` is
    noise     []: the expected squared error of the covariance matrix
    scales    [d]: log2 of each feature's deviation, in sixteenths; 0 stands for the root of the mean variance
    checked   [2], of earlier versions only: two counts, kept so that a file stays as it is
    """

    means: Tensor
    mean_scales: Tensor
    directions: Tensor
    direction_scales: Tensor
    variances: Tensor
    rest: Tensor
    spreads: Tensor
    familiar: Tensor
    weights: Tensor | None = None
    noise: Tensor | None = None
    scales: Tensor | None = None
    checked: Tensor | None = None

    @classmethod
    def of(
        cls,
        gaussians: Gaussians,
        spreads: Tensor,
        familiar: Tensor,
        weights: Tensor,
        part_means: Tensor | None = None,
    ) -> TaskProfile:
        """On the device of the Gaussians, and not validated; `from_tensors` does both. Vectors have part means."""
        means, axes, variances, rest, noise, steps = gaussians
        stored = whole_numbers(means, torch.int8) if part_means is None else vectors.compressed(part_means)
        directions = whole_numbers(axes[None], torch.int8)
        values = (*stored, *directions, variances[None], rest[None], spreads, familiar)
        found = replace(cls(*(value.contiguous() for value in values)), weights=weights)
        return found if part_means is not None else replace(found, noise=noise, scales=steps)

    @property
    def features(self) -> int:
        """How many there are."""
        return self.directions.shape[2]

    @property
    def of_vectors(self) -> bool:
        """Whether it was made of vectors; earlier versions made none."""
        return self.means.dtype == torch.uint8

    @property
    def fitted(self) -> bool:
        """Whether it can be compared: earlier versions had other features, and no weights."""
        return self.weights is not None

    def fits(self, features: int) -> bool:
        """Whether it can be compared with that many features."""
        return self.fitted and self.features == features

    @property
    def class_means(self) -> Tensor:
        """[C, d], float32."""
        if self.of_vectors:
            return vectors.class_means(vectors.expanded(self.means, self.mean_scales))
        return self.means.float() * self.mean_scales[:, None]

    def likelihood(self, features: Tensor) -> Tensor:
        """log p(features | task) [n]; of vectors a weighted sum of all that says so."""
        found = self.gaussians.likelihoods(features)
        if self.weights is None or not self.of_vectors:
            return found
        shares = vectors.share_scores(features, self.log_shares.to(features.device)).amax(1)
        return shares if float(self.weights[1]) > 0 else found

    @cached_property
    def log_shares(self) -> Tensor:
        """[C, 2 · d], of vectors."""
        return vectors.log_shares(vectors.expanded(self.means, self.mean_scales))

    @property
    def answers(self) -> bool:
        """Whether it has a say in answers for the task, beside the mask."""
        return self.weights is not None and bool(self.weights[FINDING:-1].any())

    @property
    def mask_weight(self) -> float:
        """What log p(class | task) of its mask counts where tasks are found."""
        return 1.0 if self.weights is None else float(self.weights[-1])

    @cached_property
    def answering(self) -> tuple[list[float], tuple[Tensor, ...]]:
        """What `profile_answers` needs of a profile that answers."""
        assert self.weights is not None
        shares = (self.log_shares,) if self.of_vectors else ()
        caution = _CAUTION if self.earlier else _CAUTION_WITHIN_TASK
        return self.weights[FINDING:].tolist(), (*self.gaussians.discriminant(caution), *shares)

    @property
    def earlier(self) -> bool:
        """Whether an earlier version fitted it, with less caution and without `Spread` of the discriminant."""
        return len(self.spreads) < len(SCORES)

    @cached_property
    def separation(self) -> float:
        """`Gaussians.separation`, to which its weight of Gaussians was fitted; 0: not known."""
        return 0.0 if self.earlier else self.gaussians.separation

    @property
    def gaussians(self) -> Gaussians:
        """Of a fitted profile."""
        directions = self.directions[0].float() * self.direction_scales[0, :, None]
        if self.of_vectors:  # variances of a table may differ so much that rounded directions must be put right
            directions = torch.linalg.qr(directions.flip(0).T).Q.T.flip(0).contiguous()
        noise = torch.tensor(math.nan) if self.noise is None else self.noise
        steps = torch.zeros(self.features, dtype=torch.int8) if self.scales is None else self.scales
        return Gaussians(self.class_means, directions, self.variances[0], self.rest[0], noise, steps)

    @cached_property
    def spread(self) -> dict[str, Spread]:
        """Of each of `SCORES` that it has."""
        return {name: Spread(*row) for name, row in zip(SCORES, self.spreads.tolist())}

    def threshold(self, shares: Tensor) -> Tensor:
        """The familiarity below which these shares of the task's images are; above 1 as at 1."""
        known, familiar = torch.tensor(SHARES), self.familiar
        at = shares.cpu().clamp(max=1)
        above = torch.bucketize(at, known).clamp(min=1)
        part = (at - known[above - 1]) / (known[above] - known[above - 1])
        found: Tensor = familiar[above - 1] + (familiar[above] - familiar[above - 1]) * part
        return found.to(shares.device)

    def tensors(self) -> dict[str, Tensor]:
        """By name, for a file."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], classes: int) -> TaskProfile:
        """From a file; an error unless it can belong to a task with this many classes."""
        of_vectors = "means" in tensors and tensors["means"].dtype == torch.uint8
        if tensors.keys() | {"weights", "noise", "scales", "checked"} != {each.name for each in fields(cls)}:
            raise SupSupError("its profile is incomplete")
        groups, count, features = tensors["directions"].shape if tensors["directions"].ndim == 3 else (0, 0, 0)
        without_discriminant = tensors["spreads"].shape[:1] == (len(SCORES) - 1,)
        forms: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
            "means": (torch.uint8, (classes, 2 * features)) if of_vectors else (torch.int8, (classes, features)),
            "mean_scales": (torch.float32, (classes,)),
            "directions": (torch.int8, (groups, count, features)),
            "direction_scales": (torch.float32, (groups, count)),
            "variances": (torch.float32, (groups, count)),
            "rest": (torch.float32, (groups,)),
            "spreads": (torch.float32, (len(SCORES) - without_discriminant, 2)),
            "familiar": (torch.float32, (len(SHARES),)),
        }
        later = {"weights": (torch.float32, (FINDING + ANSWERING,)), "noise": (torch.float32, ())}
        later |= {"scales": (torch.int8, (features,)), "checked": (torch.int64, (2,))}
        forms |= {name: form for name, form in later.items() if name in tensors}
        for name, (dtype, shape) in forms.items():
            value, earlier = tensors[name], torch.int16 if name == "means" and not of_vectors else dtype
            if value.dtype not in (dtype, earlier) or value.shape != shape:
                raise SupSupError(f"its profile has {name} of a wrong type, or shapes that disagree")
        if groups not in (1, classes) or not count < features:
            raise SupSupError("its profile has shapes that disagree (directions)")
        found = cls(**{name: value.cpu() for name, value in tensors.items()})
        found._check_numbers()
        return found

    def _check_numbers(self) -> None:
        """An error unless training can give the numbers."""
        above_0 = self.mean_scales, self.direction_scales, self.variances, self.rest, self.spreads[:, 1]
        positive = torch.cat([value.flatten() for value in above_0])
        others = [value.flatten() for value in (self.weights, self.noise) if value is not None]
        none_negative = torch.cat([positive, *others])
        finite = torch.cat([none_negative.abs(), self.spreads[:, 0].abs(), self.familiar.abs()])
        possible = (positive >= _SMALLEST).all() & (none_negative >= 0).all() & (finite < _LARGEST).all()
        if not bool(possible & (self.familiar.diff() >= 0).all()):
            raise SupSupError("its profile has numbers that no training gives")


SMOOTHING = 0.03  # of profiles without known noise; relative to the mean variance, as the next two
_LEAST_SMOOTHING, _MOST_NOISE = 0.01, 0.95
# How much more than is best for the matrix itself is best for its inverse, which classifies: of 1, 3 and 10 the best
# on held-back photographs of Tiny-ImageNet (15 classes of 8 or 32). Among the classes of one task 30 is better: 92.4 %
# of the labels there (10: 91.9), 92.6 % of CIFAR-100's (91.7), and no worse on digits.
_CAUTION, _CAUTION_WITHIN_TASK = 10.0, 30.0


def smoothing(noise: Tensor, squares: Tensor, mean: Tensor, features: int, caution: float = _CAUTION) -> Tensor:
    """What to add to every variance, relative to their mean, so that a covariance matrix can be inverted safely.

    After Ledoit and Wolf: the fewer images, the more.
    noise    expected squared error of the matrix
    squares  the sum of its squared entries; `mean` is the mean of its diagonal
    """
    beyond = (squares - features * mean.square()).clamp(min=torch.finfo(torch.float32).tiny)
    share = (noise / beyond).clamp(max=_MOST_NOISE)
    found = (caution * share / (1 - share)).clamp(min=_LEAST_SMOOTHING)
    return torch.where(noise.isnan(), SMOOTHING, found)


class Gaussians(NamedTuple):
    """The Gaussians of a task with C classes and d features; of several such tasks, with a leading dimension each.

    Directions and variances are those of features in units of their own deviations: a feature that varies little says
    as much as one that varies a lot.

    means       [C, d], float32
    directions  [r, d] of unit length, at right angles
    variances   [r] along them
    rest        [], the variance in every other direction
    noise       [], the expected squared error of the covariance matrix; NaN: of an earlier version
    steps       [d], the units: log2 in sixteenths, int8
    """

    means: Tensor
    directions: Tensor
    variances: Tensor
    rest: Tensor
    noise: Tensor
    steps: Tensor

    @property
    def units(self) -> Tensor:
        """[d], by which features are divided."""
        return torch.exp2(self.steps.float() / STEPS_PER_DOUBLING)

    def on(self, device: torch.device) -> Gaussians:
        """The same on a device."""
        return Gaussians(*(value.to(device) for value in self))

    def leading(self, count: int) -> Gaussians:
        """With only so many directions, those of the largest variances; the other variances join the rest."""
        left, numbers = len(self.variances) - count, self.means.shape[1]
        if left <= 0:
            return self
        rest = (self.variances[:left].sum() + (numbers - len(self.variances)) * self.rest) / (numbers - count)
        return self._replace(directions=self.directions[left:], variances=self.variances[left:], rest=rest)

    def likelihoods(self, features: Tensor) -> Tensor:
        """log p(features | task) [n] by the task's covariance, all its classes equally frequent."""
        own = self.on(features.device)
        axes, spread, rest, units = own.directions, own.variances, own.rest, own.units
        features, means = features / units, own.means / units
        along = ((features @ axes.T)[:, None] - means @ axes.T).square()  # [n, C, r]
        lengths = features.square().sum(1)[:, None] + means.square().sum(1)
        distance = (lengths - 2 * features @ means.T - along.sum(-1)).clamp(min=0)  # in all other directions
        volume = spread.log().sum() + (features.shape[1] - len(axes)) * rest.log() + 2 * units.log().sum()
        found: Tensor = (-0.5 * ((along / spread).sum(-1) + distance / rest + volume)).logsumexp(-1)
        return found - math.log(len(means))

    def class_scores(self, features: Tensor) -> Tensor:
        """log p(features | class) [n, classes] by the task's covariance, up to a constant for each row."""
        weights, constant, middle = self.discriminant()
        return (features - middle) @ weights.T + constant

    @property
    def separation(self) -> float:
        """How much higher the score of a class at its own mean is than on average over the classes, summed."""
        return -2 * float(self.discriminant()[1].sum())

    def discriminant(self, caution: float = _CAUTION_WITHIN_TASK) -> tuple[Tensor, Tensor, Tensor]:
        """Weights [classes, d] and constants [classes] of `class_scores`, of features minus the last result [d]."""
        axes, spread, rest, units = self.directions, self.variances, self.rest, self.units
        middle, numbers = self.means.mean(0), self.means.shape[1]
        means = (self.means - middle) / units
        others = numbers - len(axes)
        mean = (spread.sum() + others * rest) / numbers
        squares = spread.square().sum() + others * rest.square()
        more = mean * smoothing(self.noise, squares, mean, numbers, caution)
        weights = means / (rest + more)
        weights = weights - ((means @ axes.T) * (1 / (rest + more) - 1 / (spread + more))) @ axes
        return weights / units, -0.5 * (weights * means).sum(1), middle


STEPS_PER_DOUBLING = 16  # of log2 of a feature's deviation: units are right to 2 %
_FAINTEST = -4 * STEPS_PER_DOUBLING  # the least deviation that counts: a sixteenth of the usual


def unit_steps(centred: Tensor) -> Tensor:
    """`Gaussians.steps` of features [n, d] around their means."""
    variance = centred.square().mean(-2)
    ratio = variance / variance.mean(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    return (STEPS_PER_DOUBLING / 2 * ratio.log2()).round().clamp(_FAINTEST, 127).to(torch.int8)


def profile_answers(x: Tensor, outputs: Tensor, weights: Sequence[float], profile: Sequence[Tensor]) -> Tensor:
    """Logits [n, C] of a task for features x [n, d], by fitted weights: what its network gives and its profile says.

    It uses nothing of other tasks, so what they are never changes an answer. Of vectors the profile has shares, too.
    """
    by_gaussians, by_shares, by_mask = weights
    linear, constant, middle, *shares = (tensor.to(x.device) for tensor in profile)
    found: Tensor = by_gaussians * ((x - middle) @ linear.T + constant) + by_mask * outputs.log_softmax(-1)
    return found + by_shares * vectors.share_scores(x, shares[0]) if shares else found


def mean_weights(weights: Sequence[Tensor], scales: Sequence[float]) -> list[float]:
    """The mean of the weights that find each task, the same for any order of tasks; tasks of one class have none.

    scales  by which the weights of Gaussians are multiplied first
    """
    fitted = [
        [scale * float(each[0]), *each[1:FINDING].tolist()]
        for each, scale in zip(weights, scales)
        if bool((each > 0).any())
    ]
    return [math.fsum(column) / len(fitted) for column in zip(*fitted)] if fitted else list(_USUAL)


def whole_numbers(vectors: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """Vectors as integers of a type [..., d], and the scale of each [...]."""
    scales = (vectors.abs().amax(-1) / torch.iinfo(kind).max).clamp(min=torch.finfo(torch.float32).tiny)
    return (vectors / scales[..., None]).round().to(kind), scales


class GaussianIndex:
    """The Gaussians of many tasks, compared with one covariance: the mean of all tasks' covariances.

    Where tasks have few directions together, these stand for the matrix, which may be large.
    first  an index of earlier tasks, to which these are added
    """

    def __init__(self, tasks: Sequence[Gaussians], device: torch.device, first: GaussianIndex | None = None) -> None:
        before: list[Gaussians] = [] if first is None else first._tasks
        self._tasks: list[Gaussians] = [*before, *(each.on(device) for each in tasks)]
        count, features = len(self._tasks), self._tasks[0].means.shape[1]
        if any(each.means.shape[1] != features for each in self._tasks):
            raise SupSupError(
                "tasks were learned with different numbers of features; give the task, or learn them again"
            )
        self.classes = [len(each.means) for each in self._tasks]
        ends = torch.tensor(self.classes).cumsum(0).tolist()
        self.columns = [slice(end - number, end) for end, number in zip(ends, self.classes)]
        means = torch.cat([each.means for each in self._tasks]).double()
        middle = means.mean(0)
        rest = torch.stack([each.rest.double() * each.units.double().square() for each in self._tasks]).mean(0)
        self._units = rest.clamp(min=torch.finfo(torch.float32).tiny).sqrt()  # so that `rest` is 1
        centred = (means - middle) / self._units
        self._sum = self._basis = None
        if 2 * sum(len(each.directions) for each in self._tasks) > features:
            self._sum = torch.zeros(features, features, dtype=torch.float64, device=device)
            if first is not None and first._sum is not None:
                self._sum += first._sum
            for each in self._tasks if first is None or first._sum is None else tasks:
                basis = _scaled_directions(each)
                self._sum.addmm_(basis.T, basis)  # one by one: the sum is the same, whichever were added together
            covariance = self._sum / count / self._units / self._units[:, None]
            covariance.diagonal().add_(1)
            mean = covariance.diagonal().mean()
            self._level = self._share(covariance.square().sum(), mean) * mean
            covariance.diagonal().add_(self._level)
            self._factor = torch.linalg.cholesky(covariance)
            weights = torch.cholesky_solve(centred.T, self._factor).T
        else:
            basis = torch.cat([_scaled_directions(each) for each in self._tasks])
            self._basis = basis / math.sqrt(count) / self._units
            small = self._basis @ self._basis.T
            trace = small.diagonal().sum()
            mean = trace / features + 1
            squares = small.square().sum() + 2 * trace + features
            self._level = 1 + self._share(squares, mean) * mean
            small.diagonal().add_(self._level)
            self._factor = torch.linalg.cholesky(small)
            along = torch.cholesky_solve(self._basis @ centred.T, self._factor)
            weights = (centred - along.T @ self._basis) / self._level
        self._constant = (-0.5 * (weights * centred).sum(1)).float()
        self._weights, self._middle = (weights / self._units).float(), middle.float()

    def _share(self, squares: Tensor, mean: Tensor) -> Tensor:
        """How much is added to the variances, relative to their mean."""
        scaled = [each.noise * (each.units / self._units).square().mean().square() for each in self._tasks]
        noise = math.fsum(torch.stack(scaled).tolist()) / len(self._tasks) ** 2
        return smoothing(torch.tensor(noise, device=mean.device), squares, mean, self._tasks[0].means.shape[1])

    @cached_property
    def separations(self) -> list[float]:
        """`Gaussians.separation` of each task by the common covariance."""
        own = torch.cat([each.means - each.means.mean(0) for each in self._tasks])
        by_class = (self._weights * own).sum(1).cpu()
        return [float(each.sum()) for each in by_class.split(self.classes)]

    def class_scores(self, features: Tensor, *, absolute: bool = False) -> Tensor:
        """log p(features | class) [n, classes of all tasks], up to a constant per image that all classes share.

        absolute  with that constant: needed where tasks preprocess an image differently
        """
        centred = features - self._middle
        scores = centred @ self._weights.T + self._constant
        if absolute:
            exact = centred.double() / self._units
            rows = exact if self._basis is None else exact @ self._basis.T
            length = torch.linalg.solve_triangular(self._factor, rows.T, upper=False).square().sum(0)
            if self._basis is not None:
                length = (exact.square().sum(1) - length) / self._level
            scores = scores - 0.5 * length.float()[:, None]
        return scores

    def task_scores(self, scores: Tensor) -> Tensor:
        """log p(features | task) [n, tasks] from those of classes, all classes of a task equally frequent."""
        if len(set(self.classes)) == 1:
            each_task: Tensor = scores.unflatten(1, (len(self.classes), -1)).logsumexp(-1)
            return each_task - math.log(self.classes[0])
        each = [own.logsumexp(1) - math.log(own.shape[1]) for own in scores.split(self.classes, 1)]
        return torch.stack(each, 1)


def _scaled_directions(task: Gaussians) -> Tensor:
    """B [r, d], where the task's covariance is BᵀB beside a diagonal matrix, `rest` in the task's units."""
    axes, spread, rest = (value.double() for value in task[1:4])
    return axes * (spread - rest).clamp(min=0).sqrt()[:, None] * task.units.double()


class ProfileIndex(NamedTuple):
    """The profiles with a number of features, at a version of the task table; it is never changed, only replaced.

    place    where a task's Gaussians are in `gaussians`, by the task's index
    shares   log shares [classes of all tasks, 2 · d] of vectors
    weights  of Gaussians and shares: the mean of all tasks' weights; a task of one class has none
    masks    the weight of masks: the mean over tasks whose mask has a say. With weights of their own, the task whose
             mask counts least would be found too often
    """

    version: object = None
    features: int = 0
    profiles: Sequence[TaskProfile] = ()
    gaussians: GaussianIndex | None = None
    place: Mapping[int, int] = {}
    shares: Tensor | None = None
    weights: Sequence[float] = ()
    masks: float = 0.0

    def updated(
        self,
        version: object,
        features: int,
        every: Sequence[TaskProfile | None],
        device: torch.device,
    ) -> ProfileIndex:
        """At another version, from the profiles of all tasks; new ones are added to the Gaussians of the others."""
        usable = [
            (index, profile) for index, profile in enumerate(every) if profile is not None and profile.fits(features)
        ]
        profiles = [profile for _, profile in usable]
        grown = self.gaussians is not None and list(self.profiles) == profiles[: len(self.profiles)]
        gaussians, shares = (self.gaussians, self.shares) if grown else (None, None)
        new = profiles[len(self.profiles) :] if grown else profiles
        if new:
            gaussians = GaussianIndex([profile.gaussians for profile in new], device, gaussians)
        if new and new[0].of_vectors:
            before = [] if shares is None else [shares]
            shares = torch.cat([*before, *(profile.log_shares.to(device) for profile in new)])
        place = {index: number for number, (index, _) in enumerate(usable)}
        common = [] if gaussians is None else gaussians.separations
        # A weight is fitted to scores by the task's own covariance; the common one separates its classes more, or less.
        scales = [
            own.separation / each if min(own.separation, each) > 0 else 1.0 for own, each in zip(profiles, common)
        ]
        weights = mean_weights([profile.weights for profile in profiles if profile.weights is not None], scales)
        masks = [profile.mask_weight for profile in profiles if profile.mask_weight > 0]
        by_mask = math.fsum(masks) / max(1, len(masks))
        return ProfileIndex(version, features, profiles, gaussians, place, shares, weights, by_mask)

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
        of_classes = [self._class_scores(gaussians, each.flatten(0, 1), several) for each in features]
        shape, device = features[0].shape[:2], features[0].device
        of_tasks = [gaussians.task_scores(scores).unflatten(0, shape).mean(1) for scores in of_classes]
        columns = torch.tensor([self.place[index] for index in candidates], device=device)
        levels = of_tasks[0][:, columns]
        for number in range(1, len(features)):
            in_view = torch.tensor([view_of.get(index, 0) == number for index in candidates], device=device)
            levels = torch.where(in_view, of_tasks[number][:, columns], levels)
        return FeatureScores([each.unflatten(0, shape) for each in of_classes], view_of, self, levels)

    def _class_scores(self, gaussians: GaussianIndex, features: Tensor, absolute: bool) -> Tensor:
        """log p(features | class) [n, classes of all tasks]: the weighted sum of all that says so.

        Shares do not depend on a vector's length, so they are left out where tasks preprocess inputs differently.
        """
        found = gaussians.class_scores(features, absolute=absolute)
        by_gaussians, by_shares = self.weights
        if absolute or self.shares is None:
            return by_gaussians * found
        return by_gaussians * found + by_shares * vectors.share_scores(features, self.shares)


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
