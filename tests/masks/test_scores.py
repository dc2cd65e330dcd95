"""From scores to masks."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from supsup.masks.scores import RunningMean, hard_mask, initial_scores, scores_of, soft_mask, transferred, weights_kept


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=30))
def test_threshold_keeps_what_is_at_least_zero_and_passes_the_gradient_straight(values: list[float]) -> None:
    scores = torch.tensor(values, requires_grad=True)
    incoming = torch.arange(len(values), dtype=torch.float32) - 3
    mask = soft_mask(scores, None)
    assert mask.tolist() == [float(v >= 0) for v in scores.tolist()]
    (mask * incoming).sum().backward()
    assert torch.equal(scores.grad, incoming)  # type: ignore[arg-type]


def test_starting_scores_are_kaiming_uniform_and_belong_to_the_task() -> None:
    shapes = {"a": torch.Size([50, 400]), "b": torch.Size([30, 20])}
    scores = initial_scores(0, "one", shapes)
    for name, shape in shapes.items():
        bound = 1 / math.sqrt(shape[1])
        assert scores[name].shape == shape
        assert 0.9 * bound < float(scores[name].abs().max()) <= bound
    again, other = initial_scores(0, "one", shapes), initial_scores(0, "two", shapes)
    assert torch.equal(scores["a"], again["a"])
    assert not torch.equal(scores["a"], other["a"])


@pytest.mark.parametrize(
    ("shape", "budget", "kept"),
    [
        ((20, 30), 2, 100),
        ((40, 20, 3, 3), 8, 480),  # of a convolution only channels count
        ((5, 160), 32, 400),  # half of 800, where s·(in + out) would be 5,280
        ((10, 10), 2.5, 50),  # exactly half
        ((30, 10), 0.01, 1),
        ((1, 1), 8, 1),
    ],
)
def test_a_budget_is_inputs_and_outputs_but_at_most_half_a_layer(
    shape: tuple[int, ...], budget: float, kept: int
) -> None:
    """The cap decides bytes and accuracy of SplitCIFAR100's large budgets: without it last layers are kept whole."""
    assert weights_kept(torch.Size(shape), budget, None) == kept


def test_a_density_has_no_cap() -> None:
    assert [weights_kept(torch.Size([10, 10]), None, density) for density in (0.001, 0.3, 0.8, 1.0)] == [1, 30, 80, 100]


@given(st.lists(st.integers(-3, 3), min_size=2, max_size=30), st.integers(1, 30))
def test_edge_popup_keeps_the_largest_in_size_and_turns_the_gradient(values: list[int], keep: int) -> None:
    """A hard mask keeps exactly so many, a soft one all that are as large; a negative score grows downwards."""
    keep = min(keep, len(values))
    scores = torch.tensor(values, dtype=torch.float32, requires_grad=True)
    hard, soft = hard_mask(scores, keep), soft_mask(scores, keep)
    least = sorted(map(abs, values), reverse=True)[keep - 1]
    assert int(hard.sum()) == keep
    assert soft.tolist() == [float(abs(value) >= least) for value in values]
    assert bool((hard <= soft.bool()).all())
    (3 * soft).sum().backward()
    assert scores.grad is not None
    assert scores.grad.tolist() == [3.0 if value >= 0 else -3.0 for value in values]


def test_transferred_scores_are_as_large_as_random_ones_and_in_the_order_of_the_mean() -> None:
    """Larger ones would hardly move at the recipe's learning rate; noise beside them would undo what is handed on."""
    shape, tasks = torch.Size([60, 400]), 20
    own = initial_scores(0, "next", {"w": shape})["w"]
    kept = torch.randint(0, tasks + 1, shape, generator=torch.Generator().manual_seed(0))
    bound = 1 / math.sqrt(400)
    plain, centred = (transferred({"w": kept / tasks}, {"w": own}, centred)["w"] for centred in (False, True))
    assert float(plain.max()) == pytest.approx(bound, rel=0.02)
    assert float(plain.min()) == pytest.approx(0, abs=0.02 * bound)
    assert float(centred.min()) == pytest.approx(-bound, rel=0.02)
    assert float(centred.max()) == pytest.approx(bound, rel=0.02)
    for scores in (plain, centred):
        order = scores.flatten().argsort()
        assert bool((kept.flatten()[order].diff() >= 0).all()), "a weight that was kept more often comes later"


def test_a_tasks_own_random_scores_decide_between_weights_kept_equally_often() -> None:
    """Without them edge-popup would choose by position, and scores of exactly 0 have no sign to learn by."""
    shape = torch.Size([30, 40])
    own = initial_scores(0, "next", {"w": shape})["w"]
    for share in (0.0, 0.5, 1.0):
        scores = transferred({"w": torch.full(shape, share)}, {"w": own}, centred=False)["w"]
        steps = own.flatten()[scores.flatten().argsort()].diff()
        assert float(steps.min()) > -1e-4 * float(own.max()), "in their order, but for rounding"
        assert bool((scores != 0).all())


def test_the_running_mean_counts_every_task_once() -> None:
    """Transfer from scores, as the released scripts do it, begins at this mean."""
    first, second = torch.rand(2, 3, 4), torch.rand(1, 3, 4)
    running = RunningMean().with_more({"w": first}).with_more({"w": second})
    assert running.count == 3
    assert torch.allclose(running.mean()["w"], torch.cat([first, second]).mean(0))


def test_scores_of_a_mask_give_that_mask_at_half_the_bound() -> None:
    """A mask whose scores are gone can be trained further: at once, and without a weight at the edge."""
    mask = {"w": torch.rand(6, 16, generator=torch.Generator().manual_seed(0)) < 0.5}
    scores = scores_of(mask)["w"]
    assert torch.equal(hard_mask(scores, None), mask["w"])
    assert scores.abs().unique().tolist() == [0.125]
