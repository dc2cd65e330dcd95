"""The report's tables before they are HTML or Markdown: headings, rows, and cells with what stands under them."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from supsup.paper.records import PLAIN_WAY
from supsup.report.summary import (
    MISSED,
    PAPERS_COUNT,
    QUICK,
    EntrySummary,
    RowSummary,
    Spread,
    Summary,
    shortfalls,
)

DASH = "–"
TIMES = ("learning", "grading", PLAIN_WAY)


@dataclass(frozen=True)
class Cell:
    """What was measured, with what was published and the difference where a number is published."""

    text: str
    published: str = ""
    difference: str = ""
    missed: bool = False


@dataclass(frozen=True)
class GridRow:
    """A line of a table: its label, whether it is ours alone, its cells and its verdict."""

    label: str
    beyond: bool
    cells: tuple[Cell, ...]
    status: str = ""


@dataclass(frozen=True)
class Grid:
    """A table; `statuses` says whether its rows carry a verdict."""

    caption: str
    headings: tuple[str, ...]
    rows: tuple[GridRow, ...]
    statuses: bool = False


def figure_grids(summary: EntrySummary) -> list[Grid]:
    """A table for each figure of an entry; the verdicts stand in the first, which is there in any case."""
    if not summary.figures:
        rows = [GridRow(row.row.label, row.row.beyond, (), row.status) for row in summary.rows]
        return [Grid("No numbers were printed, and none measured yet", (), tuple(rows), statuses=True)]
    return [_figure_grid(summary, figure, first=index == 0) for index, figure in enumerate(summary.figures)]


def origin_grid(summary: EntrySummary) -> Grid:
    """Cost and origin of each row that has results."""
    headings = ("seeds", *TIMES, "bytes, ours", "bytes, paper's count", "device", "commit", "date", "command")
    rows = [GridRow(row.row.label, row.row.beyond, _origin(row)) for row in summary.rows if row.results]
    return Grid("Cost (means over seeds) and origin of each row", headings, tuple(rows))


def remarks(summary: EntrySummary) -> list[tuple[str, str]]:
    """Label and text for each row that has something to be said: by how much it missed, and its notes."""
    said = []
    for row in summary.rows:
        words = [missed_by(row, summary.entry.axis), row.row.remark] if row.status == MISSED else []
        if row.status == QUICK:
            words.append("Only a quick run is there: smaller than the paper's setting, so it has no verdict.")
        words += row.notes
        if row.status == MISSED and not row.notes and not row.row.remark:
            words.append("Why is not known yet.")
        if words:
            said.append((row.row.label, " ".join(filter(None, words))))
    return said


def missed_by(row: RowSummary, axis: str) -> str:
    """Where a missed row is furthest from its number, in a sentence."""
    gaps = {place: gap for place, gap in shortfalls(row.row, row.figures).items() if gap}
    figure, place = max(gaps, key=lambda key: gaps[key] or 0.0)
    ours, published = row.figures[figure][place], row.row.published[figure][place]
    at = f" ({axis}: {place})" if place else ""
    spread = "" if ours.deviation is None else f" ({ours.seeds} seeds, deviation {ours.deviation:.2f})"
    return (
        f"Missed: {figure}{at} is {ours.mean:.2f}{spread}, published {published:.2f}, "
        f"{published - ours.mean:.2f} below with a tolerance of {row.row.tolerance:g}."
    )


def headline(summary: Summary) -> str:
    """How many rows have which verdict, and the time they took."""
    counts = ", ".join(f"{count} {status}" for status, count in summary.counts.items() if count)
    said = [f"{counts}."]
    if summary.mnist is not None:
        took = shown_time(summary.mnist.seconds)
        said.append(f"One seed of every row of the MNIST half took {took} ({summary.mnist.device}).")
    return " ".join(said)


def number(figure: str, value: float) -> str:
    """A figure as it is printed: percentages to two places, as in the paper."""
    if "%" in figure:
        return f"{value:.2f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def shown_time(seconds: float | None) -> str:
    """Seconds, minutes or hours, whichever reads best."""
    if seconds is None:
        return DASH
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def shown_bytes(count: float | None) -> str:
    """All digits: the paper counts bytes exactly."""
    return DASH if count is None else f"{count:,.0f}"


def _figure_grid(summary: EntrySummary, figure: str, first: bool) -> Grid:
    places = summary.places(figure)
    single = places == ("",)
    rows = []
    for row in summary.rows:
        if not first and figure not in row.figures and figure not in row.row.published:
            continue
        cells = [_cell(row, figure, place) for place in places]
        if single:
            (cell,) = cells
            cells = [
                Cell(cell.text, missed=cell.missed),
                Cell(cell.published or DASH),
                Cell(cell.difference or DASH, missed=cell.missed),
            ]
        rows.append(GridRow(row.row.label, row.row.beyond, tuple(cells), row.status if first else ""))
    caption = figure if single or not summary.entry.axis else f"{figure} by {summary.entry.axis}"
    headings = ("ours", "published", "difference") if single else places
    return Grid(caption, headings, tuple(rows), statuses=first)


def _cell(row: RowSummary, figure: str, place: str) -> Cell:
    ours = row.figures.get(figure, {}).get(place)
    published = row.row.published.get(figure, {}).get(place)
    shown = DASH if ours is None else _spread(figure, ours)
    if published is None:
        return Cell(shown)
    if ours is None or row.status == QUICK:
        return Cell(shown, number(figure, published))
    gap = shortfalls(row.row, row.figures).get((figure, place))
    printed = (round(ours.mean, 2) - published) if "%" in figure else ours.mean - published
    sign = "+" if printed >= 0 else "−"
    return Cell(shown, number(figure, published), sign + number(figure, abs(printed)), bool(gap))


def _spread(figure: str, spread: Spread) -> str:
    shown = number(figure, spread.mean)
    return shown if spread.deviation is None else f"{shown} ± {number(figure, spread.deviation)}"


def _origin(row: RowSummary) -> tuple[Cell, ...]:
    at_once = max(result.at_once for result in row.results)
    commits = ", ".join(_short(commit) for commit in row.made_with("commit"))
    return (
        Cell(f"{len(row.results)}"),
        Cell(shown_time(row.mean_of("seconds", "learning")) + (f" ({at_once} at once)" if at_once > 1 else "")),
        *(Cell(shown_time(row.mean_of("seconds", name))) for name in TIMES[1:]),
        Cell(shown_bytes(row.own_bytes)),
        Cell(shown_bytes(row.mean_of("bytes", PAPERS_COUNT))),
        Cell(", ".join(row.made_with("device")) or DASH),
        Cell(commits or DASH),
        Cell(", ".join(row.made_with("date")) or DASH),
        Cell("; ".join(dict.fromkeys(map(abridged, row.made_with("command")))) or DASH),
    )


def abridged(command: str, most: int = 3) -> str:
    """A command with the first few of the rows it names; its file has it whole."""
    rows = itertools.count()
    shown = re.sub(r" --row \S+", lambda found: found[0] if next(rows) < most else "", command)
    more = next(rows) - most
    return f"{shown} … and {more} more rows" if more > 0 else shown


def _short(commit: str) -> str:
    name, mark, _ = commit.partition("+")
    return name[:10] + ("+changes" if mark else "")
