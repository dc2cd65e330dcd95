"""Which images of a task are trained on, and which are held back."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from supsup.data import Part
from supsup.masks import philox

_FEWEST_HELD, MOST_HELD = 20, 500  # images; where fewer could be held back, images that are trained on judge
_SHARE_OF_FEW = 0.2  # of each class, where most layers are fixed, so that little is trained
_CALIBRATING = 0.5  # of the images held back: never trained on, so that a task's profile can be calibrated with them
_PER_CLASS = 50  # images, on average: where there are fewer, each one counts, and none is held back


class Holdout(NamedTuple):
    """A task's images by what they are for.

    trained    trained on
    judging    not trained on before the last round: they say how good a mask is
    final      trained on in the last round, where that is also on images that judged
    reserved   not even trained on there: what a task's profile is calibrated with; None where all images are trained on
    """

    trained: Part
    judging: Part
    final: Part
    reserved: Part | None

    @property
    def for_profile(self) -> tuple[Part, Part | None]:
        """The images that were trained on, and those that judge; without any held back, all are trained on."""
        return self.trained, None if self.reserved is None else self.judging


class HoldoutSplit:
    """Divides the images of parts; parts with the same rows and labels share the choice.

    always  hold back some of each class also where there are few
    """

    def __init__(self, seed: int, share: float, always: bool = False) -> None:
        self._seed, self._share, self._always = seed, share, always and share > 0
        self._known: dict[tuple[int, int], tuple[Part, Holdout]] = {}

    def divide(self, part: Part) -> Holdout:
        """Which images are trained on, and which are held back."""
        key = (id(part.rows), id(part.labels))
        if key not in self._known:
            self._known[key] = part, self._divided(part)  # the part keeps the ids of its tensors from being used again
        first, known = self._known[key]

        def chosen(each: Part) -> Part:
            return part if each is first else replace(part, rows=each.rows, labels=each.labels)

        reserved = None if known.reserved is None else chosen(known.reserved)
        return Holdout(chosen(known.trained), chosen(known.judging), chosen(known.final), reserved)

    def _divided(self, part: Part) -> Holdout:
        held, reserved = self._held_back(part)
        if int(held.sum()) < (1 if self._always else _FEWEST_HELD):
            return Holdout(part, _some(part, torch.arange(len(part)) < MOST_HELD), part, None)
        return Holdout(*(_some(part, chosen) for chosen in (~held, held, ~reserved, reserved)))

    def _held_back(self, part: Part) -> tuple[Tensor, Tensor]:
        """Which images judge, the same share of each class, drawn from the seed; and which of them are reserved.

        At least `_FEWEST_HELD` are reserved: a profile calibrated with fewer would have no use for shares of 5 %.
        """
        order = philox.permutations(self._seed, ["held back"], len(part))[0]
        labels = part.labels.cpu()[order]
        by_class = labels.argsort(stable=True)
        counts = labels.bincount()
        first = counts.cumsum(0) - counts
        rank = torch.empty_like(labels)
        rank[by_class] = torch.arange(len(labels)) - first[labels[by_class]]
        share = min(self._share, MOST_HELD / len(part))
        held, reserved = torch.zeros(2, len(part), dtype=torch.bool)
        if len(part) < _PER_CLASS * int((counts > 0).sum()):
            if self._always:
                few = (_SHARE_OF_FEW * counts).floor().clamp(min=1).minimum(counts - 1)
                held[order] = rank < few[labels]
            return held, held
        held[order] = rank < (share * counts)[labels].floor()
        reserved[order] = rank < (_CALIBRATING * share * counts)[labels].floor()
        return held, reserved if int(reserved.sum()) >= _FEWEST_HELD else held


def _some(part: Part, chosen: Tensor) -> Part:
    """The images of a part that are chosen."""
    positions = chosen.nonzero().flatten()
    device = part.images.device if part.in_memory else torch.device("cpu")
    rows = positions.to(device) if part.rows is None else part.rows[positions.to(part.rows.device)]
    return replace(part, rows=rows, labels=part.labels[positions.to(part.labels.device)])
