"""The Markdown pages say what the results say, in tables that hold together."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from supsup_paper.catalogue.entries import ENTRIES
from supsup_paper.catalogue.rows import Entry
from supsup_paper.records import write_text
from supsup_paper.report.grids import figure_grids, origin_grid, remarks
from supsup_paper.report.markdown import (
    MAIN_ROWS,
    README_MARKS,
    plots,
    readme_block,
    reproduction,
    rows_in_full,
    with_block,
)
from supsup_paper.report.summary import summarise


def tables(text: str) -> list[str]:
    return re.findall(r"(?:^\|.*\|$\n?)+", text, flags=re.MULTILINE)


def test_every_table_has_as_many_cells_in_each_line(catalogue: dict[str, Entry], results: Path) -> None:
    summary = summarise(catalogue, results)
    short, full = reproduction(summary), rows_in_full(summary)
    assert len(tables(short)) == 1 + len(catalogue)
    assert len(tables(full)) >= 2 * len(catalogue)
    for table in (*tables(short), *tables(full)):
        assert len({line.count("|") for line in table.splitlines()}) == 1
    assert "| SupSup GNu H, s=100 | 93.70 ± 0.10 | 93.62 | +0.08 | reproduced |" in short
    assert "93.70 ± 0.10<br>93.65 (+0.05)" in full
    assert "&lt;anew>" in short
    assert all(f"\n## {name}\n" in page for name in catalogue for page in (short, full))


def test_the_contents_count_the_verdicts_of_each_entry(catalogue: dict[str, Entry], results: Path) -> None:
    contents = tables(reproduction(summarise(catalogue, results)))[0]
    assert "| experiment | what | reproduced | better | worse | measured | not run | quick run |" in contents
    assert "| [permuted](#permuted) | PermutedMNIST, LeNet 300-100 | 1 |  | 1 | 1 | 2 |  |" in contents


def test_the_two_pages_together_have_everything_the_html_page_has(catalogue: dict[str, Entry], results: Path) -> None:
    """Shorter tables must not lose a figure, a remark or where a row comes from."""
    summary = summarise(catalogue, results)
    text = reproduction(summary) + rows_in_full(summary)
    for entry in summary.entries:
        grids = [*figure_grids(entry), *([origin_grid(entry)] if entry.has_results else [])]
        cells = {cell.text for grid in grids for row in grid.rows for cell in row.cells}
        assert all(cell in text for cell in cells)
        assert all(said.replace("<", "&lt;") in text for _, said in remarks(entry))


def test_a_row_known_elsewhere_on_the_axis_says_where(catalogue: dict[str, Entry], results: Path) -> None:
    entry = catalogue["permuted"]
    rows = (*entry.rows[:3], replace(entry.rows[3], published={"accuracy %": {"10": 88.85}}))
    text = reproduction(summarise({"permuted": replace(entry, rows=rows)}, results))
    assert "| BatchE GG &lt;rank one> | – (tasks learned: 10) | 88.85 | – | not run |" in text


def test_the_pictures_of_the_page_are_written(catalogue: dict[str, Entry], results: Path) -> None:
    """One is shown for each entry that was run, the others are linked."""
    summary = summarise(catalogue, results)
    text = reproduction(summary)
    shown = re.findall(r"!\[.*?\]\(results/(.*?)\)", text)
    assert shown == [path for path in plots(summary) if path.endswith("plot-1.svg")]
    assert re.findall(r"\(results/(.*?\.svg)\)", text) == list(plots(summary))


def test_the_same_results_give_the_same_page(catalogue: dict[str, Entry], results: Path) -> None:
    assert reproduction(summarise(catalogue, results)) == reproduction(summarise(catalogue, results))


def test_the_readme_has_the_main_rows(catalogue: dict[str, Entry], results: Path, tmp_path: Path) -> None:
    block = readme_block(summarise(catalogue, results), [("permuted", "h", "with H"), ("permuted", "g", "with G")])
    assert "| [with H](REPRODUCTION.md#permuted) | **93.70** ± 0.10 | 93.62 | reproduced |" in block
    assert "| [with G](REPRODUCTION.md#permuted) | – | 93.63 | not run |" in block
    assert readme_block(summarise(catalogue, tmp_path / "none"), [("permuted", "h", "with H")]).startswith(
        "Not run yet"
    )


def test_the_main_rows_are_in_the_catalogue() -> None:
    assert len(MAIN_ROWS) <= 7  # a reader of the README sees them at a glance
    for entry, row, _ in MAIN_ROWS:
        assert row in [known.name for known in ENTRIES[entry].rows]


def test_only_the_marked_part_changes() -> None:
    start, end = README_MARKS
    assert with_block(f"a\n{start}\nold\n{end}\nb", "new") == f"a\n{start}\nnew\n{end}\nb"
    assert with_block("a", "new") == "a"


def test_a_page_is_written_whole(tmp_path: Path) -> None:
    write_text(tmp_path / "new" / "page.md", "ours ± …\n")
    assert (tmp_path / "new" / "page.md").read_text(encoding="utf-8") == "ours ± …\n"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["page.md"]
