"""Plots as SVG files, drawn by matplotlib: lines and bars, and the plots of one run or benchmark.

The same figures give the same bytes with one version of matplotlib. Text stays text, so a plot can be searched.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from supsup.runtime.errors import SupSupError

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PERCENT = 101.0  # top of an axis of percentages, so that 100 % is not drawn on the frame
MOST_MARKS = 8  # positions that all get a tick
_MOST_MARKERS = 24  # a line of more points has no markers
_COLOURS = ("#0b62a8", "#b5460f", "#1a7a4c", "#7b3fa0", "#8a6100", "#b0266b", "#0f7480", "#4d4f55")
_DASHES = ("-", "--", ":", "-.")
_MARKERS = "os^D"
_WIDTH, _HEIGHT, _LINE = 5.4, 3.1, 0.19  # inches: a panel, and a line of text in a title or legend
_STYLE: Any = {
    "svg.hashsalt": "supsup",
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.titlesize": 10,
    "figure.titlesize": 10,
    "legend.fontsize": 9,
    "axes.edgecolor": "#5c6370",
    "axes.grid": True,
    "grid.color": "#d5d9de",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


class MatplotlibMissing(SupSupError):
    """Nothing can be drawn here."""


@dataclass(frozen=True)
class Point:
    """A point of a line; `deviation` draws an error bar."""

    x: float
    y: float
    deviation: float | None = None


@dataclass(frozen=True)
class PlotLine:
    """What was measured under one label, and what was published for it; `thick` sets it apart from the others."""

    label: str
    ours: Sequence[Point]
    published: Sequence[Point] = ()
    thick: bool = False


@dataclass(frozen=True)
class Axis:
    """What an axis shows.

    names   labels at 0, 1, 2, … where positions are not numbers
    marks   ticks, in place of round numbers
    format  the text of a tick
    limits  the lowest and highest value to show; None: as the data need
    top     the largest value there can be
    """

    label: str
    log: bool = False
    names: Sequence[str] = ()
    marks: Sequence[float] = ()
    format: Callable[[float], str] = lambda value: f"{value:,.6g}"
    limits: tuple[float, float] | None = None
    top: float = math.inf


@dataclass(frozen=True)
class Panel:
    """One set of axes with its lines; a line without points keeps its colour from the others."""

    lines: Sequence[PlotLine]
    x: Axis
    y: Axis
    heading: str = ""


@dataclass(frozen=True)
class PlotBar:
    """One bar, with a mark at the published value."""

    label: str
    ours: float | None
    published: float | None = None


def draw_lines(title: str, panels: Sequence[Panel]) -> str:
    """Panels in up to two columns under one title, with one legend; published values are crosses on a dotted line."""
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    lines = [line for panel in panels for line in panel.lines if line.ours or line.published]
    labels = list(dict.fromkeys(line.label for line in lines))
    deep = math.ceil((len(labels) + 1) / (columns if max(map(len, labels)) > 28 else 2 * columns))
    wrapped = _wrapped(title, 62 * columns)
    height = rows * _HEIGHT * (1 if columns == 1 else 0.8) + _LINE * (deep + wrapped.count("\n") + 1)
    with _new_figure(columns * _WIDTH * (1 if columns == 1 else 0.75), height) as figure:
        grid = figure.subplots(rows, columns, squeeze=False, sharey=columns > 1)
        handles: dict[str, Artist] = {}
        for panel, axes in zip(panels, grid.flat):
            handles |= _draw_panel(axes, panel)
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        shown = {label: handles[label] for label in labels}
        if any(line.published for line in lines) and any(line.ours for line in lines):
            shown["published"] = _published_handle()
        figure.suptitle(wrapped, ha="left", x=0.01)
        if len(shown) > 1 or shown.keys() != {title}:
            columns_of_legend = math.ceil(len(shown) / deep)
            figure.legend(
                list(shown.values()), list(shown), loc="outside lower left", ncols=columns_of_legend, frameon=False
            )
        return _svg(figure, title)


def draw_bars(title: str, bars: Sequence[PlotBar], label: str) -> str:
    """Horizontal bars from 0, each under its label and with its value; a black line marks the published value."""
    wrapped = _wrapped(title, 62)
    with _new_figure(_WIDTH, 0.42 * len(bars) + 0.7 + _LINE * (wrapped.count("\n") + 1)) as figure:
        axes = figure.subplots()
        for number, bar in enumerate(bars):
            shown = "not run" if bar.ours is None else f"{bar.ours:,.2f}"
            if bar.published is not None:
                shown += f" (paper {bar.published:,.2f})"
                axes.plot([bar.published] * 2, [number - 0.24, number + 0.24], color="black", linewidth=2)
            if bar.ours is not None:
                axes.barh(number, bar.ours, height=0.34, color=_COLOURS[number % len(_COLOURS)], alpha=0.85)
            axes.text(0, number - 0.26, bar.label, va="bottom", fontsize=9)
            edge = axes.get_yaxis_transform()
            axes.text(1, number - 0.26, shown, va="bottom", ha="right", fontsize=9, transform=edge)
        axes.set_yticks([])
        axes.set_ylim(len(bars) - 0.6, -0.75)
        axes.set_xlim(left=0)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(label)
        figure.suptitle(wrapped, ha="left", x=0.01)
        return _svg(figure, title)


def _wrapped(title: str, width: int) -> str:
    """A title in lines of at most so many characters; "s = 4" stays on one line."""
    return textwrap.fill(title.replace(" = ", "\u00a0=\u00a0"), width)


def _draw_panel(axes: Axes, panel: Panel) -> dict[str, Artist]:
    """Draw the lines; returns the handles of a legend by label. The first lines lie on top."""
    from matplotlib.ticker import MaxNLocator

    handles: dict[str, Artist] = {}
    for number, line in enumerate(panel.lines):
        colour, dash = _COLOURS[number % len(_COLOURS)], _DASHES[number // len(_COLOURS) % len(_DASHES)]
        above = 3 + (len(panel.lines) - number) / len(panel.lines)
        if line.published:
            x, y = [p.x for p in line.published], [p.y for p in line.published]
            (crosses,) = axes.plot(x, y, ":x", color=colour, linewidth=1, markersize=6, zorder=above)
            handles[line.label] = crosses
        if line.ours:
            x, y = [p.x for p in line.ours], [p.y for p in line.ours]
            marker = _MARKERS[number % len(_MARKERS)] if len(x) <= _MOST_MARKERS else ""
            width = 3 if line.thick else 1.5
            (curve,) = axes.plot(x, y, dash, marker=marker, color=colour, linewidth=width, markersize=4.5, zorder=above)
            handles[line.label] = curve
            for p in line.ours:
                if p.deviation:
                    ends = [p.y - p.deviation, min(p.y + p.deviation, panel.y.top)]
                    axes.plot([p.x, p.x], ends, color=colour, linewidth=1, zorder=above)
    places = [p.x for line in panel.lines for p in (*line.ours, *line.published)]
    if not panel.x.log and all(float(place).is_integer() for place in places):
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
    _set_axis(axes, "x", panel.x)
    _set_axis(axes, "y", panel.y)
    axes.set_title(panel.heading, loc="left", fontweight="bold")
    return handles


def _set_axis(axes: Axes, which: str, axis: Axis) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    drawn = axes.xaxis if which == "x" else axes.yaxis
    set_limits: Callable[..., Any] = axes.set_xlim if which == "x" else axes.set_ylim
    drawn.set_label_text(axis.label)
    if axis.log:
        (axes.set_xscale if which == "x" else axes.set_yscale)("log")
        low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
        drawn.set_major_locator(LogLocator(subs=(1.0,) if high / low > 100 else (1.0, 2.0, 5.0)))
        drawn.set_minor_formatter(NullFormatter())
    if axis.names:
        drawn.set_ticks(range(len(axis.names)), list(axis.names))
        set_limits(-0.4, len(axis.names) - 0.6)
        return
    if axis.marks:
        drawn.set_ticks(list(axis.marks))
    drawn.set_major_formatter(FuncFormatter(lambda value, _: axis.format(value)))
    low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
    set_limits(axis.limits or (low, min(high, axis.top)))


def _published_handle() -> Artist:
    from matplotlib.lines import Line2D

    return Line2D([], [], color="black", linestyle=":", marker="x", linewidth=1)


@contextmanager
def _new_figure(width: float, height: float) -> Iterator[Figure]:
    """A figure of so many inches, drawn in our style whatever the user's settings are."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MatplotlibMissing("plots need matplotlib: pip install 'supsup[paper]'") from error
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield Figure(figsize=(width, height), layout="constrained")


