"""The fast path is the plain path: the same weights, whoever is trained beside."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from supsup import Recipe, SupSupError, data, nets
from supsup.data import Augmentation, Stream
from supsup_paper.baselines import PSP, SI, BatchE, LowerBound, OnlineEWC, SeparateHeads, UpperBound, learn_side_by_side
from supsup_paper.baselines import training as executors
from supsup_paper.baselines import training as networks
from supsup_paper.baselines.baseline import Baseline
from supsup_paper.baselines.training import learn_plain

Make = Callable[..., Baseline]


def net(outputs: int = 10) -> nets.FullyConnected:
    return nets.FullyConnected((784, 12, 8, outputs))


METHODS: dict[str, Make] = {
    "lower": lambda seed, recipe, device="cpu": LowerBound(net(), seed, recipe=recipe, device=device),
    "single head": lambda seed, recipe, device="cpu": LowerBound(
        net(), seed, heads="single", recipe=recipe, device=device
    ),
    "upper": lambda seed, recipe, device="cpu": UpperBound(net(), seed, recipe=recipe, device=device),
    "psp": lambda seed, recipe, device="cpu": PSP(net(), seed, recipe=recipe, device=device),
    "psp binary": lambda seed, recipe, device="cpu": PSP(net(), seed, contexts="binary", recipe=recipe, device=device),
    "psp complex": lambda seed, recipe, device="cpu": PSP(
        net(), seed, contexts="complex", recipe=recipe, device=device
    ),
    "heads": lambda seed, recipe, device="cpu": SeparateHeads(net(), seed, recipe=recipe, device=device),
    "batche": lambda seed, recipe, device="cpu": BatchE(net(), seed, recipe=recipe, device=device),
    "batche, heads": lambda seed, recipe, device="cpu": BatchE(
        net(), seed, base="random", last="head", recipe=recipe, device=device
    ),
    "ewc": lambda seed, recipe, device="cpu": OnlineEWC(
        net(30), seed, labels="unshared", images=40, recipe=recipe, device=device
    ),
    "si": lambda seed, recipe, device="cpu": SI(net(30), seed, labels="unshared", recipe=recipe, device=device),
}


def same(a: Baseline, b: Baseline) -> None:
    assert a.tasks == b.tasks
    for task in a.tasks:
        ours, theirs = a.state_of(task), b.state_of(task)
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            assert torch.allclose(value, theirs[name], atol=2e-4, rtol=1e-3), (task, name)


@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS.keys())
def test_two_seeds_in_step_are_two_plain_baselines(make: Make, brief: Recipe) -> None:
    fast, slow = ([make(seed, brief) for seed in (0, 1)] for _ in range(2))
    source = data.digits()
    streams = [data.permuted(source, 3, seed=seed) for seed in (0, 1)]
    for tasks in zip(*streams):
        learn_side_by_side(fast, tasks)
        for method, task in zip(slow, tasks):
            learn_plain(method, task)
    for a, b in zip(fast, slow):
        same(a, b)
    assert not torch.equal(fast[0].shared[fast[0].layers[0]], fast[1].shared[fast[1].layers[0]])


@pytest.mark.parametrize("kind", ["batche", "batche, heads", "heads"])
def test_independent_tasks_at_once_are_the_plain_ones(kind: str, stream: Stream, brief: Recipe) -> None:
    fast, slow = METHODS[kind](0, brief), METHODS[kind](0, brief)
    assert fast.learn_many(stream[:4]) == [task.name for task in stream[:4]]
    for task in stream[:4]:
        learn_plain(slow, task)
    same(fast, slow)


def test_a_learning_rate_that_changes(stream: Stream, brief: Recipe) -> None:
    recipe = replace(brief, optimiser="adam", schedule="cosine", warm_up=0.2)
    fast, slow = METHODS["lower"](0, recipe), METHODS["lower"](0, recipe)
    fast.learn(stream[0])
    learn_plain(slow, stream[0])
    same(fast, slow)


def test_tasks_of_other_images_are_refused(stream: Stream, split: Stream, brief: Recipe) -> None:
    pair = [METHODS["lower"](seed, brief) for seed in (0, 1)]
    with pytest.raises(SupSupError, match="same images"):
        learn_side_by_side(pair, [stream[0], split[0]])


def test_other_networks_are_refused(convolutional: torch.nn.Module, split: Stream) -> None:
    with pytest.raises(SupSupError, match="fully connected"):
        learn_side_by_side([LowerBound(convolutional, device="cpu")], [split[0]])


@pytest.mark.gpu
@pytest.mark.parametrize("kind", METHODS.keys())
def test_captured_steps_are_the_plain_ones(kind: str, stream: Stream, brief: Recipe) -> None:
    gpu, slow = METHODS[kind](0, brief, "cuda"), METHODS[kind](0, brief)
    for task in stream[:3]:
        gpu.learn(task)
        learn_plain(slow, task)
    for learned in slow.tasks:
        for name, value in slow.state_of(learned).items():
            assert torch.allclose(gpu.state_of(learned)[name].cpu(), value, atol=2e-3), (learned, name)


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
    baseline = LowerBound(net, recipe=brief, device="cpu")
    assert not baseline.stackable
    baseline.learn(stream[0])
    assert baseline.shared["layers.0.bias"].any(), "it was trained"
