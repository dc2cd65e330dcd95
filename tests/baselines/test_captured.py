"""The bench for any module takes the plain path's steps; on a CPU they are run one by one, not captured."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from supsup import Recipe, SupSupError, evaluate, nets
from supsup.baselines import BatchE, LowerBound, SeparateHeads, UpperBound
from supsup.baselines.any_module import learn_plain
from supsup.baselines.captured import Batches, learn_captured
from supsup.baselines.rival import Method
from supsup.data import Augmentation, Stream
from supsup.training.order import batch_positions

Make = Callable[..., Method]
METHODS: dict[str, Make] = {
    "lower": lambda net, recipe, device="cpu": LowerBound(net, recipe=recipe, device=device),
    "upper": lambda net, recipe, device="cpu": UpperBound(net, recipe=recipe, device=device),
    "heads": lambda net, recipe, device="cpu": SeparateHeads(net, recipe=recipe, device=device),
    "batche": lambda net, recipe, device="cpu": BatchE(net, base="random", last="head", recipe=recipe, device=device),
}


@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS.keys())
def test_a_bench_takes_the_plain_steps(make: Make, convolutional: nn.Module, split: Stream) -> None:
    recipe = Recipe("adam", 1e-3, batch_size=100, epochs=1, schedule="cosine", weight_decay=1e-4)
    fast, slow = make(convolutional, recipe), make(convolutional, recipe)
    for task in split:
        learn_captured(fast, task)
        learn_plain(slow, task)
    for task in split:
        for name, value in slow.state_of(task.name).items():
            assert torch.allclose(value, fast.state_of(task.name)[name], atol=2e-4), (task.name, name)


def test_batches_are_augmented_as_the_plain_ones_are(split: Stream) -> None:
    part = replace(split[1].train, augmentation=Augmentation(padding=2, flip=True))
    batches = Batches(part, steps=5, batch_size=32)
    batches.fill(part, "name", seed=3, offset=5)
    order = batch_positions(3, "name", len(part), 32, 5)
    for x, y in part.training_batches(order, 3, "name"):
        images, labels = batches.next()
        assert torch.allclose(images, x, atol=1e-5)
        assert torch.equal(labels, y + 5)


def test_tasks_with_rearranged_pixels_are_for_other_networks(stream: Stream, brief: Recipe) -> None:
    method = METHODS["upper"](nets.FullyConnected((784, 8, 10)), brief)
    with pytest.raises(SupSupError, match="rearranged pixels"):
        learn_captured(method, stream[0])


def test_a_bench_is_used_again_for_the_next_task(convolutional: nn.Module, split: Stream, brief: Recipe) -> None:
    """Capturing it anew would take longer than some tasks."""
    method = METHODS["upper"](convolutional, brief)
    learn_captured(method, split[0])
    (bench,) = method.benches
    learn_captured(method, split[1])
    assert method.benches == [bench]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("kind", ["upper", "batche"])
def test_captured_steps_learn_what_plain_ones_learn(kind: str, convolutional: nn.Module, split: Stream) -> None:
    """In bfloat16, so answers are compared, not weights; tasks of BatchE go on streams of their own."""
    recipe = Recipe("adam", 1e-2, batch_size=100, epochs=4, schedule="cosine", weight_decay=1e-4)
    found = []
    for device in ("cuda", "cpu"):
        model = METHODS[kind](convolutional, recipe, device)
        model.learn_many(split)
        found.append(evaluate(model, split, "GG").average_accuracy)
    assert found[1] > 0.5
    assert found[0] == pytest.approx(found[1], abs=0.05)
