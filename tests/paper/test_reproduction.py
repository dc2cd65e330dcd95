"""One call makes every row asked for, once: an interruption or a failure loses nothing that was finished."""

import datetime
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

import supsup
from supsup import SupSup, SupSupError
from supsup.evaluation.grading import Grader
from supsup.model.observer import Observer
from supsup_paper.catalogue.experiments import (
    BoundGrading,
    BoundsExperiment,
    MnistTraining,
    StagedTraining,
    SupSupExperiment,
    SupSupGrading,
    UnannouncedExperiment,
    UnannouncedTraining,
)
from supsup_paper.catalogue.rows import Entry, Row
from supsup_paper.catalogue.tolerances import BASELINES
from supsup_paper.runs import mnist as masks
from supsup_paper.runs.environment import Environment
from supsup_paper.runs.reproduction import RUNNERS, reproduce_entries, wanted_rows
from supsup_paper.runs.schedule import plan_trainings

TRAINING = MnistTraining("permuted", "784-24", 20, 2, 40)
STAGED = StagedTraining("permuted", "784-24", 20, 2, 40, stages=(1, 2))
GRADING = SupSupGrading(stages=(1, 2))


def row(name: str, grading: SupSupGrading = GRADING) -> Row:
    return Row(name, name, SupSupExperiment(TRAINING, grading), {"accuracy %": {"2": 50.0}}, BASELINES)


def bound(keep: Literal["upper", "lower"]) -> Row:
    return Row(keep, keep, BoundsExperiment(STAGED, BoundGrading(keep)))


GIVEN = row("given", replace(GRADING, scenario="GG"))
TINY = Entry("tiny", "two tasks", "nowhere", (row("H"), row("G", replace(GRADING, objective="G")), GIVEN), "tasks")


def call(
    entry: Entry, folder: Path, environment: Environment, seeds: int = 1, said: list[str] | None = None
) -> tuple[int, ...]:
    done = reproduce_entries([entry], folder, "full", seeds, environment, (said if said is not None else []).append)
    return done.written, done.skipped, done.failed


def test_rows_are_written_as_agreed_and_not_made_again(tmp_path: Path, environment: Environment) -> None:
    """The files are read by `supsup report`, and hours of work hang on not repeating them."""
    assert call(TINY, tmp_path, environment) == (3, 0, 0)
    path = tmp_path / "tiny" / "H-seed0.json"
    record, before = json.loads(path.read_text()), path.stat().st_mtime_ns
    assert (record["entry"], record["row"], record["seed"], record["scale"]) == ("tiny", "H", 0, "full")
    assert record["settings"] == TINY.rows[0].settings
    assert list(record["figures"]["accuracy %"]) == list(record["figures"]["task right %"]) == ["1", "2"]
    assert 0 < record["figures"]["accuracy %"]["1"] < 100
    assert list(record["per task"]) == ["permutation-0", "permutation-1"]
    assert record["bytes"]["masks"] == 2 * (784 * 24 + 24 * 20) // 8
    assert min(record["seconds"][name] for name in ("learning", "grading", "plain way")) > 0
    assert record["made by"]["device"]
    assert not list(tmp_path.rglob("*.supsup"))
    assert call(TINY, tmp_path, environment) == (0, 3, 0)
    assert path.stat().st_mtime_ns == before
    (calls,) = json.loads((tmp_path / "wall-time.json").read_text()).values()
    assert [len(made["written"]) for made in calls] == [3]
    assert calls[0]["written"][0] == "tiny/G-seed0"
    assert datetime.datetime.fromisoformat(calls[0]["began"]) < datetime.datetime.now(datetime.UTC)


def test_another_seed_or_setting_is_another_row(tmp_path: Path, environment: Environment) -> None:
    call(TINY, tmp_path, environment)
    assert call(TINY, tmp_path, environment, seeds=2) == (3, 3, 0)
    changed = Entry("tiny", "", "", (row("H", replace(GRADING, layers="first")), *TINY.rows[1:]), "tasks")
    assert call(changed, tmp_path, environment) == (1, 2, 0)
    (tmp_path / "tiny" / "G-seed0.json").write_text("{")
    assert call(changed, tmp_path, environment) == (1, 2, 0)


