"""From scores to masks."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from supsup.scores import initial_scores, soft_mask


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
