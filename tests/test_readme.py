"""The README says what the results say, and its code runs."""

import re
import runpy
from pathlib import Path

import pytest

from supsup.paper.entries import ENTRIES
from supsup.report import markdown
from supsup.report.summary import summarise

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("page", ["README.md", "docs/speed.md"])
def test_the_tables_are_those_of_the_results(page: str) -> None:
    """`python benchmarks/readme_table.py` puts them right."""
    with_table = runpy.run_path(str(ROOT / "benchmarks" / "readme_table.py"))["with_table"]
    text = (ROOT / page).read_text()
    assert with_table(page, text) == text


def test_the_reproduction_is_that_of_the_results() -> None:
    """`supsup report --markdown` puts README.md, REPRODUCTION.md and its pictures right."""
    summary = summarise(ENTRIES, ROOT / "results")
    assert markdown.reproduction(summary) == (ROOT / "REPRODUCTION.md").read_text()
    assert markdown.with_block(README, markdown.readme_block(summary)) == README
    assert all(mark in README for mark in markdown.README_MARKS)
    for path, plot in markdown.plots(summary).items():
        assert (ROOT / "results" / path).read_text() == plot, path


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_the_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    exec(compile("\n".join(blocks), "README.md", "exec"), {"__name__": "readme"})
