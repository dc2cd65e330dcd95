"""Trials that take turns: rows are kept as they come, and what goes wrong with one stops no other."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

import pytest
import torch

from supsup import SupSupError, data, nets
from supsup.runtime import progress
from supsup_paper.baselines import UpperBound
from supsup_paper.catalogue.experiments import (
    Experiment,
    HopfieldExperiment,
    HopfieldGrading,
    HopfieldTraining,
    NoSettings,
)
from supsup_paper.records import PlannedRow, RowResult
from supsup_paper.runs import cifar_baselines as cifar_baselines
from supsup_paper.runs import mnist_baselines as baselines
from supsup_paper.runs import schedule as trials
from supsup_paper.runs.environment import Environment
from supsup_paper.runs.mnist_baselines import SequentialTraining
from supsup_paper.runs.schedule import PlannedTraining, Runner, Work, runner_for

ENVIRONMENT = Environment(torch.device("cpu"))


@dataclass(frozen=True)
class SomeTraining:
    tasks: int = 3


@dataclass(frozen=True)
class SomeExperiment:
    kind: ClassVar[str] = "some"
    training: SomeTraining = field(default_factory=SomeTraining)
    own: NoSettings = field(default_factory=NoSettings)

    def quick(self) -> Self:
        return self


def trial(folder: Path, name: str) -> PlannedTraining[Experiment]:
    return PlannedTraining((PlannedRow("entry", name, "", "full", SomeExperiment(), folder),), (0,))


def name_of(trial: PlannedTraining[Experiment]) -> str:
    return trial.wanted[0].row


def runs(log: list[str]) -> dict[str, Runner]:
    def work(trial: PlannedTraining[SomeExperiment], environment: Environment) -> Work:
        name = name_of(trial)
        for count in range(trial.experiment.training.tasks):
            if name not in ("bad", "broken"):
                log.append(f"{name} {count}")
                yield 0
            yield 1
            if name == "bad":
                raise SupSupError("no such data")
            if name == "broken":
                raise ZeroDivisionError
        yield RowResult(trial.wanted[0], 0, {"accuracy %": {"": 90.0}})

    return {SomeExperiment.kind: runner_for(SomeExperiment, work, sequential=True)}


def test_lanes_take_turns_and_a_failure_stops_only_itself(tmp_path: Path) -> None:
    log: list[str] = []
    said: list[str] = []
    tasks: list[float] = []
    group = [trial(tmp_path, name) for name in ("a", "bad", "b", "broken")]
    failed = trials._side_by_side(group, runs(log), ENVIRONMENT, said.append, tasks.append)
    assert failed == 2
    assert log == ["a 0", "b 0", "a 1", "b 1", "a 2", "b 2"]
    assert sum(tasks) == 3 + 3 + 1 + 1
    assert {path.name for path in (tmp_path / "entry").iterdir()} == {"a-seed0.json", "b-seed0.json"}
    assert any("no such data" in line for line in said)
    assert any("ZeroDivisionError" in line for line in said)


def test_the_bar_counts_the_tasks_of_every_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds that go in step report all their tasks at once; the end is where the bar says it is."""
    totals: list[float] = []
    done: list[float] = []

    @contextmanager
    def bar(what: str, total: float) -> Iterator[progress.Advance]:
        totals.append(total)
        yield done.append

    def work(trial: PlannedTraining[Experiment], environment: Environment) -> Work:
        models = [UpperBound(nets.FullyConnected((784, 4, 2)), seed, device="cpu") for seed in trial.seeds]
        streams = [data.split(data.digits(), 2, tasks=3) for _ in trial.seeds]
        yield from SequentialTraining(models, streams, []).run(lambda *_: None)
        yield from cifar_baselines._learning(models, streams)

    monkeypatch.setattr(progress, "bar", bar)
    for module in (baselines, cifar_baselines):
        monkeypatch.setattr(module, "learn_side_by_side", lambda models, tasks: None)
    both = replace(trial(tmp_path, "row"), seeds=(0, 1))
    trials.run_trainings(
        [both], {SomeExperiment.kind: Runner("sleeping", work, sequential=True)}, ENVIRONMENT, lambda _: None
    )
    assert totals == [6]
    assert sum(done) == 2 * totals[0]  # two kinds of learning, one after the other


def test_a_busy_lane_waits_for_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the device is at the work of one, the others go on."""
    log: list[str] = []
    looks = {"a": 0}

    def busy(lane: trials.RunningTraining) -> bool:
        if name_of(lane.trial) == "b":
            return False
        looks["a"] += 1
        return looks["a"] < 5

    monkeypatch.setattr(trials.RunningTraining, "busy", property(busy))
    trials._side_by_side(
        [trial(tmp_path, "a"), trial(tmp_path, "b")], runs(log), ENVIRONMENT, lambda _: None, lambda _: None
    )
    assert log[:3] == ["b 0", "b 1", "a 0"]
    assert sorted(log) == ["a 0", "a 1", "a 2", "b 0", "b 1", "b 2"]


def test_baselines_may_use_tensorfloat_and_nothing_else_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The precision of products is the whole process's, so each lane sets it for its own turns."""
    asked: list[tuple[str, str]] = []
    now = ["highest"]
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: now[0])
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda value: now.__setitem__(0, value))

    def work(trial: PlannedTraining[Experiment], environment: Environment) -> Work:
        for _ in range(2):
            asked.append((name_of(trial), now[0]))
            yield 1

    cuda = torch.device("cuda")
    lanes = []
    for name in ("baseline", "supsup"):
        run, one = Runner("sleeping", work, tf32=name == "baseline"), trial(tmp_path, name)
        lanes.append(trials.RunningTraining(one, run, run.start(one, ENVIRONMENT), None))
    for _ in range(2):
        for lane in lanes:
            lane.next(cuda)
    assert asked == [("baseline", "high"), ("supsup", "highest")] * 2
    assert now == ["highest"]


def test_a_trial_is_given_the_cluster_only_where_it_is_of_use(tmp_path: Path) -> None:
    """And the line about any other says so: somebody waits for machines that have nothing to do."""
    given: list[str | None] = []
    said: list[str] = []

    def work(trial: PlannedTraining[Experiment], environment: Environment) -> Work:
        given.append(environment.cluster)
        yield 1

    def run_trainings(run: Runner, cluster: str | None) -> None:
        environment = Environment(torch.device("cpu"), cluster=cluster)
        trials.run_trainings([trial(tmp_path, "row")], {SomeExperiment.kind: run}, environment, said.append)

    for sequential in (False, True):
        run_trainings(Runner("sleeping", work, sequential=sequential), "local:2")
        run_trainings(Runner("sleeping", work, sequential=sequential, spread=lambda experiment: True), "local:2")
        run_trainings(Runner("sleeping", work, sequential=sequential), None)
    assert given == [None, "local:2", None] * 2
    assert [line.endswith(", without the cluster") for line in said] == [True, False, False] * 2


def test_a_run_refuses_another_kind_of_experiment(tmp_path: Path) -> None:
    """A run that read another kind's settings would fail after hours, or train something else."""
    other = HopfieldExperiment(HopfieldTraining(), HopfieldGrading("own"))
    stray = PlannedTraining[Experiment]((PlannedRow("entry", "row", "", "full", other, tmp_path),), (0,))
    with pytest.raises(TypeError, match=r"entry/row .* is not of the kind 'some'"):
        runs([])["some"].start(stray, ENVIRONMENT)
