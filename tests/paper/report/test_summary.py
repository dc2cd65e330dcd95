"""Verdicts are the report's word of honour: means, deviations, tolerances, and files that cannot be used."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supsup_paper.catalogue.experiments import LENET, MnistTraining, SupSupExperiment, SupSupGrading
from supsup_paper.catalogue.rows import Entry, Row
from supsup_paper.catalogue.tolerances import Tolerance
from supsup_paper.report.summary import RowSummary, Summary, WallTime, read_results, summarise
from supsup_paper.report.verdicts import BETTER, MEASURED, NOT_RUN, PARTLY, QUICK, REPRODUCED, WORSE

EXPERIMENT = SupSupExperiment(  # of what the fixture writes where the catalogue has no such row
    MnistTraining("permuted", LENET, 100, 250), SupSupGrading(stages=(250,))
)
TOLERANCE = Tolerance(0.3, "rows of these tests", "nowhere")


def row_of(summary: Summary, entry: str, name: str) -> RowSummary:
    (found,) = [r for e in summary.entries if e.entry.name == entry for r in e.rows if r.row.name == name]
    return found


def test_every_row_has_its_verdict(catalogue: dict[str, Entry], results: Path) -> None:
    summary = summarise(catalogue, results)
    verdicts = {
        ("permuted", "h"): REPRODUCED,
        ("permuted", "g"): NOT_RUN,
        ("permuted", "psp"): WORSE,
        ("permuted", "first"): MEASURED,
        ("rotated", "supsup"): QUICK,
        ("gamma", "gamma"): MEASURED,
        ("cifar", "supsup-s1"): BETTER,
    }
    assert {key: row_of(summary, *key).status for key in verdicts} == verdicts
    assert sum(summary.counts.values()) == sum(len(entry.rows) for entry in catalogue.values())
    assert summary.damaged == ()


def test_a_place_that_was_not_measured_leaves_a_row_partly_run(tmp_path: Path, write: Any) -> None:
    row = Row("r", "r", EXPERIMENT, published={"accuracy %": {"10": 96.0, "250": 96.0}}, tolerance=TOLERANCE)
    entries = {"e": Entry("e", "e", "", (row,), axis="tasks")}
    write(tmp_path, "e", "r", 0, {"accuracy %": {"10": 96.0}})
    assert row_of(summarise(entries, tmp_path), "e", "r").status == PARTLY


def test_full_runs_are_not_mixed_with_quick_ones(tmp_path: Path, write: Any) -> None:
    row = Row("r", "r", EXPERIMENT, published={"accuracy %": {"": 96.0}}, tolerance=TOLERANCE)
    write(tmp_path, "e", "r", 0, {"accuracy %": {"": 96.0}})
    write(tmp_path, "e", "r", 1, {"accuracy %": {"": 10.0}}, scale="quick")
    found = row_of(summarise({"e": Entry("e", "e", "", (row,))}, tmp_path), "e", "r")
    assert (found.status, found.figures["accuracy %"][""].seeds) == (REPRODUCED, 1)


def test_only_percentages_have_a_verdict(tmp_path: Path, write: Any) -> None:
    """Fewer bytes than published are no miss; they are held against the paper's way of counting."""
    published = {"accuracy %": {"": 80.0}, "bytes": {"": 1000.0}}
    entries = {"e": Entry("e", "e", "", (Row("r", "r", EXPERIMENT, published=published, tolerance=TOLERANCE),))}
    size = {"masks": 700, "statistics": 100, "paper's count": 900}
    write(tmp_path, "e", "r", 0, {"accuracy %": {"": 80.0}}, bytes=size)
    found = row_of(summarise(entries, tmp_path), "e", "r")
    assert found.status == REPRODUCED
    assert found.figures["bytes"][""].mean == 900
    assert found.own_bytes == 800


def test_bytes_without_the_masks_are_not_called_ours(tmp_path: Path, write: Any) -> None:
    entries = {"e": Entry("e", "e", "", (Row("r", "r", EXPERIMENT),))}
    write(tmp_path, "e", "r", 0, {}, bytes={"statistics": 100, "paper's count": 900})
    assert row_of(summarise(entries, tmp_path), "e", "r").own_bytes is None


def test_places_stand_in_order(tmp_path: Path, write: Any) -> None:
    row = Row("r", "r", EXPERIMENT, published={"accuracy %": {"250": 1.0, "avg": 1.0, "10": 1.0}})
    write(tmp_path, "e", "r", 0, {"accuracy %": {"1/k": 1.0, "50": 1.0}})
    (entry,) = summarise({"e": Entry("e", "e", "", (row,), axis="tasks")}, tmp_path).entries
    assert entry.positions("accuracy %") == ("1/k", "10", "50", "250", "avg")


@pytest.mark.parametrize(
    ("content", "word"), [("{", "damaged"), ("[]", "damaged"), ('{"entry": "permuted"}', "damaged (no 'row')")]
)
def test_a_damaged_file_is_named_and_stops_no_other(
    content: str, word: str, catalogue: dict[str, Entry], results: Path
) -> None:
    before = len(read_results(catalogue, results)[0])
    (results / "permuted" / "g-seed0.json").write_text(content)
    found, (line,) = read_results(catalogue, results)
    assert len(found) == before
    assert line.startswith("permuted/g-seed0.json: ")
    assert word in line


