"""Runs of the paper's experiments, stopped where they would begin to learn or to grade, for tests to look at."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from supsup import Evaluation, SupSup, nets
from supsup.evaluation.grading import Grade, GradingProtocol
from supsup_paper.baselines.baseline import Baseline
from supsup_paper.records import PlannedRow
from supsup_paper.runs import checkpoints as resuming
from supsup_paper.runs import cifar
from supsup_paper.runs import hopfield as hop
from supsup_paper.runs import mnist as masks
from supsup_paper.runs import mnist_baselines as baselines
from supsup_paper.runs.environment import Environment
from supsup_paper.runs.reproduction import RUNNERS
from supsup_paper.runs.schedule import PlannedTraining


class Stopped(Exception):
    """A run got to the point where it was to be stopped."""


@dataclass(frozen=True)
class Graded:
    """What one call of `evaluate` was asked."""

    inference: Any
    scenario: str
    protocol: str
    stages: tuple[int, ...]


class Witness:
    """Sees what runs are about to learn and grade with, and keeps them from doing it.

    trained  models with their recipes at that moment, call after call
    graded   grading after grading
    clusters who was to train, call after call
    """

    def __init__(self, environment: Environment, folder: Path) -> None:
        self.environment, self.folder = environment, folder
        self.trained: list[list[tuple[Any, Any]]] = []
        self.graded: list[Graded] = []
        self.clusters: list[str | None] = []
        self.calls: int | None = 1

    def learn(self, *models: Any, cluster: str | None = None) -> None:
        self.clusters.append(cluster)
        self.trained.append([(model, model.recipe) for model in models])
        if len(self.trained) == self.calls:
            raise Stopped

    def evaluate(
        self,
        model: Any,
        stream: Any,
        scenario: str,
        *,
        protocol: GradingProtocol,
        stages: Sequence[int],
        cache: Any,
        outputs: str,
    ) -> Evaluation:
        assert outputs == "all", "the paper's answers are the largest of all outputs"
        self.graded.append(Graded(model.inference, scenario, protocol, tuple(stages)))
        return Evaluation(scenario, protocol, list(stages), [{"task": Grade(0.5, 0.5)} for _ in stages], {}, 1)

    def start(self, *experiments: Any, calls: int | None = 1, tasks: int = 2) -> list[Any]:
        """Start a run for rows of one training and return its models; few tasks, which do not matter here.

        calls  of learning, before the run is stopped; None: it goes on to the end
        """
        self.calls, self.trained, self.graded, self.clusters = calls, [], [], []
        small = [replace(one, training=replace(one.training, tasks=tasks)) for one in experiments]
        wanted = tuple(PlannedRow("tiny", f"row{i}", "x", "full", one, self.folder) for i, one in enumerate(small))
        with suppress(Stopped):  # seed 1: nothing is timed
            run, trial = RUNNERS[experiments[0].kind], PlannedTraining(wanted, (1,))
            for _ in run.start(trial, run.within(trial, self.environment)):
                pass
        return [model for model, _ in self.trained[-1]]

    @property
    def recipes(self) -> list[Any]:
        """Those of the last call."""
        return [recipe for _, recipe in self.trained[-1]]


@pytest.fixture
def witness(environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Witness:
    seen = Witness(environment, tmp_path)
    monkeypatch.setattr(SupSup, "learn_many", lambda model, stream, cluster: seen.learn(model, cluster=cluster))
    monkeypatch.setattr(Baseline, "learn_many", lambda model, stream: seen.learn(model))
    monkeypatch.setattr(Baseline, "learning", lambda model, stream: seen.learn(model))
    monkeypatch.setattr(resuming.SoFar, "learn_and_evaluate", lambda so_far, stream: seen.learn(so_far.model))
    monkeypatch.setattr(baselines, "learn_side_by_side", lambda models, tasks: seen.learn(*models))
    monkeypatch.setattr(hop, "learn_and_recover", lambda models, stream, procedures: seen.learn(*models))
    monkeypatch.setattr(cifar, "learn_with_models", lambda models, task, advance: seen.learn(*models))
    for module in (masks, baselines):
        monkeypatch.setattr(module, "evaluate", seen.evaluate)
    return seen


def small_residual(name: str, built: list[tuple[str, int]]) -> Any:
    """A builder of a small network in place of a large one, which writes down what was asked for."""

    def build(outputs: int) -> nets.ResNet:
        built.append((name, outputs))
        return nets.ResNet(outputs, (1,), (4,))

    return build


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The residual networks that were asked for."""
    asked: list[tuple[str, int]] = []
    for name in ("gem_resnet18", "resnet50"):
        monkeypatch.setattr(nets, name, small_residual(name, asked))
    return asked
