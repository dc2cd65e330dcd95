"""`TaskProfile`: the statistics by which a task is recognised, in memory and in a model file.

It holds no image. None of it depends on another task, so after one is forgotten the others are found as if it had never
been learned. The exception is `checked`: it compares with the tasks of that time, and only a warning uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from supsup.inference.profiles.gaussians import Gaussians, whole_numbers
from supsup.runtime.errors import SupSupError

SHARES = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of a task's images that are less familiar
SCORES = ("likelihood", "energy", "mixture")  # scores with a mean and a deviation
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
