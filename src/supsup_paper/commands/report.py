"""`supsup report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.table import Table
from typer import Option

from supsup.cli.console import escape_for_terminal, interruptible, print_table, say
from supsup.runtime.errors import SupSupError
from supsup_paper.catalogue.entries import ENTRIES
from supsup_paper.records import write_text
from supsup_paper.report.grids import headline
from supsup_paper.report.html import page
from supsup_paper.report.markdown import ROWS_PAGE, plots, readme_block, reproduction, rows_in_full, with_block
from supsup_paper.report.summary import Summary, summarise
from supsup_paper.report.verdicts import STATUSES


def write_report(
    results: Annotated[Path, Option(help="Folder that `supsup reproduce` wrote.")] = Path("results"),
    out: Annotated[Path, Option(help="The HTML page to write.")] = Path("report.html"),
    markdown: Annotated[
        bool,
        Option(
            "--markdown",
            help="Also write REPRODUCTION.md beside the folder of results, ROWS.md and the plots into that folder, "
            "and the table of README.md beside it.",
        ),
    ] = False,
) -> None:
    """Compare the results with the paper's numbers.

    Writes one self-contained HTML page and, if asked, Markdown pages.

    Each table and figure of the paper gets a table (ours ± deviation over seeds, published, difference, verdict) and a
    plot. Rows without results are marked "not run"; files that cannot be read are listed and do not stop the others.
    The same results give the same bytes.
    """
    if not results.is_dir():
        raise SupSupError(f"{results} does not exist; run `supsup reproduce` first, or give its folder with --results")
    with interruptible("the pages may come from different runs; start again to write all of them"):
        summary = summarise(ENTRIES, results)
        written = [out]
        write_text(out, page(summary))
        if markdown:
            written += write_markdown(summary, results)
    print_table(_closing_table(summary))
    Console().print(headline(summary), highlight=False)
    for line in summary.damaged:
        say(f"[bold red]not used[/] {escape_for_terminal(results)}/{escape_for_terminal(line, 2000)}")
    say(f"written: {', '.join(map(escape_for_terminal, written))}")


def write_markdown(summary: Summary, results: Path) -> list[Path]:
    """REPRODUCTION.md, ROWS.md, the plots they show and the block of README.md; the paths of the pages."""
    for name, plot in plots(summary).items():
        write_text(results / name, plot.svg)
    beside = results.resolve().parent
    pages = {
        beside / "REPRODUCTION.md": reproduction(summary, results.name),
        results / ROWS_PAGE: rows_in_full(summary),
    }
    readme = beside / "README.md"
    if readme.exists():
        pages[readme] = with_block(readme.read_text(encoding="utf-8"), readme_block(summary))
    for path, text in pages.items():
        write_text(path, text)
    return list(pages)


def _closing_table(summary: Summary) -> Table:
    """How many rows of each entry have which verdict."""
    shown = [status for status in STATUSES if summary.counts[status]]
    table = Table(title="the paper's tables and figures")
    table.add_column("rows", no_wrap=True)
    for status in shown:
        table.add_column(status, justify="right")
    for entry in summary.entries:
        table.add_row(entry.entry.name, *(str(entry.counts[status] or "") for status in shown))
    return table
