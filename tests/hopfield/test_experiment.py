"""The paper's grading of HopSupSup, small: figures are of the right models, tasks and masks."""

import pytest
import torch
from torch import Tensor

from supsup import HopSupSup, UnitRecipe, data, nets
from supsup.data import Task
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
