"""One call makes every row asked for, once: an interruption or a failure loses nothing that was finished."""

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

import supsup
from supsup import SupSup, SupSupError
from supsup.grading import Grader
from supsup.observing import Observer
from supsup.paper.catalogue import Entry, Row, settings_of
from supsup.paper.jobs import plan
from supsup.paper.reproduction import reproduce, wanted_rows
from supsup.paper.runs import RUNS, masks
from supsup.paper.workshop import Workshop

TRAINING = {"stream": "permuted", "net": "784-24", "outputs": 20, "tasks": 2, "steps": 40}
GRADING = {"scenario": "GNu", "protocol": "paper", "method": "one-shot", "objective": "H", "layers": "all"}


def row(name: str, **own: Any) -> Row:
    settings = settings_of("supsup", TRAINING, GRADING | {"stages": [1, 2]} | own)
    return Row(name, name, settings, {"accuracy %": {"2": 50.0}}, 1.0)


def bound(name: str) -> Row:
    return Row(name, name, settings_of("bounds", TRAINING | {"stages": [1, 2]}, {"keep": name}))


TINY = Entry("tiny", "two tasks", "nowhere", (row("H"), row("G", objective="G"), row("given", scenario="GG")), "tasks")


def call(entry: Entry, folder: Path, shop: Workshop, seeds: int = 1, said: list[str] | None = None) -> tuple[int, ...]:
    done = reproduce([entry], folder, "full", seeds, shop, (said if said is not None else []).append)
    return done.written, done.skipped, done.failed


def test_rows_are_written_as_agreed_and_not_made_again(tmp_path: Path, shop: Workshop) -> None:
    """The files are read by `supsup report`, and hours of work hang on not repeating them."""
    assert call(TINY, tmp_path, shop) == (3, 0, 0)
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
    assert call(TINY, tmp_path, shop) == (0, 3, 0)
    assert path.stat().st_mtime_ns == before
    (calls,) = json.loads((tmp_path / "wall-time.json").read_text()).values()
    assert [len(made["written"]) for made in calls] == [3]
    assert calls[0]["written"][0] == "tiny/G-seed0"
    assert datetime.datetime.fromisoformat(calls[0]["began"]) < datetime.datetime.now(datetime.UTC)


def test_another_seed_or_setting_is_another_row(tmp_path: Path, shop: Workshop) -> None:
    call(TINY, tmp_path, shop)
    assert call(TINY, tmp_path, shop, seeds=2) == (3, 3, 0)
    changed = Entry("tiny", "", "", (row("H", layers="first"), *TINY.rows[1:]), "tasks")
    assert call(changed, tmp_path, shop) == (1, 2, 0)
    (tmp_path / "tiny" / "G-seed0.json").write_text("{")
    assert call(changed, tmp_path, shop) == (1, 2, 0)


def test_an_interruption_loses_no_finished_row_and_no_learned_task(
    tmp_path: Path, shop: Workshop, monkeypatch: pytest.MonkeyPatch
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
        call(TINY, tmp_path, shop)
    assert [path.name for path in (tmp_path / "tiny").glob("*.json")] == ["H-seed0.json"]
    monkeypatch.setattr(masks, "evaluate", evaluate)
    monkeypatch.setattr(SupSup, "learn_many", lambda *_: pytest.fail("what was learned is learned again"))
    (left,) = (tmp_path / "tiny").glob("*.supsup")
    left.rename(left.with_name("G-seed0.supsup"))  # the job's first row is now another one
    assert call(TINY, tmp_path, shop) == (2, 1, 0)


def test_unannounced_tasks_go_on_where_they_were(
    tmp_path: Path, shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted in the middle of the third task, and the second time while it is graded."""
    training = {"stream": "permuted", "net": "784-60", "outputs": 50, "tasks": 4, "steps": 200, "stages": [2, 4]}
    entry = Entry("tiny", "", "", (Row("nns", "", settings_of("unannounced", training, {})),), "tasks")
    call(entry, tmp_path / "straight", shop)
    observe = Observer.prepare
    begun: list[int] = []

    def interrupted(self: Observer, *rest: Any, **more: Any) -> str | None:
        begun.append(len(begun))
        if len(begun) == 6:
            raise KeyboardInterrupt
        return observe(self, *rest, **more)

    monkeypatch.setattr(Observer, "prepare", interrupted)
    with pytest.raises(KeyboardInterrupt):
        call(entry, tmp_path / "twice", shop)
    assert len(begun) == 6, "two tasks of two decisions each, and the second decision of the third"
    grades = Grader.grades
    monkeypatch.setattr(Grader, "grades", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        call(entry, tmp_path / "twice", shop)
    assert len(begun) == 10, "the third task anew, and the fourth"
    monkeypatch.setattr(Grader, "grades", grades)
    assert call(entry, tmp_path / "twice", shop) == (1, 0, 0)
    assert len(begun) == 12, "the fourth anew, which was not graded yet"
    straight, twice = (
        json.loads((tmp_path / way / "tiny" / "nns-seed0.json").read_text()) for way in ("straight", "twice")
    )
    assert twice["figures"] == straight["figures"]
    assert twice["per task"] == straight["per task"]
    assert twice["trace"] == straight.get("trace", {}) | {"tasks learned before an interruption": 3}
    assert not list((tmp_path / "twice").rglob("*.supsup"))


def test_a_failure_stops_no_other(tmp_path: Path, shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(model: SupSup, *rest: Any, **more: Any) -> Any:
        raise SupSupError("no such thing") if rest[1] == "GG" else ValueError("a bug")

    monkeypatch.setattr(masks, "evaluate", evaluate)
    said: list[str] = []
    entry = Entry("tiny", "", "", (row("given", scenario="GG"), bound("upper")), "tasks")
    assert call(entry, tmp_path, shop, said=said) == (1, 0, 1)
    assert "tiny/given (seed 0): no such thing" in said
    said.clear()
    call(TINY, tmp_path, shop, said=said)
    assert any("ValueError: a bug" in line for line in said)


def test_rows_of_one_training_are_one_job(tmp_path: Path) -> None:
    """250 tasks are learned once for H, G and the rest, and seeds of sequential rivals go in step."""
    entry = Entry("tiny", "", "", (*TINY.rows, bound("lower"), bound("upper")), "tasks")
    twin = Entry("twin", "", "", (row("again"),), "tasks")
    wanted = [(line, seed) for one in (entry, twin) for line in wanted_rows(one, tmp_path, "full") for seed in (0, 1)]
    jobs = plan(wanted, RUNS)
    assert [(job.run, len(job.wanted), job.seeds) for job in jobs] == [
        ("supsup", 4, (0,)),
        ("supsup", 4, (1,)),
        ("bounds", 2, (0, 1)),
    ]