def test_an_interruption_loses_no_finished_row_and_no_learned_task(
    tmp_path: Path, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    graded: list[str] = []

    def interrupted(model: SupSup, *rest: Any, **more: Any) -> Any:
        if graded:
            raise KeyboardInterrupt
        graded.append(model.inference.objective)
        return evaluate(model, *rest, **more)

    evaluate = supsup.evaluate
    monkeypatch.setattr(masks, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        call(TINY, tmp_path, environment)
    assert [path.name for path in (tmp_path / "tiny").glob("*.json")] == ["H-seed0.json"]
    monkeypatch.setattr(masks, "evaluate", evaluate)
    monkeypatch.setattr(SupSup, "learn_many", lambda *_: pytest.fail("what was learned is learned again"))
    (left,) = (tmp_path / "tiny").glob("*.supsup")
    left.rename(left.with_name("G-seed0.supsup"))  # the trial's first row is now another one
    assert call(TINY, tmp_path, environment) == (2, 1, 0)


def test_unannounced_tasks_go_on_where_they_were(
    tmp_path: Path, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted in the middle of the third task, and the second time while it is graded."""
    training = UnannouncedTraining("permuted", "784-60", 50, 4, 200, stages=(2, 4))
    entry = Entry("tiny", "", "", (Row("nns", "", UnannouncedExperiment(training)),), "tasks")
    call(entry, tmp_path / "straight", environment)
    observe = Observer.prepare
    begun: list[int] = []

    def interrupted(self: Observer, *rest: Any, **more: Any) -> str | None:
        begun.append(len(begun))
        if len(begun) == 6:
            raise KeyboardInterrupt
        return observe(self, *rest, **more)

    monkeypatch.setattr(Observer, "prepare", interrupted)
    with pytest.raises(KeyboardInterrupt):
        call(entry, tmp_path / "twice", environment)
    assert len(begun) == 6, "two tasks of two decisions each, and the second decision of the third"
    grades = Grader.grades
    monkeypatch.setattr(Grader, "grades", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        call(entry, tmp_path / "twice", environment)
    assert len(begun) == 10, "the third task anew, and the fourth"
    monkeypatch.setattr(Grader, "grades", grades)
    assert call(entry, tmp_path / "twice", environment) == (1, 0, 0)
    assert len(begun) == 12, "the fourth anew, which was not graded yet"
    straight, twice = (
        json.loads((tmp_path / way / "tiny" / "nns-seed0.json").read_text()) for way in ("straight", "twice")
    )
    assert twice["figures"] == straight["figures"]
    assert twice["per task"] == straight["per task"]
    assert twice["trace"] == straight.get("trace", {}) | {"tasks learned before an interruption": 3}
    assert not list((tmp_path / "twice").rglob("*.supsup"))


def test_a_failure_stops_no_other(tmp_path: Path, environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(model: SupSup, *rest: Any, **more: Any) -> Any:
        raise SupSupError("no such thing") if rest[1] == "GG" else ValueError("a bug")

    monkeypatch.setattr(masks, "evaluate", evaluate)
    said: list[str] = []
    entry = Entry("tiny", "", "", (GIVEN, bound("upper")), "tasks")
    assert call(entry, tmp_path, environment, said=said) == (1, 0, 1)
    assert "tiny/given (seed 0): no such thing" in said
    said.clear()
    call(TINY, tmp_path, environment, said=said)
    assert any("ValueError: a bug" in line for line in said)


def test_rows_of_one_training_are_one_trial(tmp_path: Path) -> None:
    """250 tasks are learned once for H, G and the rest, and seeds of sequential baselines go in step."""
    entry = Entry("tiny", "", "", (*TINY.rows, bound("lower"), bound("upper")), "tasks")
    twin = Entry("twin", "", "", (row("again"),), "tasks")
    wanted = [(line, seed) for one in (entry, twin) for line in wanted_rows(one, tmp_path, "full") for seed in (0, 1)]
    trials = plan_trainings(wanted, RUNNERS)
    assert [(trial.experiment.kind, len(trial.wanted), trial.seeds) for trial in trials] == [
        ("supsup", 4, (0,)),
        ("supsup", 4, (1,)),
        ("bounds", 2, (0, 1)),
    ]
