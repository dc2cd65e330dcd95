"""Parameter superposition: contexts keep tasks apart in one set of weights."""

from dataclasses import replace

import pytest
import torch

from supsup import Recipe, SupSupError, nets
from supsup.data import Stream
from supsup.evaluation.evaluator import learn_and_evaluate
from supsup_paper.baselines import PSP, LowerBound, psp
from supsup_paper.baselines.psp import Kind, context, folded, turn

RECIPE = Recipe(learning_rate=1e-3, steps=80)


@pytest.mark.parametrize("contexts", ["rotation", "complex", "binary"])
def test_contexts_hold_off_forgetting(contexts: str, stream: Stream) -> None:
    net = nets.FullyConnected((784, 100, 10))
    ours = learn_and_evaluate(PSP(net, contexts=contexts, recipe=RECIPE, device="cpu"), stream[:4], "GG", stages=[4])  # type: ignore[arg-type]
    none = learn_and_evaluate(
        LowerBound(net, heads="single", recipe=RECIPE, device="cpu"), stream[:4], "GG", stages=[4]
    )
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
    for name, made in first.items():
        assert torch.equal(made, again[name])
        assert not torch.allclose(made, second[name], atol=0.1)
        assert torch.equal(model.begin(stream[0])[name], made), "trained through the turn that it is asked through"
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


CPU = torch.device("cpu")
KINDS: list[Kind] = ["rotation", "complex", "binary"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [6, 7])
def test_a_turn_keeps_lengths_and_can_be_undone(kind: Kind, width: int) -> None:
    by = context(kind, 0, "a", width, CPU)
    rows = torch.randn(5, width, generator=torch.Generator().manual_seed(0))
    rotated = turn(kind, by, rows)
    assert torch.allclose(rotated.norm(dim=1), rows.norm(dim=1), atol=1e-5)
    assert not torch.allclose(rotated, rows, atol=1e-2)
    assert torch.allclose(turn(kind, by, rotated, back=True), rows, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_folded_weights_give_what_turned_inputs_give(kind: Kind) -> None:
    by = context(kind, 0, "a", 6, CPU)
    rows, weight = torch.randn(5, 6), torch.randn(4, 6)
    assert torch.allclose(rows @ folded(kind, by, weight).T, turn(kind, by, rows) @ weight.T, atol=1e-5)
    images, kernel = torch.randn(2, 6, 5, 5), torch.randn(4, 6, 3, 3)
    rotated = turn(kind, by, images.movedim(1, -1)).movedim(-1, 1)
    expected = torch.conv2d(rotated, kernel)
    assert torch.allclose(torch.conv2d(images, folded(kind, by, kernel)), expected, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_stacked_contexts_turn_their_own_rows(kind: Kind) -> None:
    contexts = torch.stack([context(kind, 0, label, 6, CPU) for label in "ab"])
    rows = torch.randn(2, 5, 6)
    expected = torch.stack([turn(kind, by, own) for by, own in zip(contexts, rows)])
    assert torch.allclose(turn(kind, contexts, rows), expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_contexts_come_from_the_seed_and_differ_by_task(kind: Kind) -> None:
    a, again, other = (context(kind, 0, label, 40, CPU) for label in ("a", "a", "b"))
    assert torch.equal(a, again)
    assert not torch.allclose(a, other, atol=0.1)


def test_rotations_prefer_no_direction() -> None:
    """Without the signs of R's diagonal, the first entries of Q would mostly be negative."""
    corners = torch.stack([context("rotation", 0, str(i), 4, CPU).diagonal() for i in range(200)])
    assert float(corners.mean(0).abs().max()) < 0.15
