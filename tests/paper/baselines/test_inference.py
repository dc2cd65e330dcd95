"""BatchE without being told the task: the fast answers are those of autograd and of trying every task."""

from typing import Any

import pytest
import torch
from torch import nn

from supsup import Recipe, SupSupError, evaluate, nets
from supsup.data import Stream
from supsup.inference import objectives
from supsup.model.predictor import Outputs
from supsup_paper.baselines import BatchE, TaskInference
from supsup_paper.baselines import inference as inferring
from supsup_paper.baselines.inference import (
    batche_exhaustive,
    batche_one_shot,
    batche_plain_exhaustive,
    batche_plain_one_shot,
    infer_batche_task,
)

RECIPE = Recipe("adam", 1e-2, steps=100, weight_decay=1e-4)


@pytest.fixture(scope="module")
def model(stream: Stream) -> BatchE:
    model = BatchE(nets.FullyConnected((784, 300, 100, 100)), recipe=RECIPE, device="cpu")
    model.learn_many(stream[:4])
    return model


def vectors(model: BatchE) -> dict[str, torch.Tensor]:
    keys = [key for key in model.own[model.tasks[0]] if key not in model.shared]
    return {key: torch.stack([model.own[name][key] for name in model.tasks]) for key in keys}


@pytest.mark.parametrize("objective", ["H", "G", "M"])
@pytest.mark.parametrize("images", [1, 5])
def test_one_shot_is_the_gradient_by_alpha(model: BatchE, stream: Stream, objective: str, images: int) -> None:
    x = stream[1].test.batch(torch.arange(3 * images))[0].view(3, images, -1)
    found = batche_one_shot(model, x, vectors(model), 10, objective)
    expected = torch.stack([batche_plain_one_shot(model, batch, model.tasks, 10, objective) for batch in x])
    assert torch.allclose(found, expected, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("outputs", ["classes", "all"])
def test_answers_are_those_with_the_task_that_was_found(model: BatchE, stream: Stream, outputs: Outputs) -> None:
    x = torch.cat([task.test.batch(torch.arange(10))[0] for task in stream[:4]])
    found = model.predict(x, outputs=outputs)
    assert len(set(found.tasks)) > 1
    for row, name in enumerate(found.tasks):
        known = model.predict(x[row : row + 1], task=name, outputs=outputs).probabilities
        torch.testing.assert_close(found.probabilities[row : row + 1], known, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("objective", ["H", "M"])
def test_abatche_tries_every_task(model: BatchE, stream: Stream, objective: str) -> None:
    x = stream[2].test.batch(torch.arange(8))[0].view(2, 4, -1)
    found = batche_exhaustive(model, x, vectors(model), 10, objective)
    expected = torch.stack([batche_plain_exhaustive(model, batch, model.tasks, 10, objective) for batch in x])
    assert torch.allclose(found, expected, atol=1e-4)
    by_hand = objectives.LEVELS[objective](model.run(model.state_of(model.tasks[3]), x[0]), 10).sum()
    assert float(-expected[0, 3]) == pytest.approx(float(by_hand), rel=1e-4)


def test_more_images_decide_better_and_all_of_a_batch_decide_right(model: BatchE, stream: Stream) -> None:
    one = evaluate(model, stream[:4], "GNu", protocol="paper")
    full = evaluate(model, stream[:4], "GNu", protocol="paper-full-batch")
    assert 0.3 < one.task_accuracy < full.task_accuracy
    assert full.task_accuracy > 0.95
    given = evaluate(model, stream[:4], "GG")
    assert full.average_accuracy == pytest.approx(given.average_accuracy, abs=0.05)


@pytest.mark.parametrize("way", ["one-shot", "abatche"])
def test_so_many_images_decide(model: BatchE, stream: Stream, way: Any) -> None:
    x = stream[3].test.batch(torch.arange(12))[0].view(2, 6, -1)
    few = infer_batche_task(model, x, model.tasks, 10, TaskInference(way, images=2))
    assert torch.equal(few, infer_batche_task(model, x[:, :2], model.tasks, 10, TaskInference(way)))


def test_among_and_per(model: BatchE, stream: Stream) -> None:
    x = stream[1].test.batch(torch.arange(30))[0]
    assert model.infer_task(x, per="batch") == "permutation-1"
    assert model.infer_task(x, per="batch", among=["permutation-0", "permutation-2"]) in (
        "permutation-0",
        "permutation-2",
    )
    each = model.infer_task(x)
    assert len(each) == 30
    assert model.infer_task(x, per="first") == each[0]
    assert model.predict(x).tasks == each
    batches = model.infer_batches(x.view(3, 10, *x.shape[1:]))
    assert batches == [model.infer_task(batch, per="batch") for batch in x.split(10)]


def test_on_any_module_by_autograd(convolutional: nn.Module, split: Stream) -> None:
    model = BatchE(convolutional, base="random", recipe=RECIPE, device="cpu")
    model.learn_many(split)
    x = split[1].test.batch(torch.arange(40))[0]
    assert model.infer_task(x, per="batch", method="abatche") in model.tasks
    assert model.infer_task(x, per="batch") in model.tasks


def test_errors(model: BatchE, stream: Stream, images: torch.Tensor) -> None:
    with pytest.raises(SupSupError, match="known: one-shot, abatche"):
        TaskInference("guess")  # type: ignore[arg-type]
    with pytest.raises(SupSupError, match="unknown objective"):
        TaskInference(objective="Z")
    with pytest.raises(SupSupError, match="at least 1"):
        TaskInference(images=0)
    with pytest.raises(SupSupError, match="unknown per"):
        model.infer_task(images, per="week")  # type: ignore[call-overload]
    heads = BatchE(nets.FullyConnected((784, 8, 10)), last="head", recipe=Recipe(steps=1), device="cpu")
    heads.learn_many(stream[:2])
    with pytest.raises(SupSupError, match="rank-one matrix on every layer"):
        heads.infer_task(images)


@pytest.mark.parametrize(("way", "score"), [("one-shot", "batche_one_shot"), ("abatche", "batche_exhaustive")])
def test_as_many_batches_go_through_one_pass_as_memory_has_room_for(
    model: BatchE, stream: Stream, way: Any, score: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = stream[0].test.batch(torch.arange(48))[0].view(12, 4, 1, 28, 28)
    names, how, sizes = list(model.tasks), TaskInference(way), list[int]()
    work = getattr(inferring, score)

    def watched(model: BatchE, piece: torch.Tensor, *given: Any) -> torch.Tensor:
        sizes.append(len(piece))
        return work(model, piece, *given)  # type: ignore[no-any-return]

    monkeypatch.setattr(inferring, score, watched)
    whole = infer_batche_task(model, x, names, 10, how)
    widest = max(max(model.shared[name].shape) for name in model.layers)
    row = len(names) * 4 * widest if way == "abatche" else max(4 * widest, widest * widest, len(names) * widest)
    for room, expected in ((5 * row, [5, 5, 2]), (5 * row - 1, [4, 4, 4]), (1, [1] * 12)):
        monkeypatch.setitem(inferring._VALUES, "cpu", room)
        sizes.clear()
        assert torch.equal(infer_batche_task(model, x, names, 10, how), whole)
        assert sizes == expected
