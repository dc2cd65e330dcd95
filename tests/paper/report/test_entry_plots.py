"""Each kind of entry gets the plot of the paper's figure."""

from __future__ import annotations

from pathlib import Path

import pytest

from supsup_paper.catalogue.experiments import OverheadExperiment, OverheadTraining
from supsup_paper.catalogue.rows import Entry, Row
from supsup_paper.report import entry_plots as module
from supsup_paper.report.entry_plots import byte_tick, entry_plots, family
from supsup_paper.report.plots import Panel, PlotLine
from supsup_paper.report.summary import EntrySummary, summarise

EXPERIMENT = OverheadExperiment(OverheadTraining(precision="float32"))  # any: none is run


def entry_of(catalogue: dict[str, Entry], results: Path, name: str) -> EntrySummary:
    return next(entry for entry in summarise(catalogue, results).entries if entry.entry.name == name)


def test_curves_have_a_line_for_each_row(
    catalogue: dict[str, Entry], results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[PlotLine, ...]] = []

    def draw(title: str, panels: list[Panel]) -> str:
        drawn.append(tuple(panels[0].lines))
        return ""

    entry = entry_of(catalogue, results, "permuted")
    plot = entry_plots(entry)[0].svg
    assert ">tasks learned<" in plot
    assert all(f">{place}<" in plot for place in ("10", "50", "100", "250"))
    monkeypatch.setattr(module, "draw_lines", draw)
    assert entry_plots(entry)[0].svg == ""
    assert sum(bool(line.ours) for line in drawn[0]) == 3, "three rows were run"
    assert sum(bool(line.published) for line in drawn[0]) == 4
    first = drawn[0][0]
    assert (first.ours[0].x, round(first.ours[0].y, 2), first.published[0].y) == (10, 93.70, 93.65)


def test_rows_that_differ_in_their_budget_are_one_line_over_bytes(catalogue: dict[str, Entry], results: Path) -> None:
    chart = entry_plots(entry_of(catalogue, results, "cifar"))[0].svg
    assert ">SupSup<" in chart
    assert "s = 4" not in chart
    assert "500 kB" in chart


def test_families() -> None:
    assert family("SupSup + Transfer, s = 32") == "SupSup + Transfer"
    assert family("SupSup, s = 23.82") == "SupSup"
    assert family("Upper Bound") == "Upper Bound"


def test_bytes_on_an_axis() -> None:
    assert [byte_tick(value) for value in (500.0, 3e5, 2e6, 1e9)] == ["500", "300 kB", "2 MB", "1 GB"]


def test_distances_have_a_plot_for_each_task_and_one_of_the_seeds(catalogue: dict[str, Entry], results: Path) -> None:
    charts = [chart.svg for chart in entry_plots(entry_of(catalogue, results, "hop"))]
    assert len(charts) == 3
    assert "images of 0-1" in charts[0]
    assert "mask of 2-3" in charts[0]
    assert ">seed<" in charts[2]


def test_labels_that_begin_alike_are_plots_of_their_own(tmp_path: Path) -> None:
    figures = {"accuracy %": {"10": 90.0, "50": 91.0}}
    rows = [Row(f"{net}-{b}", f"{net}: b = {b}", EXPERIMENT, figures) for net in ("LeNet", "FC") for b in (1, 4)]
    entry = Entry("e", "ABatchE", "", tuple(rows), axis="tasks learned")
    charts = [chart.svg for chart in entry_plots(entry_of({"e": entry}, tmp_path, "e"))]
    assert len(charts) == 2
    assert ">ABatchE, LeNet<" in charts[0]
    assert ">b = 1<" in charts[1]


def test_lines_at_the_top_are_shown_closer_where_another_squeezes_them(tmp_path: Path) -> None:
    def curves(*ends: float) -> list[str]:
        rows = [Row(f"r{i}", f"row {i}", EXPERIMENT, {"%": {"1": 95.0, "2": end}}) for i, end in enumerate(ends)]
        entry = Entry("e", "e", "", tuple(rows), axis="tasks learned")
        return [chart.svg for chart in entry_plots(entry_of({"e": entry}, tmp_path, "e"))]

    whole, closer = curves(94.0, 20.0, 93.0, 92.0)
    assert ": the lines at the top<" in closer
    assert ">row 1<" in whole
    assert ">row 1<" not in closer
    assert "#1a7a4c" in closer, "colours are those of the whole plot"
    assert len(curves(94.0, 93.0, 92.0)) == 1, "nothing squeezes them"
    assert len(curves(94.0, 20.0, 30.0, 92.0)) == 1, "two lines need no plot of their own"


def test_nothing_known_is_no_plot(tmp_path: Path) -> None:
    entry = Entry("e", "e", "", (Row("r", "r", EXPERIMENT),))
    assert entry_plots(entry_of({"e": entry}, tmp_path, "e")) == []
