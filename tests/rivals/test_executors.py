"""Which executor is chosen."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from supsup import Recipe, SupSupError, nets
from supsup.data import Augmentation, Stream
from supsup_paper.baselines import BatchE, LowerBound, SeparateHeads, learn_side_by_side
from supsup_paper.baselines import training as executors
from supsup_paper.baselines import training as networks
from supsup_paper.baselines.training import learn_plain


def test_fully_connected_networks_are_stacked_and_others_are_not(
    stream: Stream, split: Stream, convolutional: nn.Module, brief: Recipe
) -> None:
    stacked = LowerBound(nets.FullyConnected((784, 8, 10)), recipe=brief, device="cpu")
    stacked.learn(stream[0])
    assert stacked.stack is not None
    plain = LowerBound(convolutional, recipe=brief, device="cpu")
    plain.learn(split[0])
    assert plain.stack is None
    assert not plain.lanes


def test_augmented_images_are_left_to_the_plain_path(split: Stream, brief: Recipe) -> None:
    task = replace(split[0], train=replace(split[0].train, augmentation=Augmentation(padding=2)))
    model = BatchE(nets.FullyConnected((784, 8, 10)), recipe=brief, device="cpu")
    model.learn_many([task, replace(task, name="again")])
    assert model.stack is None
    assert model.tasks == [task.name, "again"]
    with pytest.raises(SupSupError, match="not augmented"):
        learn_side_by_side([LowerBound(nets.FullyConnected((784, 8, 10)), device="cpu")], [task])


def test_independent_tasks_go_in_groups(stream: Stream, brief: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "_CHAINS", 2)
    model = BatchE(nets.FullyConnected((784, 8, 10)), base="random", recipe=brief, device="cpu")
    assert list(executors.learn_independent(model, stream[:5])) == [2, 2, 1]
    assert model.tasks == [task.name for task in stream[:5]]


def test_it_repeats_and_keeps_to_what_is_trained(convolutional: nn.Module, split: Stream, brief: Recipe) -> None:
    models = [SeparateHeads(convolutional, 2, trunk="random", recipe=brief, device="cpu") for _ in range(2)]
    trunk = models[0].shared["conv.weight"].clone()
    for model in models:
        learn_plain(model, split[0])
    states = [model.state_of(split[0].name) for model in models]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert torch.equal(states[0]["conv.weight"], trunk)
    assert not torch.equal(states[0]["linear.weight"], models[0].begin(split[1])["linear.weight"])
    assert states[0]["norm.running_mean"].any(), "statistics are the task's own"
    assert not models[0].begin(split[1])["norm.running_mean"].any(), "and begin afresh for the next"


def test_a_bias_is_not_left_out(stream: Stream, brief: Recipe) -> None:
    """Networks trained side by side are computed by hand, which knows no biases."""
    net = nets.FullyConnected((784, 8, 10))
    net.layers[0].bias = nn.Parameter(torch.ones(8))
    rival = LowerBound(net, recipe=brief, device="cpu")
    assert not rival.stackable
    rival.learn(stream[0])
    assert rival.shared["layers.0.bias"].any(), "it was trained"
