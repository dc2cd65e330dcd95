"""Tables show ours, the published number and the difference as printed, and say what decided a verdict and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from supsup_paper.catalogue.experiments import OverheadExperiment, OverheadTraining
from supsup_paper.catalogue.rows import Entry, Row
from supsup_paper.report.grids import Cell, abridged, figure_grids, headline, number, origin_grid, remarks, shown_time
from supsup_paper.report.summary import EntrySummary, WallTime, summarise


def entry_of(catalogue: dict[str, Entry], results: Path, name: str) -> EntrySummary:
    return next(entry for entry in summarise(catalogue, results).entries if entry.entry.name == name)


def test_cells_have_ours_published_and_difference(catalogue: dict[str, Entry], results: Path) -> None:
    accuracy, right = figure_grids(entry_of(catalogue, results, "permuted"))
    ours, not_run, worse, _, beyond = accuracy.rows
    assert accuracy.headings == ("10", "50", "100", "250")
    assert ours.cells[0] == Cell("93.70 ± 0.10", "93.65", "+0.05", "reproduced")
    assert not_run.cells[0] == Cell("–", "93.69")
    assert worse.cells[0] == Cell("93.70", "94.80", "−1.10", verdict="worse")
    assert (beyond.beyond, beyond.cells[0]) == (True, Cell("93.70"))
    assert [row.label for row in right.rows] == ["SupSup GNu H, s=100"]


def test_a_single_number_has_columns_of_its_own(catalogue: dict[str, Entry], results: Path) -> None:
    accuracy, size = figure_grids(entry_of(catalogue, results, "cifar"))
    assert accuracy.headings == size.headings == ("ours", "published", "difference")
    assert [cell.text for cell in accuracy.rows[0].cells] == ["78.00", "77.56", "+0.44"]
    assert [cell.text for cell in size.rows[0].cells] == ["408,432", "408,432", "+0"]


def test_a_quick_run_is_not_held_against_the_paper(catalogue: dict[str, Entry], results: Path) -> None:
    summary = entry_of(catalogue, results, "rotated")
    assert [cell.text for cell in figure_grids(summary)[0].rows[0].cells] == ["40.00", "96.13", "–"]
    assert "Only a quick run" in remarks(summary)[0][1]


def test_an_entry_of_which_nothing_is_known_lists_its_rows(tmp_path: Path) -> None:
    row = Row("r", "the row", OverheadExperiment(OverheadTraining(precision="float32")))
    (grid,) = figure_grids(entry_of({"e": Entry("e", "e", "", (row,))}, tmp_path, "e"))
    assert [(row.label, row.status) for row in grid.rows] == [("the row", "not run")]


def test_what_decided_a_verdict_is_said_with_what_is_known(catalogue: dict[str, Entry], results: Path) -> None:
    ((label, said),) = remarks(entry_of(catalogue, results, "permuted"))
    assert label == "PSP GG"
    assert said.startswith("Worse: ")
    assert "published 64.62" in said
    assert said.endswith("Rotations are drawn <anew> in each layer.")
    path = results / "permuted" / "psp-seed0.json"
    path.write_text(path.read_text().replace("Rotations are drawn <anew> in each layer.", ""))
    assert remarks(entry_of(catalogue, results, "permuted"))[0][1].endswith("The reason is not known yet.")
    entry = catalogue["permuted"]
    rows = tuple(replace(row, remark="The published ones were drawn twice.") for row in entry.rows)
    known = catalogue | {"permuted": replace(entry, rows=rows)}
    (worse, said), (ours, beside) = remarks(entry_of(known, results, "permuted"))
    assert (worse, ours) == ("PSP GG", entry.rows[-1].label)  # not for the row that is plainly reproduced
    assert said.endswith("The published ones were drawn twice.")
    assert beside == "The published ones were drawn twice."
    ((_, said),) = remarks(entry_of(catalogue, results, "hop"))
    assert said == (
        "Reproduced only by the spread of its seeds: accuracy % is 98.50 (2 seeds, deviation 0.71), published 97.43, "
        "1.07 above with a tolerance of 0.3 and 1.73 allowed by the spread of seeds."
    )


def test_cost_and_origin(catalogue: dict[str, Entry], results: Path) -> None:
    (row,) = origin_grid(entry_of(catalogue, results, "cifar")).rows
    shown = [cell.text for cell in row.cells]
    assert shown == [
        "1",
        "6.3 min",
        "2 s",
        "2.5 h",
        "380,000",
        "408,432",
        "a GPU",
        "0123456789",
        "2026-01-02",
        "supsup reproduce",
    ]


def test_the_headline_counts_rows(catalogue: dict[str, Entry], results: Path) -> None:
    summary = summarise(catalogue, results)
    assert headline(summary).startswith("2 reproduced, 1 better, 1 worse, 2 measured, 6 not run, 1 quick run.")
    timed = headline(replace(summary, mnist_time=WallTime(7200, "a GPU")))
    assert timed.endswith(" quick run. One seed of every row of the MNIST half took 2.0 h (a GPU).")


def test_numbers_read_well() -> None:
    assert number("accuracy %", 93.456) == "93.46"
    assert number("bytes", 408432.0) == "408,432"
    assert number("ms", 1.23456) == "1.235"
    assert [shown_time(value) for value in (None, 1.234, 130.0, 7300.0)] == ["–", "1.23 s", "2.2 min", "2.0 h"]


def test_a_long_command_is_cut() -> None:
    assert abridged("supsup reproduce all --row a --row b --row c") == "supsup reproduce all --row a --row b --row c"
    assert abridged("supsup reproduce --row a --row aa --row b --row c --row d --seeds 3") == (
        "supsup reproduce --row a --row aa --row b --seeds 3 … and 2 more rows"
    )
