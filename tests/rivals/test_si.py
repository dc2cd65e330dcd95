"""Synaptic Intelligence: a weight's path adds up to what it did to the loss."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from supsup import Recipe, SupSupError, nets
from supsup.data import Stream
from supsup_paper.baselines import SI
from supsup_paper.baselines.consolidation import importance


def test_paths_add_up_to_the_fall_of_the_loss(stream: Stream) -> None:
    """In small steps over one fixed batch: Σ −gradient · movement is how far the loss came down."""
    train = stream[0].train
    small = type(stream[0])(
        "few", type(train)(train.images[:64], train.labels[:64], train.gain, train.offset), train, 10
    )
    recipe = Recipe("sgd", 1e-3, steps=50, batch_size=64)
    model = SI(nets.FullyConnected((784, 9, 10)), damping=1.0, recipe=recipe, device="cpu")
    x, y = small.train.tensors()
    start = float(cross_entropy(model.run(model.shared, x), y))
    before = {name: value.clone() for name, value in model.shared.items()}
    model.learn(small)
    fall = start - float(cross_entropy(model.run(model.shared, x), y))
    paths = [
        (model.memory[importance(name)] * ((model.shared[name] - before[name]) ** 2 + 1.0)).sum()
        for name in model.weights
    ]
    assert fall > 0.01
    assert abs(float(torch.stack(paths).sum()) - fall) < 0.05 * fall


def test_defaults_and_limits() -> None:
    net = nets.FullyConnected((784, 10))
    model = SI(net, device="cpu")
    assert (model.strength, model.damping, model.seed, model.labels) == (5.0, 0.1, 0, "shared")
    for wrong in ({"strength": -1e-9}, {"damping": 0}):
        with pytest.raises(SupSupError, match=next(iter(wrong))):
            SI(net, device="cpu", **wrong)
