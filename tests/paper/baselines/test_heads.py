"""Separate Heads: the trunk is frozen after the first task, or always."""

import pytest
import torch

from supsup import Recipe, SupSupError, evaluate, nets
from supsup.data import Stream
from supsup_paper.baselines import SeparateHeads

RECIPE = Recipe("adam", 1e-2, steps=60)


def test_a_trained_trunk_is_frozen_after_the_first_task(stream: Stream) -> None:
    model = SeparateHeads(
        nets.FullyConnected((784, 60, 10)), recipe=RECIPE, first=Recipe("adam", 1e-3, steps=60), device="cpu"
    )
    initial = model.shared["layers.0.weight"].clone()
    model.learn(stream[0])
    trunk = model.shared["layers.0.weight"].clone()
    assert not torch.equal(initial, trunk)
    model.learn_many(stream[1:3])
    assert torch.equal(model.shared["layers.0.weight"], trunk)
    assert evaluate(model, stream[:3], "GG").average_accuracy > 0.6
    assert model.bytes == 4 * (784 * 60 + 3 * 60 * 10)


def test_a_random_trunk_is_never_trained(stream: Stream) -> None:
    model = SeparateHeads(nets.FullyConnected((784, 60, 10)), trunk="random", recipe=RECIPE, device="cpu")
    initial = model.shared["layers.0.weight"].clone()
    model.learn_many(stream[:3])
    assert torch.equal(model.shared["layers.0.weight"], initial)
    assert evaluate(model, stream[:3], "GG").average_accuracy > 0.5
    assert model.bytes == 4 * 3 * 60 * 10
    with pytest.raises(SupSupError, match="known: trained, random"):
        SeparateHeads(nets.FullyConnected((784, 10)), trunk="none", device="cpu")  # type: ignore[arg-type]
