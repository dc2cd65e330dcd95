"""What tasks are recognised by: features of an input, and the profile of each task, statistics of its features.

Features are the same for every task, from one pass over an image without a mask. Pictures are described by random
filters, or by what a pretrained network makes of them; any other input by what the frozen network without a mask does.

`TaskProfile` is what a task leaves behind, in memory and in a model file. It holds no image. None of it depends on
another task, so after one is forgotten the others are found as if it had never been learned. The exception is
`checked`: it compares with the tasks of that time, and only a warning uses it. A profile has a Gaussian in the space of
features for each class: its mean, and the few directions in which the task's images vary most; in all others the
variance is one number. They are stored as one- or two-byte integers with a scale.

`ProfileIndex` holds the Gaussians of all tasks, so that one product of matrices scores an image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool1d, adaptive_avg_pool2d, avg_pool2d, conv2d, interpolate

from supsup.kernels import available
from supsup.masks import philox
from supsup.masks.frozen import FrozenNet
from supsup.runtime.devices import on_device
from supsup.runtime.errors import SupSupError

if available.NUMBA:
    from supsup.kernels import numba_filters

_PLACES = 8  # features of a filter: its positive and its negative responses in each quarter of the picture
_PATCH, _LARGEST_SIDE, _SMALLEST_SIDE = 6, 32, 12  # pixels along a side: of a filter, and of pictures after resizing
_MOST_COLOURS = 4
_REACH, _COLOURS, _NOISE = 8.0, 0.8, 0.1  # correlation of pixels by distance, of colours, and uncorrelated variance
_FAINT, _THRESHOLD = 0.1, 0.5  # contrast that counts as little; threshold of a response
_CPU_RESPONSES, _GPU_FACTOR = 1 << 20, 256  # responses in memory: about a CPU's cache; this many times more on a GPU
SHARES = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of a task's images that are less familiar
_ENERGY = 0.3  # its weight in the mixture
_SMALLEST, _LARGEST = 1e-30, 1e15  # numbers that float32 can compute with


@dataclass(frozen=True)
class FeatureLimits:
    """How many features there are, and how many images and directions a profile is made of.

    layer, trained_layer  most numbers of one layer; of a larger one, neighbours are averaged
    filters, directions   fewest and most: more for a larger network
    images                fewest and most that are used, if there are as many: more for a larger network
    """

    layer: int = 512
    trained_layer: int = 2048
    filters: tuple[int, int] = (48, 400)
    directions: tuple[int, int] = (32, 128)
    images: tuple[int, int] = (2000, 5000)


FEATURE_LIMITS = FeatureLimits()


@torch.no_grad()
def extract_features(net: FrozenNet, x: Tensor, *, check: bool = True) -> Tensor:
    """[n, features] for preprocessed images [n, …].

    Of a pretrained network: the input of its last layer. Of pictures: responses of filters, more filters for a larger
    network. Of anything else: the input of the last masked layer and the output of the first, since random layers lose
    more of an input the deeper they are.

    check  an error where one is not finite; False: nothing waits for a GPU
    """
    if not net.pretrained and x.is_floating_point() and is_picture(x.shape[1:]):
        filters = within(mask_bytes(net) // (80 * _PLACES) // 8 * 8, FEATURE_LIMITS.filters)
        found = torch.cat([filter_features(piece, filters) for piece in net.pieces(x)])
    else:
        found = torch.cat([_layer_features(net, piece) for piece in net.pieces(x)])
    if check and not bool(found.isfinite().all()):
        raise SupSupError("the network without a mask gives numbers that are not finite; give the task: task=…")
    return found


def within(value: int, limits: tuple[int, int]) -> int:
    """The number, or the limit that it is beyond."""
    fewest, most = limits
    return max(fewest, min(most, value))


def mask_bytes(net: FrozenNet) -> int:
    """Bytes of one mask, on which the size of a profile depends."""
    return sum(shape.numel() for shape in net.shapes.values()) // 8


def _layer_features(net: FrozenNet, x: Tensor) -> Tensor:
    layers, out = _first_and_last(net, x)
    unclear = any(len(x) in value.shape[1:] for value in layers.values())  # images may lie along another dimension
    if unclear:
        layers, out = _first_and_last(net, torch.cat([x, x[-1:]]))
    most = FEATURE_LIMITS.trained_layer if net.pretrained else FEATURE_LIMITS.layer
    used = [layers[name] for name in ("first", "last") if name in layers] or [out]
    numbers = torch.cat([_pooled(layer[: len(x)], most) for layer in used], 1)
    return numbers.sign() * numbers.abs().sqrt() if net.pretrained else numbers


def _first_and_last(net: FrozenNet, x: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """The first layer's output and the last one's input, if they have a row for each image; and the outputs."""
    found: dict[str, Tensor] = {}
    owners = [name.rpartition(".")[0] for name in net.weights]

    def take(name: str, values: tuple[Any, ...]) -> None:  # of a layer that runs several times, the last run
        if values and isinstance(values[0], Tensor) and values[0].ndim > 1 and len(values[0]) == len(x):
            value = values[0].detach().float()
            found[name] = value.relu() if name == "first" else value

    def before_last(_: nn.Module, given: tuple[Any, ...]) -> None:
        take("last", given)

    def after_first(_: nn.Module, __: tuple[Any, ...], out: Any) -> None:
        take("first", out if isinstance(out, tuple) else (out,))

    with net.borrowed() as module:
        hooks = [module.get_submodule(owners[-1]).register_forward_pre_hook(before_last)]
        if not net.pretrained:
            hooks.append(module.get_submodule(owners[0]).register_forward_hook(after_first))
        try:
            out = net.run(x, net.weights, module)
        finally:
            for hook in hooks:
                hook.remove()
    return found, out


def _pooled(values: Tensor, most: int) -> Tensor:
    """At most this many numbers of each image."""
    if values.ndim == 4 and values[0].numel() > most:
        side = max(1, int((most / values.shape[1]) ** 0.5))
        values = adaptive_avg_pool2d(values, (min(side, values.shape[2]), min(side, values.shape[3])))
    flat = values.flatten(1)
    return flat if flat.shape[1] <= most else adaptive_avg_pool1d(flat[:, None], most)[:, 0]


def is_picture(shape: torch.Size | tuple[int, ...]) -> bool:
    """Whether filters can be used on inputs of this shape, [channels, height, width]."""
    return len(shape) == 3 and shape[0] <= _MOST_COLOURS and min(shape[1:]) >= _SMALLEST_SIDE


def filter_features(pictures: Tensor, filters: int) -> Tensor:
    """Responses of random filters for pictures [n, channels, height, width]: [n, 8 · filters].

    One layer of small patches, nothing of it learned. The filters are whitened as if neighbouring pixels and colours
    were correlated as usual, so edges and colours count and brightness does not. Scaling pixels hardly matters.
    """
    height, width = pictures.shape[-2:]
    if max(height, width) > _LARGEST_SIDE:
        shrunk = [max(_SMALLEST_SIDE, round(side * _LARGEST_SIDE / max(height, width))) for side in (height, width)]
        pictures = interpolate(pictures.float(), shrunk, mode="area")
    weights = on_device(_filters(pictures.shape[1], filters), pictures.device)
    at_once = max(1, _CPU_RESPONSES // (filters * pictures[0, 0].numel()))
    if pictures.device.type != "cpu":
        at_once *= _GPU_FACTOR
    if available.NUMBA and pictures.device.type == "cpu" and pictures.shape[1] == 1:
        grey = pictures.detach()[:, 0].float().contiguous()
        found = numba_filters.numba_filter_responses(grey, weights[:, 0], _FAINT, _THRESHOLD, at_once)
    else:
        found = torch.cat([_responses(piece.float(), weights) for piece in pictures.split(at_once)])
    return found.flatten(1).sqrt()


def _responses(x: Tensor, weights: Tensor) -> Tensor:
    """[n, 2 · filters, 2, 2]: mean response above the threshold in each quarter, positive ones and negative ones."""
    level, square = (avg_pool2d(part.mean(1, keepdim=True), _PATCH, stride=1) for part in (x, x.square()))
    contrast = ((square - level.square()).clamp(min=0) + _FAINT**2).sqrt()
    responses = conv2d(x, weights).div_(contrast)
    positive = adaptive_avg_pool2d((responses - _THRESHOLD).relu_(), 2)
    negative = adaptive_avg_pool2d(responses.neg_().sub_(_THRESHOLD).relu_(), 2)
    return torch.cat([positive, negative], 1)


@cache
def _filters(channels: int, count: int) -> Tensor:
    """[count, channels, patch, patch], blind to the mean of a patch."""
    size = channels * _PATCH**2
    drawn = philox.uniform(0, [f"filter {i}" for i in range(count)], size, 1.0).double()
    drawn = drawn / drawn.norm(dim=1, keepdim=True)
    white = drawn @ _whitening(channels)
    white = white - white.mean(1, keepdim=True)
    found: Tensor = white.float().view(count, channels, _PATCH, _PATCH)
    return found


def _whitening(channels: int) -> Tensor:
    """The matrix [size, size] that makes pixels of different places and colours independent."""
    line = torch.arange(_PATCH).double()
    places = torch.cartesian_prod(line, line)
    correlation = torch.exp(-torch.cdist(places, places) / _REACH)
    colours = _COLOURS + (1 - _COLOURS) * torch.eye(channels).double()
    values, vectors = torch.linalg.eigh(torch.kron(colours, correlation))
    found: Tensor = (vectors * (values + _NOISE).rsqrt()) @ vectors.T
    return found


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

    means, directions, variances, rest  the `Gaussians` of its classes, as whole numbers with scales
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
        if tensors.keys() != {each.name for each in fields(cls)}:
            raise SupSupError("its profile is incomplete")
        groups, count, features = tensors["directions"].shape if tensors["directions"].ndim == 3 else (0, 0, 0)
        forms: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
            "means": (torch.int16, (classes, features)),
            "mean_scales": (torch.float32, (classes,)),
            "directions": (torch.int8, (groups, count, features)),
            "direction_scales": (torch.float32, (groups, count)),
            "variances": (torch.float32, (groups, count)),
            "rest": (torch.float32, (groups,)),
            "spreads": (torch.float32, (len(SCORES), 2)),
            "familiar": (torch.float32, (len(SHARES),)),
            "checked": (torch.int64, (2,)),
        }
        for name, (dtype, shape) in forms.items():
            value, earlier = tensors[name], torch.int8 if name == "means" else dtype
            if value.dtype not in (dtype, earlier) or value.shape != shape:
                raise SupSupError(f"its profile has {name} of a wrong type, or shapes that disagree")
        if groups not in (1, classes) or not count < features:
            raise SupSupError("its profile has shapes that disagree (directions)")
        found = cls(**{name: value.cpu() for name, value in tensors.items()})
        found._check_numbers()
        return found

    def _check_numbers(self) -> None:
        """An error unless training can give the numbers."""
        positive = [self.mean_scales, self.direction_scales, self.variances, self.rest, self.spreads[:, 1]]
        finite = [*positive, self.spreads, self.familiar]
        asked, right = self.checked.tolist()
        possible = all(bool((value.abs() < _LARGEST).all()) for value in finite)
        possible = possible and all(bool((value >= _SMALLEST).all()) for value in positive)
        if not possible or bool((self.familiar.diff() < 0).any()) or not 0 <= right <= asked:
            raise SupSupError("its profile has numbers that no training gives")


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
