"""Parameter superposition: contexts keep tasks apart in one set of weights."""

from dataclasses import replace

import pytest
import torch

from supsup import Recipe, SupSupError, nets
from supsup.data import Stream
from supsup.evaluation.evaluator import follow
from supsup_paper.baselines import PSP, LowerBound, psp

RECIPE = Recipe(learning_rate=1e-3, steps=80)


@pytest.mark.parametrize("contexts", ["rotation", "complex", "binary"])
def test_contexts_hold_off_forgetting(contexts: str, stream: Stream) -> None:
    net = nets.FullyConnected((784, 100, 10))
    ours = follow(PSP(net, contexts=contexts, recipe=RECIPE, device="cpu"), stream[:4], "GG", stages=[4])  # type: ignore[arg-type]
    none = follow(LowerBound(net, heads="single", recipe=RECIPE, device="cpu"), stream[:4], "GG", stages=[4])
    assert ours.average_accuracy > 0.7
    assert ours.average_accuracy > none.average_accuracy


def test_only_weights_are_stored_and_contexts_come_back(
    stream: Stream, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = PSP(nets.FullyConnected((784, 20, 10)), recipe=replace(RECIPE, steps=5), device="cpu")
    for task in stream[:3]:
        model.learn(task)
    assert model.bytes == 4 * (784 * 20 + 20 * 10)
    kept = model.predict(images, task="permutation-0").confidence
    monkeypatch.setitem(psp._KEPT, "cpu", 0)
    model._ready.clear()
    for name in model.tasks:
        model.predict(images, task=name)
        assert len(model._ready) == 1
    assert torch.equal(model.predict(images, task="permutation-0").confidence, kept)


def test_unknown_contexts() -> None:
    with pytest.raises(SupSupError, match="rotation, complex, binary"):
        PSP(nets.FullyConnected((784, 10)), contexts="none", device="cpu")  # type: ignore[arg-type]


def test_every_task_and_layer_has_a_context_of_its_own(stream: Stream) -> None:
    """One turn for all tasks is no superposition at all: PSP would be the Lower Bound."""
    model = PSP(nets.FullyConnected((784, 12, 12, 10)), recipe=RECIPE, device="cpu")
    first, second, again = (model.context_of(stream[i].name) for i in (0, 1, 0))
    assert first.keys() == {f"context/{name}" for name in model.layers}
    for name, turn in first.items():
        assert torch.equal(turn, again[name])
        assert not torch.allclose(turn, second[name], atol=0.1)
        assert torch.equal(model.begin(stream[0])[name], turn), "trained through the turn that it is asked through"
        assert torch.equal(model.state_of(stream[1].name)[name], second[name])
    one, other = (first[f"context/{name}"] for name in model.layers[1:])
    assert not torch.allclose(one, other, atol=0.1)


def test_contexts_are_held_ready_while_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    model = PSP(nets.FullyConnected((32, 16, 10)), contexts="rotation", device="cpu")
    each = 4 * (32 * 32 + 16 * 16)
    monkeypatch.setitem(psp._KEPT, "cpu", 3 * each)
    held = []
    for number in range(5):
        first = model.context_of(f"t{number}")
        assert model.context_of(f"t{number}") is first
        held.append(len(model._ready))
    assert held == [1, 2, 3, 1, 2]
