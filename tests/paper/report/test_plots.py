"""Plots of a run show its figures, and those in results/ are drawn from the files beside them."""

from __future__ import annotations

import runpy
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from supsup import SupSupError
from supsup_paper.report import plots
from supsup_paper.report.plots import (
    Axis,
    Panel,
    PlotLine,
    Point,
    accuracy_plot,
    capacity_plot,
    draw_lines,
    recovery_plot,
    time_plot,
)

ROOT = Path(__file__).parents[3]
SVG = "{http://www.w3.org/2000/svg}"


def texts(plot: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(plot).iter(f"{SVG}text")]


def watch_figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are drawn from now on."""
    figures: list[Any] = []
    write = plots._svg

    def watched(figure: Any, title: str) -> str:
        figures.append(figure)
        return write(figure, title)

    monkeypatch.setattr(plots, "_svg", watched)
    return figures


def test_the_plots_in_results_are_those_of_the_figures() -> None:
    """`python -m benchmarks result_plots` puts them right."""
    drawn = runpy.run_path(str(ROOT / "benchmarks" / "pages" / "result_plots.py"))["plots"]()
    assert len(drawn) >= 16
    for path, plot in drawn.items():
        assert path.read_text() == plot, path


def test_one_module_draws() -> None:
    """One way to draw; the library itself needs no plotting library, and no picture in results/ is of pixels."""
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    drawing = [path for path in sources if "import matplotlib" in path.read_text()]
    assert [path.relative_to(ROOT / "src").as_posix() for path in drawing] == ["supsup_paper/report/plots.py"]
    assert not list((ROOT / "results").rglob("*.png"))


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SupSupError, match=r"pip install 'supsup\[paper\]'"):
        accuracy_plot("3 tasks", {"task given": {1: 0.9}})


def test_the_same_figures_give_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the user's own style is: a test compares pages and plots with the results."""
    matplotlib = pytest.importorskip("matplotlib")
    first = accuracy_plot("3 tasks", {"task given": {1: 0.9, 2: 0.8}})
    with matplotlib.rc_context({"lines.linewidth": 9, "axes.facecolor": "black"}):
        assert accuracy_plot("3 tasks", {"task given": {1: 0.9, 2: 0.8}}) == first


def test_accuracy_has_a_curve_for_each_label_and_a_point_for_a_single_stage() -> None:
    plot = accuracy_plot("3 tasks", {"task given": {1: 0.9, 2: 0.8, 3: 0.7}, "by each image": {3: 0.6}})
    assert {"3 tasks", "task given", "by each image", "1", "2", "3", "0", "100"} <= set(texts(plot))


def test_time_is_of_all_tasks_and_steps() -> None:
    rows = [
        {"tasks": n, "steps": 100, "seconds": 0.1 * n, "plain µs per task-step": 1e4, "floor µs": 500.0}
        for n in (1, 10, 100)
    ]
    assert {"learn_many, data included", "0.1", "10", "100"} <= set(texts(time_plot("net", rows)))


def test_a_deviation_does_not_leave_the_plot(monkeypatch: pytest.MonkeyPatch) -> None:
    """90 ± 30 would reach 120 %."""
    figures = watch_figures(monkeypatch)
    lines = [PlotLine("a", [Point(1, 60.0), Point(2, 90.0, 30.0)])]
    draw_lines("", [Panel(lines, Axis("x"), Axis("%", top=101.0))])
    (axes,) = figures[0].axes
    assert axes.get_ylim()[1] <= 101
    assert list(axes.lines[-1].get_ydata()) == [60, 101]


def test_recovery_has_a_plot_for_each_task_and_one_legend() -> None:
    way = {"0-1": [[0.5, 0.5], [0.0, 0.4]], "2-3": [[0.5, 0.5], [0.4, 0.1]], "4-5": [[0.3, 0.2], [0.2, 0.1]]}
    plot = recovery_plot("recovery", way)
    shown = texts(plot)
    assert [text for text in shown if text.startswith("images of")] == [f"images of {name}" for name in way]
    assert shown.count("mask of 0-1") == 1
    assert plot.count("stroke-width: 3") >= 2  # the task's own mask; the third has no column here


def test_capacity_has_one_scale_for_both_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = watch_figures(monkeypatch)
    shares = {2: 1.0, 8: 0.5}
    plot = capacity_plot("capacity", {"Hebb": {"random": shares}, "Storkey": {"random": shares | {64: 0.0}}}, 512)
    shown = texts(plot)
    assert {"Hebb", "Storkey", "random"} <= set(shown)
    assert [axes.get_ylim() for axes in figures[0].axes] == [(0, 101)] * 2
