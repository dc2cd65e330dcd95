"""The paper's grading of HopSupSup, small: figures are of the right models, tasks and masks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from supsup import HopSupSup, UnitRecipe, data, nets
from supsup.data import Task
from supsup.runtime import progress
from supsup_paper.runs import hopfield as module
from supsup_paper.runs.hopfield import HopfieldResult, Recall, learn_and_recover

Hop = tuple[HopSupSup, list[Task], list[list[Tensor]]]


@pytest.fixture(scope="module")
def experiment() -> HopfieldResult:
    split = data.split(data.digits(), 2)
    recipe = UnitRecipe(epochs=10, batch_size=64)
    models = [HopSupSup(nets.HopMLP((784, 512, 512, 10)), seed, recipe=recipe, device="cpu") for seed in (3, 4)]
    return learn_and_recover(models, [split[0], split[3]], ["paper", "best-of"])


def test_right_masks_answer_as_the_masks_that_were_learned(experiment: HopfieldResult) -> None:
    """The issue's third figure: with the right mask recovered, accuracy is that of using it directly."""
    better, own = experiment.recovered["best-of"], experiment.own
    assert own.accuracy.shape == (2, 2)
    assert own.accuracy.min() > 0.97
    assert own.distance.max() == 0
    exact = better.distance == 0
    assert exact.sum() >= 3
    assert torch.equal(better.accuracy[exact], own.accuracy[exact])
    assert better.entropy.isfinite().all()


def test_traces_lead_from_the_mean_to_the_mask(experiment: HopfieldResult) -> None:
    paper = experiment.recovered["paper"]
    assert [tuple(trace.shape) for trace in paper.traces] == [(30, 2), (30, 2)]
    for task, trace in enumerate(paper.traces):
        assert trace[-1, task] == pytest.approx(paper.distance[0, task].item())
        assert trace[0, task] > 0.1


def test_the_summary_and_the_constant_memory(experiment: HopfieldResult) -> None:
    line = experiment.recovered["best-of"].summary()
    assert line["of"] == 4
    assert line["right masks"] >= line["exactly right"]
    assert len(line["accuracy % by seed"]) == 2
    assert len(set(experiment.memory_bytes)) == 1


@pytest.mark.parametrize(("output", "right"), [(1, (True, False)), (3, (False, True)), (9, (False, False))])
def test_only_the_output_of_the_right_task_and_label_counts(
    monkeypatch: pytest.MonkeyPatch, output: int, right: tuple[bool, bool]
) -> None:
    """Labels are not shared here: an answer in another task's outputs is wrong, even where its label would be right."""

    def always(models: object, x: Tensor, units: object) -> Tensor:
        return torch.nn.functional.one_hot(torch.full((1, len(x)), output), 10).float()

    split = data.split(data.digits(), 2)
    model = HopSupSup(nets.HopMLP((784, 64, 64, 10)), 0, recipe=UnitRecipe(batch_size=400), device="cpu")
    monkeypatch.setattr(module, "outputs_in_parallel", always)
    tasks = [split[0], split[3]]
    found = learn_and_recover([model], tasks, []).own.accuracy[0].tolist()
    ones = [float((task.test.labels == 1).float().mean()) for task in tasks]
    assert found == pytest.approx([share if counts else 0.0 for share, counts in zip(ones, right)])
    assert all(0.3 < share < 0.7 for share in ones)


def test_the_summary_by_hand() -> None:
    """A mask is right if it differs in less than one unit of a hundred."""
    accuracy, distance = torch.tensor([[1.0, 0.5], [0.25, 0.123456]]), torch.tensor([[0.0, 0.01], [0.009, 0.123456789]])
    recall = Recall(accuracy, distance, torch.tensor([[0.12345, 1.0], [2.0, 3.0]]), 1.23456, [])
    assert recall.right.tolist() == [[True, False], [True, False]]
    assert recall.summary() == {
        "accuracy %": pytest.approx(46.8364),
        "right masks": 2,
        "exactly right": 1,
        "of": 4,
        "seconds": 1.235,
        "accuracy % by seed": [75.0, 18.673],
        "accuracy % by seed and task": [[100.0, 50.0], [25.0, 12.346]],
        "distance by seed and task": [[0.0, 0.01], [0.009, 0.12346]],
        "entropy by seed and task": [[0.1235, 1.0], [2.0, 3.0]],
    }


def test_bars_and_clocks_go_on_with_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learning and recovering are timed, and nothing else: each look at this clock takes a second."""
    bars: list[tuple[str, int, list[float]]] = []

    @contextmanager
    def bar(description: str, total: int) -> Iterator[Callable[[float], None]]:
        bars.append((description, total, []))
        yield bars[-1][2].append

    clock = iter(float(second * second) for second in range(100))
    monkeypatch.setattr(progress, "bar", bar)
    monkeypatch.setattr(module, "_clock", lambda device: next(clock))
    split = data.split(data.digits(), 2)
    model = HopSupSup(nets.HopMLP((784, 16, 16, 10)), 0, recipe=UnitRecipe(batch_size=400), device="cpu")
    found = learn_and_recover([model], [split[0], split[3]], ["paper"])
    assert [(name, total, sum(replaced)) for name, total, replaced in bars] == [
        ("learning", 2, 2),
        ("own masks", 2, 2),
        ("paper", 2, 2),
    ]
    assert (found.learning_seconds, found.own.seconds) == (1, 0)
    assert found.recovered["paper"].seconds == (9 - 4) + (25 - 16)
    assert found.own.entropy.isnan().all()
    assert found.recovered["paper"].entropy.isfinite().all()
    assert (found.tasks, found.seeds, found.own.traces) == (["classes-0-1", "classes-6-7"], [0], [])
    assert found.memory_bytes == [4 * 2 * (16 * 16 + 16)] * 2
