"""The table that `supsup reproduce` prints."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from supsup_paper.catalogue.entries import ENTRIES
from supsup_paper.catalogue.rows import Entry
from supsup_paper.report.summary import summarise
from supsup_paper.report.terminal import comparison_table


@pytest.fixture
def printed(catalogue: dict[str, Entry], results: Path) -> str:
    """The table of an entry with rows of three seeds, of one, and of none."""
    (entry,) = summarise({"permuted": catalogue["permuted"]}, results).entries
    console = Console(file=StringIO(), width=150)
    console.print(comparison_table(entry, "full"))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def line_of(printed: str, label: str) -> list[str]:
    (line,) = [line for line in printed.splitlines() if label in line]
    return line.split()


def test_ours_stands_beside_the_published_figure(printed: str) -> None:
    """93.6, 93.7 and 93.8 make 93.70, published 93.65."""
    assert line_of(printed, "SupSup GNu H")[-5:] == ["10", "93.70", "93.65", "+0.05", "99.90"]
    assert "1–3 seeds, accuracy %" in printed


def test_what_was_not_run_or_not_published_says_so(printed: str) -> None:
    assert "not run" in printed[printed.index("BatchE") :].splitlines()[1]
    assert "reproduced" in printed[printed.index("SupSup GNu H") :].splitlines()[1]
    assert line_of(printed, "SupSup, first")[-5:] == ["10", "93.70", "–", "–", "–"]


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.name)
def test_nothing_is_cut_off_at_80_columns(entry: Entry) -> None:
    found = summarise({entry.name: entry}, Path(__file__).parents[3] / "results").entries[0]
    console = Console(file=StringIO(), width=80)
    console.print(comparison_table(found, "full"))
    words = console.file.getvalue().split()  # type: ignore[attr-defined]
    headings = list(dict.fromkeys(name for row in found.rows for name in row.figures))[1:]
    assert {*entry.title.split(), *" ".join(headings).split()} <= set(words)
