"""The report's tables, before they become HTML or Markdown: headings, rows and cells."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from supsup_paper.catalogue.tolerances import TOLERANCES
from supsup_paper.records import PLAIN_WAY
from supsup_paper.report.summary import AVERAGE, PAPERS_COUNT, EntrySummary, RowSummary, Summary
from supsup_paper.report.verdicts import (
    ALWAYS_COUNTED,
    BETTER,
    LARGEST_SPREAD,
    QUICK,
    WORSE,
    Judgement,
    OverSeeds,
    deciding,
    judgements,
)

DASH = "–"
TIMES = ("learning", "grading", PLAIN_WAY)


@dataclass(frozen=True)
class Cell:
    """A measured figure with the published one, the difference and the verdict, where a number is published."""

    text: str
    published: str = ""
    difference: str = ""
    verdict: str = ""


@dataclass(frozen=True)
class GridRow:
    """A line of a table: its label, whether it is ours alone, its cells and its verdict.

    repeats    "entry/row" where the same measurement is counted
    tolerance  the row's, as it is printed
    """

    label: str
    beyond: bool
    cells: tuple[Cell, ...]
    status: str = ""
    repeats: str = ""
    tolerance: str = ""


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
        rows = [_grid_row(row, ()) for row in summary.rows]
        return [Grid("No numbers were published, and none measured yet", (), tuple(rows), statuses=True)]
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
        rows.append(_grid_row(row, (Cell(ours.text + where, verdict=ours.verdict), *others)))
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


def tolerance_grid() -> Grid:
    """The tolerances of all rows, and where they come from."""
    rows = [GridRow(t.rows, False, (Cell(f"{t.points:g}"), Cell(t.source))) for t in TOLERANCES]
    return Grid("tolerance t, in points", ("t", "source"), tuple(rows))


def remarks(summary: EntrySummary) -> list[tuple[str, str]]:
    """Label and text for each row that needs a remark: what decided its verdict, and the known reasons."""
    said = []
    for row in summary.rows:
        decided = None if row.status == QUICK else deciding(row.row, row.figures, row.status)
        words = [] if decided is None else [verdict_in_words(decided, row.status, summary.entry.axis)]
        if row.results and (decided is not None or row.row.beyond):
            words.append(row.row.remark)
        if row.status == QUICK:
            words.append("Only a quick run exists. It is smaller than the paper's experiment, so it has no verdict.")
        words += row.notes
        if row.status == WORSE and not row.notes and not row.row.remark:
            words.append("The reason is not known yet.")
        if any(words):
            said.append((row.row.label, " ".join(filter(None, words))))
    return said


def verdict_in_words(decided: Judgement, status: str, axis: str) -> str:
    """What decided a verdict, in a sentence."""
    ours, published = decided.ours, decided.published
    assert ours is not None  # what has not been measured decides nothing
    at = f" ({axis}: {decided.position})" if decided.position else ""
    spread = " (one seed)" if ours.deviation is None else f" ({ours.seeds} seeds, deviation {ours.deviation:.2f})"
    side = "above" if decided.difference > 0 else "below"
    limit = f"with a tolerance of {decided.tolerance:g}"
    if ours.deviation is not None and ours.deviation > LARGEST_SPREAD:
        limit += ", which so large a spread does not widen"
    elif decided.allowed > decided.tolerance:
        limit += f" and {decided.allowed:.2f} allowed by the spread of seeds"
    begin = status.capitalize() if status in (BETTER, WORSE) else "Reproduced only by the spread of its seeds"
    return (
        f"{begin}: {decided.figure}{at} is {ours.mean:.2f}{spread}, published {published:.2f}, "
        f"{abs(decided.difference):.2f} {side} {limit}."
    )


def verdict_counts(summary: Summary) -> str:
    """How many rows have which verdict, as a sentence."""
    counts = summary.counts.items()
    return ", ".join(f"{count} {status}" for status, count in counts if count or status in ALWAYS_COUNTED) + "."


def headline(summary: Summary) -> str:
    """How many rows have each verdict, and how long they took."""
    said = [verdict_counts(summary)]
    if summary.repeats:
        said.append(f"{summary.repeats} more rows repeat one of these and are not counted.")
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


def _grid_row(row: RowSummary, cells: tuple[Cell, ...]) -> GridRow:
    """A line with its verdict."""
    tolerance = DASH if row.row.tolerance is None else f"{row.row.tolerance.points:g}"
    return GridRow(row.row.label, row.row.beyond, cells, row.status, row.repeats, tolerance)


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
        rows.append(_grid_row(row, tuple(cells)) if first else GridRow(row.row.label, row.row.beyond, tuple(cells)))
    caption = figure if single or not summary.entry.axis else f"{figure} by {summary.entry.axis}"
    headings = ("ours", "published", "difference") if single else positions
    return Grid(caption, headings, tuple(rows), statuses=first)


def _single(cell: Cell) -> list[Cell]:
    """A cell as three: ours, published and difference."""
    return [
        Cell(cell.text, verdict=cell.verdict),
        Cell(cell.published or DASH),
        Cell(cell.difference or DASH, verdict=cell.verdict),
    ]


def _cell(row: RowSummary, figure: str, position: str) -> Cell:
    ours = row.figures.get(figure, {}).get(position)
    published = row.row.published.get(figure, {}).get(position)
    shown = DASH if ours is None else _spread(figure, ours)
    if published is None:
        return Cell(shown)
    if ours is None or row.status == QUICK:
        return Cell(shown, number(figure, published))
    printed = (round(ours.mean, 2) - published) if "%" in figure else ours.mean - published
    sign = "+" if printed >= 0 else "−"
    verdicts = {(held.figure, held.position): held.verdict for held in judgements(row.row, row.figures)}
    verdict = verdicts.get((figure, position)) or ""
    return Cell(shown, number(figure, published), sign + number(figure, abs(printed)), verdict)


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
