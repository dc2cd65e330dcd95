"""Which plot an entry of the catalogue gets, in the manner of the paper's figure."""

from __future__ import annotations

import re
from collections.abc import Callable

from supsup.report.summary import PAPERS_COUNT, EntrySummary, RowSummary, as_number
from supsup.report.svg import Axis, Bar, Line, Point, bar_chart, line_chart


def entry_chart(summary: EntrySummary) -> str:
    """The plot of an entry as SVG; empty where nothing is known yet, published or measured."""
    if not summary.figures:
        return ""
    return _KINDS.get(summary.entry.figure, _curves)(summary)


def _curves(summary: EntrySummary) -> str:
    """The first figure over the entry's axis; bars where it has a single place."""
    figure = summary.figures[0]
    places = summary.places(figure)
    if len(places) < 2:
        return _bars(summary)
    named = [place for place in places if as_number(place) is None]
    drawn = [place for place in places if place not in named] if len(places) - len(named) > 1 else list(places)
    by_number = not any(place in named for place in drawn)
    where = {place: float(place) if by_number else float(i) for i, place in enumerate(drawn)}
    lines = [line for row in summary.rows if (line := _line(row, figure, where)) is not None]
    values = list(where.values())
    wide = by_number and min(values) > 0 and max(values) / min(values) >= 30
    x = Axis(summary.entry.axis, log=wide, names=() if by_number else drawn)
    return line_chart(_title(summary, figure), lines, x, _percent(figure))


def _line(row: RowSummary, figure: str, where: dict[str, float]) -> Line | None:
    measured, published = row.figures.get(figure, {}), row.row.published.get(figure, {})
    ours = [Point(x, measured[p].mean, measured[p].deviation) for p, x in where.items() if p in measured]
    theirs = [Point(x, published[p]) for p, x in where.items() if p in published]
    return Line(row.row.label, ours, theirs) if ours or theirs else None


def _bytes(summary: EntrySummary) -> str:
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
            theirs_size = row.row.published.get("bytes", {}).get("")
            if published is not None and theirs_size:
                theirs.append(Point(theirs_size, published))
        if ours or theirs:
            lines.append(Line(label, sorted(ours, key=_x), sorted(theirs, key=_x)))
    if not lines:
        return _bars(summary)
    x = Axis("bytes for all tasks", log=True, shown=byte_tick)
    return line_chart(_title(summary, f"{figure} against bytes"), lines, x, _percent(figure))


def _bars(summary: EntrySummary) -> str:
    """One bar for each row: its first figure, at its last place."""
    figure = summary.figures[0]
    place = summary.places(figure)[-1]
    bars = []
    for row in summary.rows:
        measured, published = row.figures.get(figure, {}).get(place), row.row.published.get(figure, {}).get(place)
        if measured is not None or published is not None:
            mean, deviation = (measured.mean, measured.deviation) if measured else (None, None)
            bars.append(Bar(row.row.label, mean, published, deviation))
    return bar_chart(_title(summary, figure), bars, figure)


_KINDS: dict[str, Callable[[EntrySummary], str]] = {"curves": _curves, "bytes": _bytes, "bars": _bars}


def family(label: str) -> str:
    """A row's label without its budget: "SupSup, s = 4" is of the family "SupSup"."""
    return re.sub(r"[,\s]*\(?\bs\s*=\s*\d+\)?", "", label).strip(" ,") or label


def byte_tick(value: float) -> str:
    """Bytes on an axis."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g}"


def _percent(figure: str) -> Axis:
    return Axis(figure, top=100.5) if "%" in figure else Axis(figure)


def _title(summary: EntrySummary, figure: str) -> str:
    return f"{summary.entry.title}: {figure}" + (f" by {summary.entry.axis}" if summary.entry.axis else "")


def _x(point: Point) -> float:
    return point.x


