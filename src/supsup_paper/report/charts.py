"""Which plot an entry of the catalogue gets, in the manner of the paper's figure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from supsup_paper.report.summary import AVERAGE, BYTES, PAPERS_COUNT, EntrySummary, RowSummary, as_number
from supsup_paper.report.svg import Axis, Bar, Chart, Curve, Point, bar_chart, line_chart

MOST_MARKS = 8
_FEWEST_AT_THE_TOP = 3  # lines that are worth a plot of their own
WAY = "distances on the way"  # in the trace of HopSupSup's results


def entry_charts(summary: EntrySummary) -> list[Chart]:
    """The plots of an entry; none where nothing is known yet, published or measured.

    Where all labels begin with a part of their own ("LeNet 300-100: …", "FC 1024-1024: …"), each part has a plot.
    """
    if not summary.figures:
        return []
    parts = [row.row.label.partition(": ") for row in summary.rows]
    if summary.entry.figure == "distances":
        return [*_distances(summary), *(_by_seed(summary) or _bars(summary))]
    if not all(rest for _, _, rest in parts):
        return _KINDS[summary.entry.figure](summary)
    charts = []
    for part in dict.fromkeys(name for name, _, _ in parts):
        rows = [
            replace(row, row=replace(row.row, label=rest))
            for row, (name, _, rest) in zip(summary.rows, parts)
            if name == part
        ]
        entry = replace(summary.entry, title=f"{summary.entry.title}, {part}")
        charts += _curves(EntrySummary(entry, tuple(rows)), heading=part)
    return charts


def _curves(summary: EntrySummary, heading: str = "") -> list[Chart]:
    """The first figure over the entry's axis, and the lines at the top once more where others squeeze them together.

    Bars where the axis has a single position.
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
    title, y, closer = _title(summary, figure), _percent(figure), _at_the_top(lines)
    if not closer:
        return _not_empty(line_chart(title, lines, x, y, heading))
    whole, part = (heading, f"{heading}, closer") if heading else ("all rows", "the rows at the top, closer")
    return _not_empty(line_chart(title, lines, x, y, whole), line_chart(f"{title}, closer", closer, x, y, part))


def _at_the_top(lines: list[Curve]) -> list[Curve]:
    """The lines in the top eighth of a plot, if they are many and not all; the others stay in the list, empty."""
    heights = {line.label: [point.y for point in (*line.ours, *line.published)] for line in lines}
    seen = {label: values for label, values in heights.items() if values}
    highest, lowest = max(map(max, seen.values()), default=0.0), min(map(min, seen.values()), default=0.0)
    top = {label for label, values in seen.items() if min(values) >= highest - (highest - lowest) / 8}
    if not _FEWEST_AT_THE_TOP <= len(top) < len(seen):
        return []
    return [line if line.label in top else Curve(line.label, ()) for line in lines]


def _line(row: RowSummary, figure: str, where: dict[str, float]) -> Curve:
    measured, published = row.figures.get(figure, {}), row.row.published.get(figure, {})
    ours = [Point(x, measured[p].mean, measured[p].deviation) for p, x in where.items() if p in measured]
    theirs = [Point(x, published[p]) for p, x in where.items() if p in published]
    return Curve(row.row.label, ours, theirs)


def _bytes(summary: EntrySummary) -> list[Chart]:
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
            lines.append(Curve(label, sorted(ours, key=_x), sorted(theirs, key=_x)))
    if not lines:
        return _bars(summary)
    x = Axis("bytes for all tasks", log=True, format=byte_tick)
    return _not_empty(line_chart(_title(summary, f"{figure} against bytes"), lines, x, _percent(figure)))


def _bars(summary: EntrySummary) -> list[Chart]:
    """One bar for each row: its first figure, at its last position."""
    figure = summary.figures[0]
    position = summary.positions(figure)[-1]
    bars = []
    for row in summary.rows:
        measured, published = row.figures.get(figure, {}).get(position), row.row.published.get(figure, {}).get(position)
        if measured is not None or published is not None:
            bars.append(Bar(row.row.label, measured.mean if measured else None, published))
    what = f"{figure}, {position}" if position and as_number(position) is None else figure
    return _not_empty(bar_chart(f"{summary.entry.title}: {what}", bars, what))


def _distances(summary: EntrySummary) -> list[Chart]:
    """The way to each task's mask: distance to all masks, step by step, of the first row and seed that kept it."""
    ways = next((r.trace for row in summary.rows for r in row.results if WAY in r.trace), None)
    if ways is None:
        return []
    charts = []
    for task, steps in ways[WAY].items():
        columns = zip(ways["tasks"], zip(*steps))
        lines = [Curve(f"mask of {other}", [Point(i, y) for i, y in enumerate(way, 1)]) for other, way in columns]
        heading, x, y = f"images of {task}", Axis("step"), Axis("share of units that differ")
        title = f"{summary.entry.title}: distance to each mask, {heading}"
        charts.append(line_chart(title, lines, x, y, heading))
    return _not_empty(*charts)


def _by_seed(summary: EntrySummary) -> list[Chart]:
    """The first figure of each seed, a line for each row; none where only one seed was run."""
    figure = summary.figures[0]
    lines = []
    for row in summary.rows:
        ours = [Point(r.seed, r.figures[figure][""]) for r in row.results if "" in r.figures.get(figure, {})]
        published = row.row.published.get(figure, {}).get("")
        if len(ours) > 1:
            ends = [] if published is None else [Point(ours[0].x, published), Point(ours[-1].x, published)]
            lines.append(Curve(row.row.label, ours, ends))
    return _not_empty(line_chart(_title(summary, f"{figure} by seed"), lines, Axis("seed"), _percent(figure)))


_KINDS: dict[str, Callable[[EntrySummary], list[Chart]]] = {"curves": _curves, "bytes": _bytes, "bars": _bars}


def family(label: str) -> str:
    """A row's label without its budget: "SupSup, s = 4" is of the family "SupSup"."""
    return re.sub(r"[,\s]*\(?\bs\s*=\s*[\d.]+\)?", "", label).strip(" ,") or label


def byte_tick(value: float) -> str:
    """Bytes on an axis."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g}"


def _not_empty(*charts: Chart | None) -> list[Chart]:
    """Without the plots that had nothing to draw."""
    return [chart for chart in charts if chart]


def _percent(figure: str) -> Axis:
    return Axis(figure, top=101.0) if "%" in figure else Axis(figure)


def _title(summary: EntrySummary, figure: str) -> str:
    return f"{summary.entry.title}: {figure}" + (f" by {summary.entry.axis}" if summary.entry.axis else "")


def _x(point: Point) -> float:
    return point.x
