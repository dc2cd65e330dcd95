"""Plots are well formed, put points where their values say, and follow the page's colours."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supsup_paper.report.svg import PLOT, TOP, WIDTH, Axis, Bar, Chart, Curve, Point, bar_chart, line_chart, ticks

LINES = [
    Curve("ours & theirs", [Point(10, 93.0, 0.5), Point(250, 94.0)], [Point(10, 92.0), Point(250, 93.5)]),
    Curve("<only published>", [], [Point(10, 50.0)]),
]


def parsed(chart: Chart | None) -> ElementTree.Element:
    assert chart is not None
    return ElementTree.fromstring(chart.whole)


def test_a_plot_is_well_formed_and_says_what_it_shows() -> None:
    chart = line_chart("accuracy <by> tasks", LINES, Axis("tasks learned"), Axis("accuracy %"), "a heading")
    root = parsed(chart)
    texts = [element.text for element in root.iter("text")]
    assert root.get("aria-label") == "accuracy <by> tasks"
    assert {"ours & theirs", "<only published>", "published", "tasks learned", "accuracy %", "a heading"} <= set(texts)
    assert chart is not None
    assert [label for _, label in chart.legend] == ["ours & theirs", "<only published>", "published"]
    assert "theirs" not in chart.plot
    assert "#" not in chart.whole  # colours are the page's variables


def test_a_row_of_one_point_is_a_mark_in_the_legend_too() -> None:
    chart = line_chart("t", [LINES[0], Curve("one", [Point(100, 93.5)])], Axis("x"), Axis("y"))
    assert chart is not None
    (line, _), (mark, label), _ = chart.legend
    assert label == "one"
    assert "18.0" in line
    assert "18.0" not in mark


def test_higher_values_stand_higher_and_later_ones_further_right() -> None:
    root = parsed(line_chart("t", LINES[:1], Axis("x"), Axis("y")))
    (line, *_) = (element for element in root.iter("polyline") if element.get("class") == "line")
    (x0, y0), (x1, y1) = (map(float, pair.split(",")) for pair in str(line.get("points")).split())
    assert 0 < x0 < x1 < WIDTH
    assert TOP < y1 < y0 < TOP + PLOT


def test_equal_ratios_are_equal_distances_on_a_logarithmic_axis() -> None:
    line = Curve("s", [Point(x, 1.0) for x in (1, 10, 100)])
    root = parsed(line_chart("t", [line], Axis("bytes", log=True), Axis("y")))
    drawn = next(element for element in root.iter("polyline") if element.get("class") == "line")
    first, second, third = (float(pair.split(",")[0]) for pair in str(drawn.get("points")).split())
    assert second - first == pytest.approx(third - second, abs=0.11)


def test_a_row_without_points_keeps_the_colours_of_the_others() -> None:
    empty = Curve("not run", [])
    chart = line_chart("t", [empty, LINES[0]], Axis("x"), Axis("y"))
    assert chart is not None
    plot = chart.whole
    assert "not run" not in plot
    assert "var(--c0)" not in plot
    assert "var(--c1)" in plot


def test_nothing_to_draw_is_no_plot() -> None:
    assert line_chart("t", [Curve("a", [])], Axis("x"), Axis("y")) is None
    assert bar_chart("t", [Bar("a", None)], "y") is None


def test_bars_are_as_long_as_their_values() -> None:
    bars = [Bar("a", 40.0, 80.0), Bar("b", 80.0), Bar("c", None, 60.0)]
    root = parsed(bar_chart("t", bars, "accuracy %"))
    widths = [float(str(element.get("width"))) for element in root.iter("rect")]
    assert len(widths) == 2
    assert widths[1] == pytest.approx(2 * widths[0], abs=0.2)
    assert "not run" in [element.text for element in root.iter("text")]


def test_a_plot_stands_alone_with_its_style() -> None:
    chart = line_chart("t", LINES, Axis("x"), Axis("y"))
    assert chart is not None
    root = ElementTree.fromstring(chart.file)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    left, top, width, height = map(float, str(root.get("viewBox")).split())
    assert (left, top) == (0, 0)
    assert float(str(root.get("width"))) / float(str(root.get("height"))) == pytest.approx(width / height)
    style = root.find("{http://www.w3.org/2000/svg}style")
    assert style is not None
    assert "prefers-color-scheme:dark" in str(style.text)


def test_long_labels_are_cut() -> None:
    texts = [
        element.text
        for element in parsed(line_chart("t", [Curve("x" * 80, [Point(0, 0)])], Axis("x"), Axis("y"))).iter()
    ]
    assert any("…" in (text or "") for text in texts)


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_few_ordered_and_inside(low: float, size: float) -> None:
    found = ticks(low, low + size)
    assert found == sorted(set(found))
    assert 1 <= len(found) <= 7
    slack = 1e-6 * max(abs(low), size)
    assert low - slack <= found[0]
    assert found[-1] <= low + size + slack


@given(st.floats(1e-3, 1e9), st.floats(1.1, 1e6))
def test_logarithmic_ticks_are_inside(low: float, factor: float) -> None:
    found = ticks(low, low * factor, log=True)
    assert all(low <= value <= low * factor for value in found)
    assert len(found) <= 10
    assert math.inf not in found
