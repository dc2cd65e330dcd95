"""Plots of one run or benchmark: accuracy, time, and HopSupSup's recovery and capacity.

Each is a function from plain figures, as they stand in a JSON file of results, to the text of an SVG file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from supsup_paper.report.svg import Axis, Chart, Curve, Point, line_chart, side_by_side

_MOST_MARKS = 8
_PERCENT = 101.0  # top of an axis, so that 100 % is not drawn on the frame


def accuracy_plot(title: str, curves: Mapping[str, Mapping[int, float]]) -> str:
    """Accuracy over the tasks learned so far, a fraction of 1, against their number; a curve for each label."""
    lines = [
        Curve(label, [Point(stage, 100 * value) for stage, value in curve.items()]) for label, curve in curves.items()
    ]
    stages = sorted({stage for curve in curves.values() for stage in curve})
    x = Axis("tasks learned", marks=stages if len(stages) <= _MOST_MARKS else ())
    y = Axis("accuracy over all of them, %", top=_PERCENT)
    return _file(line_chart(title, lines, x, y, title, [_whole_range(stages[0], 100)]))


def time_plot(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Seconds of training against the number of tasks: ours, one at a time by autograd, and the floor."""

    def total(key: str) -> list[Point]:
        return [Point(row["tasks"], 1e-6 * row[key] * row["tasks"] * row["steps"]) for row in rows]

    lines = [
        Curve("learn_many, data included", [Point(row["tasks"], row["seconds"]) for row in rows]),
        Curve("one task at a time, autograd", total("plain µs per task-step")),
        Curve("floor (bytes and operations)", total("floor µs")),
    ]
    return _file(line_chart(title, lines, Axis("tasks", log=True), Axis("seconds", log=True), title))


def search_plot(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Milliseconds for the task of a lone image against the number of tasks: exact, short, and the floor of each."""
    names = {
        "exact ms": "exact: all masks whole",
        "short ms": "from few coordinates",
        "query ms": "of it, the query",
        "floor, exact ms": "floor of the exact search (bytes)",
        "floor, short ms": "floor from few coordinates (bytes)",
    }
    lines = [Curve(label, [Point(row["k"], row[key]) for row in rows]) for key, label in names.items()]
    return _file(line_chart(title, lines, Axis("tasks", log=True), Axis("milliseconds", log=True), title))


def recovery_plot(title: str, distances: Mapping[str, Sequence[Sequence[float]]]) -> str:
    """As the paper's figure: a plot for each task, with the distance [steps, tasks] to every mask over the steps."""
    charts = []
    for name, steps in distances.items():
        lines = [
            Curve(f"mask of {other}", [Point(i, y) for i, y in enumerate(way, 1)], thick=other == name)
            for other, way in zip(distances, zip(*steps))
        ]
        y = Axis("share of units that differ")
        charts.append(
            line_chart(f"images of {name}", lines, Axis("step"), y, f"images of {name}", [_whole_range(1, 0.6)])
        )
    return side_by_side(title, [chart for chart in charts if chart])


def capacity_plot(title: str, curves: Mapping[str, Mapping[str, Mapping[int, float]]], units: int) -> str:
    """Share of the stored masks that come back, against their number: by rule, then by kind of mask."""
    lines = {
        rule: [Curve(kind, [Point(n, 100 * share) for n, share in shares.items()]) for kind, shares in kinds.items()]
        for rule, kinds in curves.items()
    }
    x, y = Axis(f"masks stored ({units} units)", log=True), Axis("recovered, %", top=_PERCENT)
    beside = [line for several in lines.values() for line in several]
    beside.append(_whole_range(beside[0].ours[0].x, 100))
    charts = [line_chart(f"{title}, {rule}", several, x, y, rule, beside) for rule, several in lines.items()]
    return side_by_side(title, [chart for chart in charts if chart])


def _whole_range(x: float, high: float) -> Curve:
    """A curve that is not drawn, so that the axis goes from 0 up to a value."""
    return Curve("", [Point(x, 0), Point(x, high)])


def _file(chart: Chart | None) -> str:
    assert chart is not None, "a run has at least one figure"
    return chart.file
