"""The Markdown pages, from the same summary as the HTML page.

REPRODUCTION.md  contents, then a plot, a short table and the remarks for each entry
ROWS.md          in the folder of results: every figure of every row, with cost and origin
README.md        a picture and a few main rows, between two marks
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from supsup_paper.report.entry_plots import EntryPlot, entry_plots
from supsup_paper.report.grids import (
    Cell,
    Grid,
    GridRow,
    closing_grid,
    closing_position,
    figure_grids,
    headline,
    origin_grid,
    remarks,
    tolerance_grid,
    verdict_counts,
)
from supsup_paper.report.summary import EntrySummary, RowSummary, Summary
from supsup_paper.report.verdicts import RULES, STATUSES, WORSE

ROWS_PAGE = "ROWS.md"
README_MARKS = ("<!-- reproduction: made by supsup report from results/ -->", "<!-- /reproduction -->")
MAIN_ROWS = (
    ("permuted-lenet", "supsup-H-s100", "250 permutations of MNIST, task inferred"),
    ("permuted-2500", "supsup-H", "2,500 permutations, task inferred"),
    ("permuted-2500", "nns-H", "2,500 permutations, unannounced, our rule"),
    ("rotated", "supsup-binary-H", "36 rotations by 10°, task inferred"),
    ("cifar100-gg", "supsup-s32", "SplitCIFAR100, task given"),
    ("hopfield", "paper", "HopSupSup, a memory of constant size"),
)


def reproduction(summary: Summary, results: str = "results") -> str:
    """The whole of REPRODUCTION.md; `results` is where the files lie, seen from it."""
    parts = [
        "# Every table and figure of the paper",
        f"**{headline(summary)}**",
        _contents(summary),
        "Tables show our mean over seeds ± the sample deviation, the published value and the difference, at the last "
        "stage.",
        _rules(),
        f"[{results}/{ROWS_PAGE}]({results}/{ROWS_PAGE}) has the tolerances and their sources, and every stage and "
        "figure of each row with its seconds, bytes, device, commit and command. The HTML page that `supsup report` "
        "writes has the same. [docs/released.md](docs/released.md) lists every place where the protocol here differs "
        "from the paper's text or the authors' scripts. `supsup report --markdown` makes this page from the files "
        f"in [{results}/]({results}), which `supsup reproduce` writes; a test fails if they disagree.",
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
        "Cells show our mean over seeds ± the sample deviation, then the published value and the difference. "
        "Rows that share a training each show its whole time.",
        "## Tolerances",
        _rules(),
        _table(tolerance_grid()),
    ]
    for entry in summary.entries:
        name = entry.entry.name
        parts += [f"## {name}", f"[{_text(entry.entry.title)}](../REPRODUCTION.md#{name})"]
        parts += [_table(grid, tolerances=grid.statuses) for grid in figure_grids(entry)]
        if entry.has_results:
            parts.append(_table(origin_grid(entry)))
    return "\n\n".join(parts) + "\n"


def plots(summary: Summary) -> dict[str, EntryPlot]:
    """The plots of entries that have results, by their path in the folder of results."""
    return {
        f"{entry.entry.name}/plot-{number}.svg": plot
        for entry in summary.entries
        if entry.has_results
        for number, plot in enumerate(entry_plots(entry), 1)
    }


def readme_block(summary: Summary, main_rows: Sequence[tuple[str, str, str]] = MAIN_ROWS) -> str:
    """The main rows in a table, with their last published figures, and the number of rows with each verdict."""
    entries = {entry.entry.name: entry for entry in summary.entries}
    if not any(entries[name].has_results for name, _, _ in main_rows):
        return "Not run yet: `supsup reproduce all --scale full`, then `supsup report --markdown`."
    lines = ["| experiment | ours, % | paper, % | verdict |", "|---|---|---|---|"]
    for name, row_name, words in main_rows:
        row = next(row for row in entries[name].rows if row.row.name == row_name)
        ours, published = _closing(entries[name], row)
        lines.append(f"| [{_text(words)}](REPRODUCTION.md#{name}) | {ours} | {published} | {row.status} |")
    lines += [
        "",
        f"*Measured*: our own method, or no published number. [All rows](REPRODUCTION.md): {verdict_counts(summary)}",
    ]
    return "\n".join(lines)


def with_block(text: str, block: str, marks: tuple[str, str] = README_MARKS) -> str:
    """A page with the text between the marks replaced."""
    start, end = marks
    return re.sub(f"{re.escape(start)}.*?{re.escape(end)}", lambda _: f"{start}\n{block}\n{end}", text, flags=re.DOTALL)


def _rules() -> str:
    return "\n".join(f"- *{word}*: {text}" for word, text in RULES)


def _contents(summary: Summary) -> str:
    """Every entry with the number of its rows that have each verdict."""
    shown = [status for status in STATUSES if summary.counts[status]]
    headings = [*shown, *(["counted elsewhere"] if summary.repeats else [])]
    lines = [f"| experiment | what | {' | '.join(headings)} |", "|" + "---|" * (2 + len(headings))]
    for entry in summary.entries:
        numbers = [entry.counts[status] for status in shown] + ([entry.repeats] if summary.repeats else [])
        counts = [str(number or "") for number in numbers]
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


def _table(grid: Grid, verdict_last: bool = False, tolerances: bool = False) -> str:
    """A table; with the rows' tolerances beside their verdicts where they are asked for."""
    verdicts = ["verdict"] * grid.statuses + ["t"] * tolerances
    headings = _line(_text(grid.caption), list(map(_text, grid.headings)), verdicts, verdict_last)
    rows = []
    for row in grid.rows:
        label = _text(row.label) + (" *(ours, not in the paper)*" if row.beyond else "")
        verdicts = [_verdict(row)] * grid.statuses + [row.tolerance] * tolerances
        rows.append(_line(label, list(map(_cell, row.cells)), verdicts, verdict_last))
    return "\n".join([headings, "|" + "---|" * (headings.count(" | ") + 1), *rows])


def _line(label: str, cells: list[str], verdicts: list[str], verdict_last: bool) -> str:
    return f"| {' | '.join([label, *cells, *verdicts] if verdict_last else [label, *verdicts, *cells])} |"


def _verdict(row: GridRow) -> str:
    shown = f"**{row.status}**" if row.status == WORSE else row.status
    return f"{shown} (counted in {row.repeats.partition('/')[0]})" if row.repeats else shown


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
