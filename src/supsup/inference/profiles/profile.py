"""`TaskProfile`: what a task leaves behind so that it is found again, as it lies in memory and in a model file.

Statistics, no image. None depends on another task: after one is forgotten the others are found as if it had never been
learned. `checked` alone, which only a warning is from, was counted among the tasks of then.
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

SHARES = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of a task's own images that are less familiar
SCORES = ("likelihood", "energy", "mixture")  # what has a mean and a deviation
_SMALLEST, _LARGEST = 1e-30, 1e15  # of numbers that float32 can compute with
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
    """Mean and deviation of a score on a task's own images."""

    mean: float | Tensor
    deviation: float | Tensor

    def standard(self, score: Tensor) -> Tensor:
        """A score in deviations from the mean."""
        return (score - self.mean) / self.deviation


def familiarity(likelihood: Tensor, energy: Tensor, spreads: Mapping[str, Spread]) -> Tensor:
    """How familiar images are to a task with these spreads: about the lower of two scores, each in deviations.

    They are the log-likelihood of their features and their energy under the task's mask.
    """
    one, other = spreads["likelihood"].standard(likelihood), spreads["energy"].standard(energy)
    return -torch.logaddexp(-one, -other)


@dataclass(frozen=True, eq=False)
class TaskProfile:
    """Statistics of a task with C classes among d features, on the CPU.

    means, directions, variances, rest  the Gaussians of its classes (`gaussians.py`), as whole numbers with scales
    spreads   [3, 2]: mean and deviation of log-likelihood, energy and mixture on images of its own
    familiar  how familiar its own images are, at `SHARES` of them
    checked   [2]: images of its own that were asked about when it was learned, and how many were found to be its own
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
        """Not yet checked, and where the Gaussians are; `from_tensors` brings it to the CPU."""
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
        """Whether its Gaussians are of this version; earlier ones had other features, and directions of each class."""
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
        """Of a trace that is comparable."""
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
        """What a share of the task's own images stays below."""
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
        """From a file, or an error unless a task of so many classes can have left it."""
        if tensors.keys() != _FORMS.keys():
            raise SupSupError("what it is found by is not complete")
        for name, (dtype, dimensions) in _FORMS.items():
            value = tensors[name]
            earlier = name == "means" and value.dtype == torch.int8
            if (value.dtype != dtype and not earlier) or value.ndim != dimensions:
                raise SupSupError(f"what it is found by has {name} of a wrong form")
        found = cls(**{name: value.cpu() for name, value in tensors.items()})
        found._check(classes)
        return found

    def _check(self, classes: int) -> None:
        """An error unless shapes agree and numbers can be computed with."""
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
            raise SupSupError(f"what it is found by does not fit together ({', '.join(wrong) or 'directions'})")
        positive = [self.mean_scales, self.direction_scales, self.variances, self.rest, self.spreads[:, 1]]
        finite = [*positive, self.spreads, self.familiar]
        if any(bool((~(value.abs() < _LARGEST)).any()) for value in finite) or any(
            bool((value < _SMALLEST).any()) for value in positive
        ):
            raise SupSupError("what it is found by has numbers that no training gives")
        asked, right = self.checked.tolist()
        if bool((self.familiar.diff() < 0).any()) or not 0 <= right <= asked:
            raise SupSupError("what it is found by has numbers that no training gives")