def _svg(figure: Figure, title: str) -> str:
    """The text of a file; dates and versions are left out, so that equal figures give equal files."""
    target = io.StringIO()
    figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None, "Title": title})
    return "\n".join(line.rstrip() for line in target.getvalue().splitlines()) + "\n"


def accuracy_plot(title: str, curves: Mapping[str, Mapping[int, float]]) -> str:
    """Accuracy over the tasks learned so far, a fraction of 1, against their number; a line for each label."""
    lines = [
        PlotLine(label, [Point(stage, 100 * value) for stage, value in curve.items()])
        for label, curve in curves.items()
    ]
    stages = sorted({stage for curve in curves.values() for stage in curve})
    x = Axis("tasks learned", marks=stages if len(stages) <= MOST_MARKS else ())
    y = Axis("accuracy over all of them, %", limits=(0, PERCENT))
    return draw_lines(title, [Panel(lines, x, y)])


def time_plot(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Seconds of training against the number of tasks: ours, one at a time by autograd, and the hardware limit."""

    def total(key: str) -> list[Point]:
        return [Point(row["tasks"], 1e-6 * row[key] * row["tasks"] * row["steps"]) for row in rows]

    lines = [
        PlotLine("learn_many, data included", [Point(row["tasks"], row["seconds"]) for row in rows]),
        PlotLine("one task at a time, autograd", total("plain µs per task-step")),
        PlotLine("hardware limit (bytes and operations)", total("floor µs")),
    ]
    return draw_lines(title, [Panel(lines, Axis("tasks", log=True), Axis("seconds", log=True))])


def search_plot(net: str, device: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Milliseconds to infer the task of one image against the number of tasks, with the hardware limits."""
    names = {
        "exact ms": "exact search, whole masks",
        "short ms": "short search, few coordinates",
        "query ms": "the query, part of both",
        "floor, exact ms": "hardware limit of the exact search",
        "floor, short ms": "hardware limit of the short search",
    }
    lines = [PlotLine(label, [Point(row["k"], row[key]) for row in rows]) for key, label in names.items()]
    title = f"{net}: time to infer the task of one image, {device}"
    return draw_lines(title, [Panel(lines, Axis("tasks", log=True), Axis("milliseconds", log=True))])


def recovery_plot(title: str, distances: Mapping[str, Sequence[Sequence[float]]]) -> str:
    """As the paper's figure: a panel for each task, with the distance [steps, tasks] to every mask over the steps."""
    y = Axis("units that differ (share)", limits=(0, 0.6))
    panels = []
    for name, steps in distances.items():
        lines = [
            PlotLine(f"mask of {other}", [Point(i, y) for i, y in enumerate(way, 1)], thick=other == name)
            for other, way in zip(distances, zip(*steps))
        ]
        panels.append(Panel(lines, Axis("step"), y, f"images of {name}"))
    return draw_lines(title, panels)


def capacity_plot(title: str, curves: Mapping[str, Mapping[str, Mapping[int, float]]], units: int) -> str:
    """Share of the stored masks that are recovered, against their number: by rule, then by kind of mask."""
    x, y = Axis(f"masks stored ({units} units)", log=True), Axis("recovered, %", limits=(0, PERCENT))
    panels = []
    for rule, kinds in curves.items():
        lines = [PlotLine(kind, [Point(n, 100 * s) for n, s in shares.items()]) for kind, shares in kinds.items()]
        panels.append(Panel(lines, x, y, rule))
    return draw_lines(title, panels)
