"""The plots of an entry of the catalogue, in the manner of the paper's figure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from supsup_paper.report.plots import (
    MOST_MARKS,
    PERCENT,
    Axis,
    Panel,
    PlotBar,
    PlotLine,
    Point,
    draw_bars,
    draw_lines,
)
from supsup_paper.report.summary import AVERAGE, BYTES, PAPERS_COUNT, EntrySummary, RowSummary, as_number

_FEWEST_AT_THE_TOP = 3  # lines that are worth a plot of their own
_DISTANCES = "distances on the way"  # in the trace of HopSupSup's results


@dataclass(frozen=True)
class EntryPlot:
    """What a plot shows, in words, and how it is drawn."""

    title: str
    draw: Callable[[], str]

    @property
    def svg(self) -> str:
        """The text of its file, drawn anew each time."""
        return self.draw()


def entry_plots(summary: EntrySummary) -> list[EntryPlot]:
    """The plots of an entry; none where nothing is known yet, published or measured.

    Where all labels start with a network ("LeNet 300-100: …", "FC 1024-1024: …"), each network has a plot.
    """
    if not summary.figures:
        return []
    parts = [row.row.label.partition(": ") for row in summary.rows]
    if summary.entry.figure == "distances":
        return [*_distances(summary), *(_by_seed(summary) or _bars(summary))]
    if not all(rest for _, _, rest in parts):
        return _KINDS[summary.entry.figure](summary)
    plots = []
    for part in dict.fromkeys(name for name, _, _ in parts):
        rows = [
            replace(row, row=replace(row.row, label=rest))
            for row, (name, _, rest) in zip(summary.rows, parts)
            if name == part
        ]
        plots += _curves(EntrySummary(replace(summary.entry, title=f"{summary.entry.title}, {part}"), tuple(rows)))
    return plots


def _curves(summary: EntrySummary) -> list[EntryPlot]:
    """The first figure over the entry's axis; bars where the axis has a single position.

    Where other lines squeeze those at the top together, they get a second plot.
    """
    figure = summary.figures[0]
    positions = [position for position in summary.positions(figure) if position != AVERAGE]
    if len(positions) < 2:
        return _bars(summary)
    by_number = all(as_number(position) is not None for position in positions)
    where = {position: float(position) if by_number else float(i) for i, position in enumerate(positions)}
    lines = [_line(row, figure, where) for row in summary.rows]
    values = list(where.values())
    log = by_number and min(values) > 0 and max(values) / min(values) >= 30
    marks = values if by_number and len(values) <= MOST_MARKS else ()
    x = Axis(summary.entry.axis, log, names=() if by_number else positions, marks=marks)
    title, y = summary.entry.title, _percent(figure)
    plots = _plot(title, lines, x, y)
    closer = _at_the_top(lines)
    return [*plots, *_plot(f"{title}: the lines at the top", closer, x, y)] if closer else plots


def _at_the_top(lines: list[PlotLine]) -> list[PlotLine]:
    """The lines in the top eighth of a plot, if they are many and not all; the others stay in the list, empty."""
    heights = {line.label: [point.y for point in (*line.ours, *line.published)] for line in lines}
    known = {label: values for label, values in heights.items() if values}
    highest, lowest = max(map(max, known.values()), default=0.0), min(map(min, known.values()), default=0.0)
    top = {label for label, values in known.items() if min(values) >= highest - (highest - lowest) / 8}
    if not _FEWEST_AT_THE_TOP <= len(top) < len(known):
        return []
    return [line if line.label in top else PlotLine(line.label, ()) for line in lines]


def _line(row: RowSummary, figure: str, where: dict[str, float]) -> PlotLine:
    measured, published = row.figures.get(figure, {}), row.row.published.get(figure, {})
    ours = [Point(x, measured[p].mean, measured[p].deviation) for p, x in where.items() if p in measured]
    theirs = [Point(x, published[p]) for p, x in where.items() if p in published]
    return PlotLine(row.row.label, ours, theirs)


def _bytes(summary: EntrySummary) -> list[EntryPlot]:
    """Accuracy against bytes; rows that differ only in their budget s make one line."""
    figure = next((name for name in summary.figures if "%" in name), summary.figures[0])
    families: dict[str, list[RowSummary]] = {}
    for row in summary.rows:
        families.setdefault(family(row.row.label), []).append(row)
    lines = []
    for label, rows in families.items():
        ours, theirs = [], []
        for row in rows:
            measured, size = row.figures.get(figure, {}).get(""), row.own_bytes or row.mean_of("bytes", PAPERS_COUNT)
            if measured is not None and size:
                ours.append(Point(size, measured.mean, measured.deviation))
            published = row.row.published.get(figure, {}).get("")
            theirs_size = row.row.published.get(BYTES, {}).get("")
            if published is not None and theirs_size:
                theirs.append(Point(theirs_size, published))
        if ours or theirs:
            lines.append(PlotLine(label, sorted(ours, key=_x), sorted(theirs, key=_x)))
    if not lines:
        return _bars(summary)
    return _plot(summary.entry.title, lines, Axis("bytes for all tasks", log=True, format=byte_tick), _percent(figure))


def _bars(summary: EntrySummary) -> list[EntryPlot]:
    """One bar for each row: its first figure, at its last position."""
    figure = summary.figures[0]
    position = summary.positions(figure)[-1]
    bars = []
    for row in summary.rows:
        measured, published = row.figures.get(figure, {}).get(position), row.row.published.get(figure, {}).get(position)
        if measured is not None or published is not None:
            bars.append(PlotBar(row.row.label, measured.mean if measured else None, published))
    what = f"{figure}, {position}" if position and as_number(position) is None else figure
    title = summary.entry.title
    return [EntryPlot(f"{title}: {what}", partial(draw_bars, title, bars, what))] if bars else []


def _distances(summary: EntrySummary) -> list[EntryPlot]:
    """How each task's mask is recovered: distance to all masks, step by step, of the first row and seed that has it."""
    trace = next((r.trace for row in summary.rows for r in row.results if _DISTANCES in r.trace), None)
    plots = []
    for task, steps in trace[_DISTANCES].items() if trace is not None else ():
        assert trace is not None
        columns = zip(trace["tasks"], zip(*steps))
        lines = [PlotLine(f"mask of {other}", [Point(i, y) for i, y in enumerate(way, 1)]) for other, way in columns]
        title = f"HopSupSup: distance to each mask, images of {task}"
        plots += _plot(title, lines, Axis("step"), Axis("units that differ (share)"))
    return plots


