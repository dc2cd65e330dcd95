"""REPRODUCTION.md and the table of README.md, from the same summary as the HTML page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from supsup.report.charts import entry_charts
from supsup.report.grids import Cell, Grid, GridRow, figure_grids, headline, origin_grid, remarks
from supsup.report.summary import AVERAGE, EntrySummary, RowSummary, Summary

README_MARKS = ("<!-- reproduction: made by supsup report from results/ -->", "<!-- /reproduction -->")
MAIN_ROWS = (
    ("permuted-lenet", "supsup-H-s100"),
    ("permuted-fc", "supsup-H-s500"),
    ("permuted-2500", "supsup-H"),
    ("permuted-2500", "nns-H"),
    ("rotated", "supsup-binary-H"),
    ("hopfield", "paper"),
    ("hopfield", "best-of"),
    ("cifar100-gg", "supsup-s32"),
    ("cifar100-gg", "transfer-s32"),
)


def reproduction(summary: Summary, results: str = "results") -> str:
    """The whole of REPRODUCTION.md; `results` is where the files lie, seen from it."""
    parts = [
        "# Every table and figure of the paper",
        f"Made by `supsup report --markdown` from the files in [{results}/]({results}), which `supsup reproduce` "
        "writes; a test fails if they disagree. Cells give ours, the mean over seeds ± the sample deviation, then the "
        "published value and the difference. A row is *reproduced* if no percentage is further below its published "
        "value than the row's tolerance. Rows of one training each give the time of all of it.",
        f"**{headline(summary)}**",
    ]
    if summary.damaged:
        parts.append("Files that could not be used:\n\n" + "\n".join(f"- {_text(line)}" for line in summary.damaged))
    parts += [_entry(entry, results) for entry in summary.entries]
    return "\n\n".join(parts) + "\n"


def plots(summary: Summary) -> dict[str, str]:
    """Plots as files of their own, by their path in the folder of results; only of entries that have some."""
    return {
        f"{entry.entry.name}/plot-{number}.svg": chart.file
        for entry in summary.entries
        if entry.has_results
        for number, chart in enumerate(entry_charts(entry), 1)
    }


def readme_block(summary: Summary, main_rows: Sequence[tuple[str, str]] = MAIN_ROWS, results: str = "results") -> str:
    """A picture of the first of them that was run, and the main rows in a table with their last published figures."""
    entries = {entry.entry.name: entry for entry in summary.entries}
    run = [entries[name] for name, _ in main_rows if entries[name].has_results]
    if not run:
        return "Not run yet: `supsup reproduce all --scale full`, then `supsup report --markdown`."
    picture = next(iter(plots(Summary((run[0],)))))
    lines = [f"![{_text(run[0].entry.title)}]({results}/{picture})", ""]
    lines += ["| experiment | row | ours, % | paper, % | verdict |", "|---|---|---|---|---|"]
    for name, row_name in main_rows:
        entry = entries[name]
        row = next(row for row in entry.rows if row.row.name == row_name)
        ours, published = _closing(entry, row)
        title = f"[{_text(entry.entry.title)}](REPRODUCTION.md#{anchor(entry.entry.title)})"
        lines.append(f"| {title} | {_text(row.row.label)} | {ours} | {published} | {row.status} |")
    lines += [
        "",
        "`supsup reproduce all --scale full` runs every table and figure of the paper, `supsup report --markdown` "
        "writes them down. All rows, each with its command, are in [REPRODUCTION.md](REPRODUCTION.md): "
        f"{headline(summary)}",
    ]
    return "\n".join(lines)


def with_block(text: str, block: str, marks: tuple[str, str] = README_MARKS) -> str:
    """A page with what stands between the marks made anew."""
    start, end = marks
    return re.sub(f"{re.escape(start)}.*?{re.escape(end)}", lambda _: f"{start}\n{block}\n{end}", text, flags=re.DOTALL)


def write(path: Path, text: str) -> None:
    """A text file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".new")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def anchor(heading: str) -> str:
    """The name GitHub gives a heading's place on its page."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _entry(summary: EntrySummary, results: str) -> str:
    entry = summary.entry
    parts = [f"## {_text(entry.title)}", f"{_text(entry.where)} · `supsup reproduce {entry.name} --scale full`"]
    if entry.note:
        parts.append(_text(entry.note))
    if summary.has_results:
        shown = [f"![{_text(entry.title)}]({results}/{path})" for path in plots(Summary((summary,)))]
        parts += ["\n".join(shown)] if shown else []
    parts += [_table(grid) for grid in figure_grids(summary)]
    said = [f"- {_text(label)}: {_text(text)}" for label, text in remarks(summary)]
    parts += ["\n".join(said)] if said else []
    if summary.has_results:
        parts.append(_table(origin_grid(summary)))
    return "\n\n".join(parts)


def _table(grid: Grid) -> str:
    headings = [_text(grid.caption), *(["verdict"] if grid.statuses else []), *map(_text, grid.headings)]
    lines = [f"| {' | '.join(headings)} |", "|" + "---|" * len(headings)]
    return "\n".join([*lines, *(_row(row, grid.statuses) for row in grid.rows)])


def _row(row: GridRow, statuses: bool) -> str:
    label = _text(row.label) + (" *(ours, not in the paper)*" if row.beyond else "")
    verdict = [f"**{row.status}**" if row.status == "missed" else row.status] if statuses else []
    return f"| {' | '.join([label, *verdict, *map(_cell, row.cells)])} |"


def _cell(cell: Cell) -> str:
    words = [_text(cell.text)]
    if cell.published:
        words.append(f"<br>{_text(cell.published)}" + (f" ({cell.difference})" if cell.difference else ""))
    return "".join(words)


def _closing(entry: EntrySummary, row: RowSummary) -> tuple[str, str]:
    """Ours and the published value of the first percentage, at the last place that was published."""
    figure = next(name for name in entry.figures if "%" in name)
    known = row.row.published.get(figure) or row.figures.get(figure) or {}
    place = next((place for place in reversed(entry.places(figure)) if place in known and place != AVERAGE), "")
    ours, published = row.figures.get(figure, {}).get(place), row.row.published.get(figure, {}).get(place)
    shown = "–"
    if ours is not None:
        shown = f"**{ours.mean:.2f}**" + ("" if ours.deviation is None else f" ± {ours.deviation:.2f}")
    return shown, "–" if published is None else f"{published:.2f}"


def _text(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
