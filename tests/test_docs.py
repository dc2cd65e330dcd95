"""The code on the pages for users runs as it stands."""

import re
import runpy
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    exec(compile("\n".join(blocks), str(page), "exec"), {"__name__": "page"})


def test_the_figures_on_hopfield_are_those_of_the_results() -> None:
    """`python benchmarks/hopfield_table.py` puts them right."""
    page = Path(__file__).parents[1] / "docs" / "hopfield.md"
    script = Path(__file__).parents[1] / "benchmarks" / "hopfield_table.py"
    assert runpy.run_path(str(script))["with_tables"](page.read_text()) == page.read_text()
