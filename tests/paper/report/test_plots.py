"""Plots of a run show its figures, and those in results/ are drawn from the files beside them."""

from __future__ import annotations

import runpy
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import supsup
from supsup_paper.report.plots import accuracy_plot, capacity_plot, recovery_plot, time_plot

ROOT = Path(__file__).parents[3]
SVG = "{http://www.w3.org/2000/svg}"


def texts(plot: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(plot).iter(f"{SVG}text")]


def test_the_plots_in_results_are_those_of_the_figures() -> None:
    """`python -m benchmarks result_plots` puts them right."""
    drawn = runpy.run_path(str(ROOT / "benchmarks" / "pages" / "result_plots.py"))["plots"]()
    assert len(drawn) >= 12
    for path, plot in drawn.items():
        assert path.read_text() == plot, path


def test_nothing_draws_a_second_way() -> None:
    """One way to draw: no plotting library is imported, and no picture in results/ is of pixels."""
    sources = [*Path(supsup.__file__).parent.rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    assert not [path for path in sources if "import matplotlib" in path.read_text()]
    assert not list((ROOT / "results").rglob("*.png"))


def test_accuracy_has_a_curve_for_each_label_and_a_point_for_a_single_stage() -> None:
    plot = accuracy_plot("3 tasks", {"task given": {1: 0.9, 2: 0.8, 3: 0.7}, "by each image": {3: 0.6}})
    assert {"3 tasks", "task given", "by each image", "1", "2", "3", "0", "100"} <= set(texts(plot))
    curves = [one for one in ElementTree.fromstring(plot).iter(f"{SVG}polyline") if len(str(one.get("points"))) > 20]
    assert [len(str(curve.get("points")).split()) for curve in curves] == [3]


def test_time_is_of_all_tasks_and_steps() -> None:
    rows = [
        {"tasks": n, "steps": 100, "seconds": 0.1 * n, "plain µs per task-step": 1e4, "floor µs": 500.0}
        for n in (1, 10, 100)
    ]
    assert {"learn_many, data included", "0.1", "10", "100"} <= set(texts(time_plot("net", rows)))


def test_recovery_has_a_plot_for_each_task_and_one_legend() -> None:
    way = {"0-1": [[0.5, 0.5], [0.0, 0.4]], "2-3": [[0.5, 0.5], [0.4, 0.1]], "4-5": [[0.3, 0.2], [0.2, 0.1]]}
    plot = recovery_plot("recovery", way)
    shown = texts(plot)
    assert [text for text in shown if text.startswith("images of")] == [f"images of {name}" for name in way]
    assert shown.count("mask of 0-1") == 1
    assert plot.count("stroke-width:3") == 2  # the task's own mask; the third has no column here


def test_capacity_has_one_scale_for_both_rules() -> None:
    shares = {2: 1.0, 8: 0.5}
    plot = capacity_plot("capacity", {"Hebb": {"random": shares}, "Storkey": {"random": shares | {64: 0.0}}}, 512)
    shown = texts(plot)
    assert {"Hebb", "Storkey", "random"} <= set(shown)
    assert shown.count("50") == 2
