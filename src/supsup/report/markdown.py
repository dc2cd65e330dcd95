"""The Markdown pages, from the same summary as the HTML page.

REPRODUCTION.md  contents, then a plot, a short table and the remarks for each entry
ROWS.md          in the folder of results: every figure of every row, with cost and origin
README.md        a picture and a few main rows, between two marks
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from supsup.report.charts import entry_charts
from supsup.report.grids import (
    Cell,
    Grid,
    GridRow,
    closing_grid,
    closing_position,
    figure_grids,
    headline,
    origin_grid,
    remarks,
)
from supsup.report.summary import MISSED, STATUSES, EntrySummary, RowSummary, Summary

ROWS_PAGE = "ROWS.md"
README_MARKS = ("<!-- reproduction: made by supsup report from results/ -->", "<!-- /reproduction -->")
MAIN_ROWS = (
    ("permuted-lenet", "supsup-H-s100", "250 permutations of MNIST, task inferred"),
    ("permuted-2500", "supsup-H", "2,500 permutations, task inferred"),
    ("permuted-2500", "nns-H", "2,500 permutations, never announced (our rule)"),
    ("rotated", "supsup-binary-H", "36 rotations by 10°, task inferred"),
    ("cifar100-gg", "supsup-s32", "SplitCIFAR100, task given"),
    ("hopfield", "paper", "HopSupSup, masks from a memory of constant size"),
)


def reproduction(summary: Summary, results: str = "results") -> str:
    """The whole of REPRODUCTION.md; `results` is where the files lie, seen from it."""
    parts = [
        "# Every table and figure of the paper",
        f"Made by `supsup report --markdown` from the files in [{results}/]({results}), which `supsup reproduce` "
        "writes; a test fails if they disagree. Tables give ours, the mean over seeds ± the sample deviation, the "
        "published value and the difference, at the last stage. A row is *reproduced* if no percentage, at any stage, "
        "is further below its published value than the row's tolerance. Every stage and figure of each row, its "
        f"seconds, bytes, device, commit and command are in [{results}/{ROWS_PAGE}]({results}/{ROWS_PAGE}), and on the "
        "HTML page that `supsup report` writes.",
        f"**{headline(summary)}**",
        _contents(summary),
    ]
    if summary.damaged:
        parts.append("Files that could not be used:\n\n" + "\n".join(f"- {_text(line)}" for line in summary.damaged))
    parts += [_entry(entry, results) for entry in summary.entries]
    return "\n\n".join(parts) + "\n"


def rows_in_full(summary: Summary) -> str:
    """The whole of ROWS.md: all figures of an entry at all stages, then what each row cost and where it comes from."""
    parts = [
        "# Every row in full",
        "Made by `supsup report --markdown`; verdicts and remarks are in [REPRODUCTION.md](../REPRODUCTION.md). "
        "Cells give ours, the mean over seeds ± the sample deviation, then the published value and the difference. "
        "Rows of one training each give the time of all of it.",
    ]
    for entry in summary.entries:
        name = entry.entry.name
        parts += [f"## {name}", f"[{_text(entry.entry.title)}](../REPRODUCTION.md#{name})"]
        parts += [_table(grid) for grid in figure_grids(entry)]
        if entry.has_results:
            parts.append(_table(origin_grid(entry)))
    return "\n\n".join(parts) + "\n"


def plots(summary: Summary) -> dict[str, str]:
    """Plots as files of their own, by their path in the folder of results; only of entries that have some."""
    return {
        f"{entry.entry.name}/plot-{number}.svg": chart.file
        for entry in summary.entries
        if entry.has_results
        for number, chart in enumerate(entry_charts(entry), 1)
    }


def readme_block(
    summary: Summary, main_rows: Sequence[tuple[str, str, str]] = MAIN_ROWS, results: str = "results"
) -> str:
    """A picture of the first main row that was run, and the main rows in a table with their last published figures."""
    entries = {entry.entry.name: entry for entry in summary.entries}
    run = [entries[name] for name, _, _ in main_rows if entries[name].has_results]
    if not run:
        return "Not run yet: `supsup reproduce all --scale full`, then `supsup report --markdown`."
    picture = next(iter(plots(Summary((run[0],)))))
    lines = [f"![{_text(run[0].entry.title)}]({results}/{picture})", ""]
    lines += ["| experiment | ours, % | paper, % | verdict |", "|---|---|---|---|"]
    for name, row_name, words in main_rows:
        row = next(row for row in entries[name].rows if row.row.name == row_name)
        ours, published = _closing(entries[name], row)
        lines.append(f"| [{_text(words)}](REPRODUCTION.md#{name}) | {ours} | {published} | {row.status} |")
    lines += ["", f"All rows are in [REPRODUCTION.md](REPRODUCTION.md): {headline(summary)}"]
    return "\n".join(lines)


def with_block(text: str, block: str, marks: tuple[str, str] = README_MARKS) -> str:
    """A page with what stands between the marks made anew."""
    start, end = marks
    return re.sub(f"{re.escape(start)}.*?{re.escape(end)}", lambda _: f"{start}\n{block}\n{end}", text, flags=re.DOTALL)


def _contents(summary: Summary) -> str:
    """Every entry with the number of its rows that have each verdict."""
    shown = [status for status in STATUSES if summary.counts[status]]
    lines = [f"| experiment | what | {' | '.join(shown)} |", "|" + "---|" * (2 + len(shown))]
    for entry in summary.entries:
        statuses = [row.status for row in entry.rows]
        counts = [str(statuses.count(status) or "") for status in shown]
        name = entry.entry.name
        lines.append(f"| [{name}](#{name}) | {_text(entry.entry.title)} | {' | '.join(counts)} |")
    return "\n".join(lines)


def _entry(summary: EntrySummary, results: str) -> str:
    entry = summary.entry
    parts = [
        f"## {entry.name}",
        f"**{_text(entry.title)}.** {_text(entry.where)} · `supsup reproduce {entry.name} --scale full` · "
        f"[every row in full]({results}/{ROWS_PAGE}#{entry.name})",
    ]
    if entry.note:
        parts.append(_text(entry.note))
    first, *others = [f"{results}/{path}" for path in plots(Summary((summary,)))] or [""]
    if first:
        parts.append(f"![{_text(entry.title)}]({first})")
    if others:
        parts.append("More plots: " + ", ".join(f"[{number}]({path})" for number, path in enumerate(others, 2)))
    parts.append(_table(closing_grid(summary), verdict_last=True))
    said = [f"- {_text(label)}: {_text(text)}" for label, text in remarks(summary)]
    parts += ["\n".join(said)] if said else []
    return "\n\n".join(parts)


def _table(grid: Grid, verdict_last: bool = False) -> str:
    caption, headings, verdict = _text(grid.caption), list(map(_text, grid.headings)), ["verdict"] * grid.statuses
    headings = [caption, *headings, *verdict] if verdict_last else [caption, *verdict, *headings]
    lines = [f"| {' | '.join(headings)} |", "|" + "---|" * len(headings)]
    return "\n".join([*lines, *(_row(row, grid.statuses, verdict_last) for row in grid.rows)])


def _row(row: GridRow, statuses: bool, verdict_last: bool) -> str:
    label = _text(row.label) + (" *(ours, not in the paper)*" if row.beyond else "")
    verdict = [f"**{row.status}**" if row.status == MISSED else row.status] if statuses else []
    cells = list(map(_cell, row.cells))
    return f"| {' | '.join([label, *cells, *verdict] if verdict_last else [label, *verdict, *cells])} |"


def _cell(cell: Cell) -> str:
    words = [_text(cell.text)]
    if cell.published:
        words.append(f"<br>{_text(cell.published)}" + (f" ({cell.difference})" if cell.difference else ""))
    return "".join(words)


def _closing(entry: EntrySummary, row: RowSummary) -> tuple[str, str]:
    """Ours and the published value of the first percentage, at the row's last position."""
    figure = next(name for name in entry.figures if "%" in name)
    position = closing_position(entry, row, figure)
    ours, published = row.figures.get(figure, {}).get(position), row.row.published.get(figure, {}).get(position)
    shown = "–"
    if ours is not None:
        shown = f"**{ours.mean:.2f}**" + ("" if ours.deviation is None else f" ± {ours.deviation:.2f}")
    return shown, "–" if published is None else f"{published:.2f}"


def _text(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
