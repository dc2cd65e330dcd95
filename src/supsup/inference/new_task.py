"""Is this a new task? Where task boundaries are unknown (NNs), the gradient over the known masks decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from supsup.masks.bank import Bank
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import CheckedFields, real, whole

_MOST_FLOOR = 10_000  # random masks for a decision


@dataclass(frozen=True)
class NewTaskRule(CheckedFields):
    """When `observe` opens a new mask.

    Every `every` batches: ν = softmax(−∂H/∂α) over the known masks. A new mask is opened if k·max ν < 1 + epsilon;
    otherwise the mask with the largest ν is trained on. While fewer than `floor` masks exist, random ones fill up α:
    with one mask k·max ν would always be 1. At `budget` masks no new one is opened, and images that fit none are
    ignored: a mask that learned a second task would attract the images of all others.

    deviations  training switches to another mask only if its −∂H/∂α is this many standard deviations above the mean of
                the others, since a mistake would overwrite what it has learned; 0: the paper's rule alone
    """

    every: Annotated[int, whole(1)] = 100
    epsilon: Annotated[float, real(above=0)] = 2**-3
    floor: Annotated[int, whole(2, _MOST_FLOOR)] = 5
    budget: Annotated[int, whole(1)] = 2500
    deviations: Annotated[float, real(0)] = 7.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.floor == 2 and self.deviations:
            raise SupSupError("one other mask has no deviation: NewTaskRule needs floor ≥ 3, or deviations = 0")


def choose_mask(
    bank: Bank,
    gradient: Callable[[Bank], Tensor],
    stand_in: Callable[[int], dict[str, Tensor]],
    rule: NewTaskRule,
    present: int | None = None,
) -> int | None:
    """The index of the mask to train on, or None for a new one.

    `gradient` gives −∂H/∂α [k] for a bank; `stand_in` gives random mask i; `present` is the mask in training.
    """
    known = len(bank)
    if known == 0:
        return None
    if known < rule.floor:
        bank = bank.subset(range(known))
        for i in range(rule.floor - known):
            bank.add(stand_in(i))
    values = gradient(bank)
    top = values.softmax(0).max(0)
    best = int(top.indices)
    if best >= known or not float(top.values) * len(bank) >= 1 + rule.epsilon:
        return None
    sure = best == present or not rule.deviations or deviations_above(values, best) >= rule.deviations
    return best if sure else None


def deviations_above(values: Tensor, index: int) -> float:
    """How far one of the values is above the mean of the others, in their standard deviations."""
    others = torch.cat([values[:index], values[index + 1 :]])
    return float((values[index] - others.mean()) / others.std())
