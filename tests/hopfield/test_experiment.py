"""The paper's grading of HopSupSup, small: figures are of the right models, tasks and masks."""

import pytest
import torch
from torch import Tensor

from supsup import HopSupSup, UnitRecipe, data, nets
from supsup.data import Task
from supsup.hopfield import experiment as module
from supsup.hopfield.experiment import Experiment, run

Hop = tuple[HopSupSup, list[Task], list[list[Tensor]]]


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    split = data.split(data.digits(), 2)
    recipe = UnitRecipe(epochs=10, batch_size=64)
    models = [HopSupSup(nets.HopMLP((784, 512, 512, 10)), seed, recipe=recipe, device="cpu") for seed in (3, 4)]
    return run(models, [split[0], split[3]], ["paper", "best-of"])


def test_right_masks_answer_as_the_masks_that_were_learned(experiment: Experiment) -> None:
    """The issue's third figure: with the right mask recovered, accuracy is that of using it directly."""
    better, own = experiment.recovered["best-of"], experiment.own
    assert own.accuracy.shape == (2, 2)
    assert own.accuracy.min() > 0.97
    assert own.distance.max() == 0
    exact = better.distance == 0
    assert exact.sum() >= 3
    assert torch.equal(better.accuracy[exact], own.accuracy[exact])
    assert better.entropy.isfinite().all()


def test_traces_lead_from_the_mean_to_the_mask(experiment: Experiment) -> None:
    paper = experiment.recovered["paper"]
    assert [tuple(trace.shape) for trace in paper.traces] == [(30, 2), (30, 2)]
    for task, trace in enumerate(paper.traces):
        assert trace[-1, task] == pytest.approx(paper.distance[0, task].item())
        assert trace[0, task] > 0.1


def test_the_summary_and_the_constant_memory(experiment: Experiment) -> None:
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
    monkeypatch.setattr(module, "outputs_together", always)
    tasks = [split[0], split[3]]
    found = run([model], tasks, []).own.accuracy[0].tolist()
    ones = [float((task.test.labels == 1).float().mean()) for task in tasks]
    assert found == pytest.approx([share if counts else 0.0 for share, counts in zip(ones, right)])
    assert all(0.3 < share < 0.7 for share in ones)