def test_files_that_say_something_else_are_named(catalogue: dict[str, Entry], results: Path, write: Any) -> None:
    """Not a number, another seed than the name's, a row the catalogue does not have."""
    write(results, "permuted", "g", 0, {"accuracy %": {"10": float("nan")}})
    write(results, "permuted", "g", 1, {}).rename(results / "permuted" / "g-seed2.json")
    write(results, "permuted", "unknown", 0, {})
    _, damaged = read_results(catalogue, results)
    said = " ".join(damaged)
    assert len(damaged) == 3
    assert "10 is nan" in said
    assert "g-seed2.json: says it is permuted/g, seed 1" in said
    assert "has no row 'unknown'" in said


def test_results_of_other_settings_are_not_shown_as_the_rows(tmp_path: Path, write: Any) -> None:
    row = Row("r", "r", EXPERIMENT)
    entries = {"e": Entry("e", "e", "", (row,))}
    write(tmp_path, "e", "r", 0, {"accuracy %": {"": 96.0}}, settings=row.settings | {"own": {"objective": "G"}})
    summary = summarise(entries, tmp_path)
    assert row_of(summary, "e", "r").status == NOT_RUN
    assert "other settings or defaults" in summary.damaged[0]


def test_each_measurement_is_counted_once(tmp_path: Path, write: Any) -> None:
    """A row shown in two tables is one result; beside other published figures it is another comparison."""
    number = {"accuracy %": {"": 96.0}}
    other = replace(EXPERIMENT, own=replace(EXPERIMENT.own, objective="G"))
    first = Entry("a", "a", "", (Row("r", "r", EXPERIMENT, number, TOLERANCE),))
    rows = (
        Row("again", "again", EXPERIMENT, number, TOLERANCE),
        Row("ours", "ours", EXPERIMENT, beyond=True),
        Row("table-7", "table-7", EXPERIMENT, {"accuracy %": {"": 95.0}}, TOLERANCE),
        Row("other", "other", other, number, TOLERANCE),
        Row("named", "named", other, {"accuracy %": {"0.5": 96.0}}, TOLERANCE, same_as="a/r"),
    )
    for entry, row in (("a", "r"), ("b", "again"), ("b", "table-7")):
        write(tmp_path, entry, row, 0, number)
    summary = summarise({"a": first, "b": Entry("b", "b", "", rows)}, tmp_path)
    repeats = {row.row.name: row.repeats for row in summary.entries[1].rows}
    assert repeats == {"again": "a/r", "ours": "a/r", "table-7": "", "other": "", "named": "a/r"}
    assert row_of(summary, "b", "again").status == REPRODUCED, "it is shown with its verdict all the same"
    assert (summary.counts[REPRODUCED], summary.counts[BETTER], summary.counts[NOT_RUN]) == (1, 1, 1)
    assert summary.repeats == 3
    assert sum(summary.counts.values()) + summary.repeats == 6
    (alone,) = summarise({"b": Entry("b", "b", "", rows[:1])}, tmp_path).entries
    assert alone.counts[REPRODUCED] == 1, "where the other entry is not asked for, there is nothing to repeat"


def test_other_files_in_the_folder_are_left_alone(catalogue: dict[str, Entry], results: Path) -> None:
    (results / "permuted" / "plot-1.svg").write_text("")
    (results / "permuted" / "notes.json").write_text("{}")
    assert read_results(catalogue, results)[1] == []


def _call(began: str, seconds: float, *written: str, scale: str = "full") -> dict[str, Any]:
    timed = {"began": f"2026-01-02T{began}.000+00:00", "seconds": seconds, "made by": {"device": "a GPU"}}
    return {"scale": scale, "written": list(written)} | timed


CALLS = [
    _call("10:00:00", 100.5, "gamma/a-seed0"),
    _call("10:01:30", 20, "gamma/a-seed1", "cifar100-gg/s1-seed0"),
    _call("10:00:30", 5, "gamma/b-seed0"),
    _call("09:00:00", 1, "gamma/b-seed0", scale="quick"),
]


def test_calls_side_by_side_count_once_in_the_wall_time(tmp_path: Path) -> None:
    """And there is none until every row of the MNIST half is among the files they wrote."""
    rows = tuple(Row(name, name, EXPERIMENT) for name in "ab")
    entries = {"gamma": Entry("gamma", "", "", rows)}
    assert summarise(entries, tmp_path).mnist_time is None
    file = tmp_path / "wall-time.json"
    file.write_text(json.dumps({"calls": CALLS}))
    assert summarise(entries, tmp_path).mnist_time == WallTime(100.5, "a GPU")
    file.write_text(json.dumps({"calls": [CALLS[0], CALLS[3]]}))
    assert summarise(entries, tmp_path).mnist_time is None
    file.write_text("{}")
    summary = summarise(entries, tmp_path)
    assert summary.mnist_time is None
    assert summary.damaged[0].startswith("wall-time.json: damaged")
