"""Outputs of one's own: which are open, and how an answer names its task."""

import pytest
import torch

from supsup import Recipe, SupSupError, evaluate, nets
from supsup.data import Stream
from supsup.evaluation.evaluator import follow
from supsup_paper.baselines import SI, LowerBound, OnlineEWC

RECIPE = Recipe("adam", 1e-3, steps=60)


def test_unshared_labels_use_outputs_of_their_own(stream: Stream) -> None:
    model = SI(nets.FullyConnected((784, 60, 30)), labels="unshared", recipe=RECIPE, device="cpu")
    closed = model.begin(stream[0])["open outputs"]
    assert closed.isfinite().tolist() == [True] * 10 + [False] * 20
    for i, task in enumerate(stream[:3]):
        assert model.label_offset(task) == 10 * i
        model.learn(task)
    x, y = stream[2].test.tensors()
    answer = model.predict(x)
    assert set(answer.tasks) <= set(model.tasks)
    assert int(answer.labels.max()) < 10
    assert int(answer.labels.min()) >= 0
    given = model.predict(x, task="permutation-2")
    assert set(given.tasks) == {"permutation-2"}
    assert float((given.labels == y).float().mean()) > 0.7
    unknown = evaluate(model, stream[:3], "GNu", protocol="strict")
    assert unknown.average_accuracy < evaluate(model, stream[:3], "GG").average_accuracy
    with pytest.raises(SupSupError, match="outputs"):
        model.learn(stream[3])


def test_springs_hold_off_forgetting(stream: Stream) -> None:
    """The heart of both methods: the first task is remembered better than without springs."""
    net, recipe = nets.FullyConnected((784, 60, 10)), Recipe("adam", 3e-3, steps=100)
    free = follow(LowerBound(net, heads="single", recipe=recipe, device="cpu"), stream[:3], "GNs", stages=[3])
    ewc = OnlineEWC(net, strength=100.0, images=500, recipe=recipe, device="cpu")
    si = SI(net, strength=10.0, recipe=recipe, device="cpu")
    for model in (ewc, si):
        held = follow(model, stream[:3], "GNs", stages=[3])
        assert held.per_task["permutation-0"] > free.per_task["permutation-0"] + 0.03


def test_without_strength_there_is_no_spring(stream: Stream) -> None:
    net = nets.FullyConnected((784, 20, 10))
    models = [
        SI(net, strength=0.0, recipe=RECIPE, device="cpu"),
        OnlineEWC(net, strength=0.0, images=9, recipe=RECIPE, device="cpu"),
    ]
    for model in models:
        model.learn_many(stream[:2])
    for name in models[0].weights:
        assert torch.allclose(models[0].shared[name], models[1].shared[name], atol=1e-5)
    assert models[0].bytes == 3 * 4 * (784 * 20 + 20 * 10)


def test_unknown_settings() -> None:
    net = nets.FullyConnected((784, 10))
    with pytest.raises(SupSupError, match="known: shared, unshared"):
        SI(net, labels="none", device="cpu")
    with pytest.raises(SupSupError, match="strength"):
        SI(net, strength=-1.0, device="cpu")
