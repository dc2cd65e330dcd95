"""The Markdown pages say what the results say, in tables that hold together."""

from __future__ import annotations

import re
from pathlib import Path

from supsup.paper import Entry
from supsup.paper.entries import ENTRIES
from supsup.report.markdown import MAIN_ROWS, README_MARKS, anchor, plots, readme_block, reproduction, with_block, write
from supsup.report.summary import summarise


def test_every_table_has_as_many_cells_in_each_line(catalogue: dict[str, Entry], results: Path) -> None:
    text = reproduction(summarise(catalogue, results))
    tables = re.findall(r"(?:^\|.*\|$\n?)+", text, flags=re.MULTILINE)
    assert len(tables) >= 2 * len(catalogue)
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1
    assert "93.70 ± 0.10<br>93.65 (+0.05)" in text
    assert "&lt;anew>" in text
    assert all(f"## {entry.title}" in text for entry in catalogue.values())


def test_the_pictures_of_the_page_are_written(catalogue: dict[str, Entry], results: Path) -> None:
    summary = summarise(catalogue, results)
    shown = re.findall(r"!\[.*?\]\(results/(.*?)\)", reproduction(summary))
    assert shown == list(plots(summary))
    assert "permuted/plot-1.svg" in shown


def test_the_same_results_give_the_same_page(catalogue: dict[str, Entry], results: Path) -> None:
    assert reproduction(summarise(catalogue, results)) == reproduction(summarise(catalogue, results))


def test_the_readme_has_the_main_rows(catalogue: dict[str, Entry], results: Path, tmp_path: Path) -> None:
    block = readme_block(summarise(catalogue, results), [("permuted", "h"), ("permuted", "g")])
    assert "results/permuted/plot-1.svg" in block
    assert "| SupSup GNu H, s=100 | **93.70** ± 0.10 | 93.62 | reproduced |" in block
    assert "| SupSup GNu G, s=100 | – | 93.63 | not run |" in block
    assert readme_block(summarise(catalogue, tmp_path / "none"), [("permuted", "h")]).startswith("Not run yet")


def test_the_main_rows_are_in_the_catalogue() -> None:
    for entry, row in MAIN_ROWS:
        assert row in [known.name for known in ENTRIES[entry].rows]


def test_only_the_marked_part_changes() -> None:
    start, end = README_MARKS
    assert with_block(f"a\n{start}\nold\n{end}\nb", "new") == f"a\n{start}\nnew\n{end}\nb"
    assert with_block("a", "new") == "a"


def test_anchors_are_those_of_a_rendered_page() -> None:
    assert anchor("γ = 1/k, 36 rotations: by 10°") == "γ--1k-36-rotations-by-10"


def test_a_page_is_written_whole(tmp_path: Path) -> None:
    write(tmp_path / "new" / "page.md", "ours ± …\n")
    assert (tmp_path / "new" / "page.md").read_text(encoding="utf-8") == "ours ± …\n"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["page.md"]
