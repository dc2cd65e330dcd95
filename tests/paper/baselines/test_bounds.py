"""Upper and Lower Bound are two readings of one training."""

import pytest
import torch

from supsup import Recipe, SupSupError, evaluate, nets
from supsup.data import Stream
from supsup.evaluation.evaluator import learn_and_evaluate
from supsup_paper.baselines import LowerBound, UpperBound


def net() -> nets.FullyConnected:
    return nets.FullyConnected((784, 30, 10))


RECIPE = Recipe(learning_rate=1e-2, steps=40)


def test_the_lower_bound_forgets_and_the_upper_does_not(stream: Stream) -> None:
    longer = Recipe(learning_rate=1e-2, steps=120)
    lower = learn_and_evaluate(LowerBound(net(), recipe=longer, device="cpu"), stream[:3], "GG")
    upper = learn_and_evaluate(UpperBound(net(), recipe=longer, device="cpu"), stream[:3], "GG")
    assert lower.forgetting > 0.05
    assert upper.forgetting == 0
    assert upper.fresh.keys() == lower.fresh.keys()
    for name, grade in upper.fresh.items():
        assert grade.accuracy == pytest.approx(lower.fresh[name].accuracy, abs=0.01), "the newest network is the same"


def test_the_lower_bound_of_an_upper_bound_is_one_trained_alone(stream: Stream) -> None:
    """What halves the time of the two rows."""
    upper, lower = UpperBound(net(), recipe=RECIPE, device="cpu"), LowerBound(net(), recipe=RECIPE, device="cpu")
    for task in stream[:3]:
        upper.learn(task)
        lower.learn(task)
    left = upper.lower_bound()
    for task in stream[:3]:
        for name, value in lower.state_of(task.name).items():
            assert torch.allclose(value, left.state_of(task.name)[name], atol=1e-5)
    assert evaluate(left, stream[:3], "GG").average_accuracy == evaluate(lower, stream[:3], "GG").average_accuracy
    assert left.bytes == lower.bytes


def test_every_head_begins_where_the_first_did_and_the_trunk_where_the_last_task_left_it(stream: Stream) -> None:
    model = LowerBound(net(), recipe=RECIPE, device="cpu")
    head, trunk = model.shared[model.head].clone(), model.shared["layers.0.weight"].clone()
    model.learn(stream[0])
    start = model.begin(stream[1])
    assert torch.equal(start[model.head], head)
    assert not torch.equal(start["layers.0.weight"], trunk)


def test_one_head_for_all_needs_no_task(stream: Stream, images: torch.Tensor) -> None:
    model = LowerBound(net(), heads="single", recipe=RECIPE, device="cpu")
    model.learn(stream[0])
    model.learn(stream[1])
    answer = model.predict(images)
    assert answer.tasks[0] == "permutation-1"
    assert torch.equal(answer.labels, model.predict(images, task="permutation-0").labels)
    assert model.bytes == 4 * (784 * 30 + 30 * 10)
    with pytest.raises(SupSupError, match="known: multi, single"):
        LowerBound(net(), heads="three", device="cpu")  # type: ignore[arg-type]


def test_heads_are_filled_as_in_the_released_scripts() -> None:
    """Every task's head begins with the same small numbers; one head for all is filled like the other layers."""
    multi, single = LowerBound(net(), device="cpu"), LowerBound(net(), heads="single", device="cpu")
    bound = 30**-0.5
    for model in (multi, UpperBound(net(), device="cpu")):
        assert 0.9 * bound < model.shared[model.head].abs().max() <= bound
    assert single.shared[single.head].abs().max() > bound
    assert torch.equal(multi.shared["layers.0.weight"], single.shared["layers.0.weight"])


def test_a_network_for_each_task_is_counted(stream: Stream) -> None:
    """And of the lower bound one trunk, and a head for each."""
    upper = UpperBound(nets.FullyConnected((784, 20, 10)), recipe=Recipe(steps=1), device="cpu")
    for task in stream[:3]:
        upper.learn(task)
    trunk, head = 4 * 784 * 20, 4 * 20 * 10
    assert upper.bytes == 3 * (trunk + head)
    assert upper.lower_bound().bytes == trunk + 3 * head
