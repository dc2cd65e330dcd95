"""The report's tables before they are HTML or Markdown: headings, rows, and cells with what stands under them."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from supsup.paper.records import PLAIN_WAY
from supsup.report.summary import (
    AVERAGE,
    MISSED,
    PAPERS_COUNT,
    QUICK,
    EntrySummary,
    OverSeeds,
    RowSummary,
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


def closing_grid(summary: EntrySummary) -> Grid:
    """One short table of an entry: the first figure of each row at its last position, and the verdict."""
    if not summary.figures:
        return figure_grids(summary)[0]
    figure = summary.figures[0]
    common = next((position for position in reversed(summary.positions(figure)) if position != AVERAGE), "")
    rows = []
    for row in summary.rows:
        position = closing_position(summary, row, figure)
        cell = _cell(row, figure, position)
        where = "" if position == common else f" ({summary.entry.axis}: {position})"
        ours, *others = _single(cell)
        cells = (Cell(ours.text + where, missed=ours.missed), *others)
        rows.append(GridRow(row.row.label, row.row.beyond, cells, row.status))
    caption = f"{figure}, {summary.entry.axis}: {common}" if common else figure
    return Grid(caption, ("ours", "published", "difference"), tuple(rows), statuses=True)


def closing_position(summary: EntrySummary, row: RowSummary, figure: str) -> str:
    """The last position with a published value of the row; where none is published, the last one measured."""
    known = row.row.published.get(figure) or row.figures.get(figure) or {}
    positions = [position for position in summary.positions(figure) if position != AVERAGE]
    return next((position for position in reversed(positions) if position in known), positions[-1])


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
    gaps = {position: gap for position, gap in shortfalls(row.row, row.figures).items() if gap}
    figure, position = max(gaps, key=lambda key: gaps[key] or 0.0)
    ours, published = row.figures[figure][position], row.row.published[figure][position]
    at = f" ({axis}: {position})" if position else ""
    spread = "" if ours.deviation is None else f" ({ours.seeds} seeds, deviation {ours.deviation:.2f})"
    return (
        f"Missed: {figure}{at} is {ours.mean:.2f}{spread}, published {published:.2f}, "
        f"{published - ours.mean:.2f} below with a tolerance of {row.row.tolerance:g}."
    )


def headline(summary: Summary) -> str:
    """How many rows have which verdict, and the time they took."""
    counts = ", ".join(f"{count} {status}" for status, count in summary.counts.items() if count)
    said = [f"{counts}."]
    if summary.mnist_time is not None:
        took = shown_time(summary.mnist_time.seconds)
        said.append(f"One seed of every row of the MNIST half took {took} ({summary.mnist_time.device}).")
    return " ".join(said)


def number(figure: str, value: float) -> str:
    """A figure as it is printed: percentages to two positions, as in the paper."""
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
    positions = summary.positions(figure)
    single = positions == ("",)
    rows = []
    for row in summary.rows:
        if not first and figure not in row.figures and figure not in row.row.published:
            continue
        cells = [_cell(row, figure, position) for position in positions]
        if single:
            cells = _single(cells[0])
        rows.append(GridRow(row.row.label, row.row.beyond, tuple(cells), row.status if first else ""))
    caption = figure if single or not summary.entry.axis else f"{figure} by {summary.entry.axis}"
    headings = ("ours", "published", "difference") if single else positions
    return Grid(caption, headings, tuple(rows), statuses=first)


def _single(cell: Cell) -> list[Cell]:
    """A cell as three: ours, published and difference."""
    return [
        Cell(cell.text, missed=cell.missed),
        Cell(cell.published or DASH),
        Cell(cell.difference or DASH, missed=cell.missed),
    ]


def _cell(row: RowSummary, figure: str, position: str) -> Cell:
    ours = row.figures.get(figure, {}).get(position)
    published = row.row.published.get(figure, {}).get(position)
    shown = DASH if ours is None else _spread(figure, ours)
    if published is None:
        return Cell(shown)
    if ours is None or row.status == QUICK:
        return Cell(shown, number(figure, published))
    gap = shortfalls(row.row, row.figures).get((figure, position))
    printed = (round(ours.mean, 2) - published) if "%" in figure else ours.mean - published
    sign = "+" if printed >= 0 else "−"
    return Cell(shown, number(figure, published), sign + number(figure, abs(printed)), bool(gap))


def _spread(figure: str, spread: OverSeeds) -> str:
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
