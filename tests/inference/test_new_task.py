"""When a new mask is opened."""

from typing import Any

import pytest
import torch
from torch import Tensor

from supsup import NewTaskRule, SupSupError
from supsup.inference.new_task import choose_mask
from supsup.masks.bank import Bank

SHAPES = {"w": torch.Size([4])}


def bank_of(k: int) -> Bank:
    bank = Bank(SHAPES)
    for _ in range(k):
        bank.add({"w": torch.ones(4)})
    return bank


def stand_in(number: int) -> dict[str, Tensor]:
    return {"w": torch.zeros(4)}


def choose(values: list[float], known: int, rule: NewTaskRule | None = None, present: int | None = None) -> int | None:
    def gradient(bank: Bank) -> Tensor:
        assert len(bank) == len(values)
        return torch.tensor(values)

    return choose_mask(bank_of(known), gradient, stand_in, rule or NewTaskRule(), present)


def test_a_uniform_belief_opens_a_mask_and_a_peak_goes_on_with_it() -> None:
    assert choose([0.0] * 6, 6) is None
    assert choose([0, 0, 1.0, 0, 0, 0], 6) == 2


def test_the_threshold_is_one_plus_epsilon_over_k() -> None:
    """k·max ν just below and just above 1 + 2⁻³."""
    for above in (True, False):
        top = (1.125 + (0.001 if above else -0.001)) / 8
        values = torch.tensor([top] + [(1 - top) / 7] * 7).log().tolist()
        assert choose(values, 8) == (0 if above else None)


def test_the_first_batch_opens_the_first_mask() -> None:
    assert choose_mask(bank_of(0), lambda bank: torch.zeros(0), stand_in, NewTaskRule()) is None


def test_while_few_masks_exist_random_ones_fill_up() -> None:
    assert choose([1.0, 0, 0, 0, 0], 1) == 0
    assert choose([0.0, 0, 0, 0, 0], 1) is None
    assert choose([0.5, 0, 0, 2.0, 0], 2) is None, "a random mask that fits best is no known task"


def test_another_mask_is_taken_up_only_if_it_stands_out() -> None:
    """k·max ν is 1.18; the largest lies 4 deviations above the mean of the others, which are −σ and σ by turns."""
    values = [0.2] + [0.05, -0.05] * 25
    assert choose(values, 51) is None
    assert choose(values, 51, present=0) == 0, "the mask that is being trained needs no more than the paper's rule"
    assert choose(values, 51, NewTaskRule(deviations=3.9)) == 0
    assert choose(values, 51, NewTaskRule(deviations=4.1)) is None
    assert choose(values, 51, NewTaskRule(deviations=0)) == 0
    assert choose([1.0, 0.0], 2, NewTaskRule(floor=2, deviations=0)) == 0, "one other mask has no deviation"


def test_a_gradient_that_is_not_a_number_opens_a_mask() -> None:
    assert choose([float("nan")] * 6, 6, present=0) is None


@pytest.mark.parametrize("rule", [{"budget": 0}, {"floor": 2}, {"deviations": -1.0}, {"deviations": float("nan")}])
def test_rules_that_make_no_sense(rule: dict[str, Any]) -> None:
    with pytest.raises(SupSupError):
        NewTaskRule(**rule)


def test_two_masks_are_compared_at_least() -> None:
    """And with two nothing is said of deviations."""
    assert NewTaskRule(floor=2, deviations=0).floor == 2
    for wrong in ({"floor": 1, "deviations": 0}, {"floor": 2}):
        with pytest.raises(SupSupError, match="floor"):
            NewTaskRule(**wrong)


def test_defaults_and_limits_of_the_rule() -> None:
    assert NewTaskRule() == NewTaskRule(every=100, epsilon=0.125, floor=5, budget=2500, deviations=7.0)
    assert NewTaskRule(every=1, epsilon=1e-9, floor=10_000, budget=1, deviations=0).floor == 10_000
    for wrong in ({"every": 0}, {"epsilon": 0}, {"floor": 10_001}, {"budget": 0}, {"deviations": -1e-9}):
        with pytest.raises(SupSupError, match=next(iter(wrong))):
            NewTaskRule(**wrong)


def test_stand_ins_are_numbered_and_only_as_many_as_are_missing() -> None:
    asked: list[int] = []

    def numbered(number: int) -> dict[str, Tensor]:
        asked.append(number)
        return stand_in(number)

    for known, expected in ((1, [0, 1, 2, 3]), (4, [0]), (5, []), (6, [])):
        bank = bank_of(known)
        choose_mask(bank, lambda given: torch.zeros(len(given)), numbered, NewTaskRule())
        assert (asked, len(bank)) == (expected, known)
        asked.clear()