def _by_seed(summary: EntrySummary) -> list[EntryPlot]:
    """The first figure of each seed, a line for each row; none where only one seed was run."""
    figure = summary.figures[0]
    lines = []
    for row in summary.rows:
        ours = [Point(r.seed, r.figures[figure][""]) for r in row.results if "" in r.figures.get(figure, {})]
        published = row.row.published.get(figure, {}).get("")
        if len(ours) > 1:
            ends = [] if published is None else [Point(ours[0].x, published), Point(ours[-1].x, published)]
            lines.append(PlotLine(row.row.label, ours, ends))
    return _plot(f"{summary.entry.title}, by seed", lines, Axis("seed"), _percent(figure))


_KINDS: dict[str, Callable[[EntrySummary], list[EntryPlot]]] = {"curves": _curves, "bytes": _bytes, "bars": _bars}


def _plot(title: str, lines: list[PlotLine], x: Axis, y: Axis) -> list[EntryPlot]:
    """One plot, or none where there is nothing to draw."""
    if not any(line.ours or line.published for line in lines):
        return []
    words = f"{title}: {y.label} by {x.label}"
    return [EntryPlot(words, partial(draw_lines, title, [Panel(lines, x, y)]))]


def family(label: str) -> str:
    """A row's label without its budget: "SupSup, s = 4" is of the family "SupSup"."""
    return re.sub(r"[,\s]*\(?\bs\s*=\s*[\d.]+\)?", "", label).strip(" ,") or label


def byte_tick(value: float) -> str:
    """Bytes on an axis."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g}"


def _percent(figure: str) -> Axis:
    return Axis(figure, top=PERCENT) if "%" in figure else Axis(figure)


def _x(point: Point) -> float:
    return point.x
