"""The README and the pages agree with the files in results/, links work, the code runs, and texts are short."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from supsup_paper.catalogue.entries import ENTRIES
from supsup_paper.report import markdown
from supsup_paper.report.summary import summarise

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), ROOT / "results" / markdown.ROWS_PAGE]


@pytest.mark.parametrize("page", ["README.md", "docs/speed.md"])
def test_the_tables_are_those_of_the_results(page: str) -> None:
    """`python -m benchmarks speed_tables` puts them right."""
    with_table = runpy.run_path(str(ROOT / "benchmarks" / "pages" / "speed_tables.py"))["with_table"]
    text = (ROOT / page).read_text()
    assert with_table(page, text) == text


@pytest.mark.parametrize("page", ["README.md", "docs/task-inference.md"])
def test_the_alternative_is_that_of_the_results(page: str) -> None:
    """`python -m benchmarks alternative_table` puts them right."""
    with_table = runpy.run_path(str(ROOT / "benchmarks" / "pages" / "alternative_table.py"))["with_table"]
    text = (ROOT / page).read_text()
    assert with_table(page, text) == text


def test_the_reproduction_is_that_of_the_results() -> None:
    """`supsup report --markdown` puts README.md, REPRODUCTION.md, ROWS.md and their pictures right."""
    summary = summarise(ENTRIES, ROOT / "results")
    assert markdown.reproduction(summary) == (ROOT / "REPRODUCTION.md").read_text()
    assert markdown.rows_in_full(summary) == (ROOT / "results" / markdown.ROWS_PAGE).read_text()
    assert markdown.with_block(README, markdown.readme_block(summary)) == README
    assert all(mark in README for mark in markdown.README_MARKS)
    for path, plot in markdown.plots(summary).items():
        assert (ROOT / "results" / path).read_text() == plot.svg, path


def test_the_alphabets_are_those_of_the_results() -> None:
    record = json.loads((ROOT / "results" / "omniglot-10-alphabets.json").read_text())
    page = (ROOT / "docs" / "command-line.md").read_text()
    text = " ".join(page.partition("<!-- omniglot: ")[2].partition("<!-- /omniglot -->")[0].split())
    letters = sum(task["classes"] for task in record["learned"].values())
    size = sum(task["bytes"] for task in record["learned"].values()) / len(record["learned"])
    assert f"Ten alphabets with {letters} letters take {record['seconds'] / 60:.1f} minutes" in text
    assert f"{size / 1000:.0f} kB each" in text
    default, tried, shot = (record[method] for method in ("auto", "exhaustive", "one-shot"))
    figures = [default["task given, %"], default["task found, %"], tried["task found, %"], shot["task found, %"]]
    assert [float(figure) for figure in re.findall(r"([\d.]+) %", text)] == figures


def test_how_often_tasks_are_found_is_what_was_measured() -> None:
    """Each row of the table has its file; those of CIFAR-100 are means over seeds."""
    page = (ROOT / "docs" / "task-inference.md").read_text()
    lines = page.partition("## How often it succeeds")[2].partition("###")[0].splitlines()
    rows = {line.split(" | ")[0]: line for line in lines}

    def found(row: str) -> list[float]:
        return [float(number) for number in re.findall(r"([\d.]+) %", rows[f"| {row}"])]

    def measured(name: str) -> Any:
        return json.loads((ROOT / "results" / f"{name}.json").read_text())["figures"]

    many = measured("permutations-2-cores")
    assert many["tasks"] == 1000
    assert found("1,000 permutations, earlier version") == [many["ways"]["auto"]["task right %"]]
    alphabets = json.loads((ROOT / "results" / "omniglot-10-alphabets.json").read_text())
    assert found("10 alphabets of Omniglot") == [alphabets["auto"]["task found, %"]]
    pairs = measured("finding")["split digits"]["ways"]["auto"]
    assert found("MNIST in 5 tasks of 2 digits") == [round(pairs["task right"], 1)]
    for row, name in (
        ("50 alphabets of Omniglot, LeNet", "finding-alphabets"),
        ("36 rotations of MNIST", "finding-rotations"),
    ):
        usual = measured(name)["ways"]["auto"]
        assert found(row) == [round(usual["task right"], 1), round(usual["task right from 4"], 1)]
    for row, name, positions in (
        ("CIFAR-100 in 20 tasks of 5 classes, from scratch", "scratch", ("1", "4", "16")),
        ("the same, pretrained", "pretrained", ("1", "4")),
    ):
        seeds = [measured(f"earlier/cifar100-unnamed/{name}-seed{seed}")["task right %"] for seed in range(3)]
        means = [round(sum(seed[position] for seed in seeds) / 3, 1) for position in positions]
        assert found(row)[: len(means)] == means


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    """A file that moved, or a heading that was renamed, leaves no link behind."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if not target.startswith("https://"):
            name, _, heading = target.partition("#")
            path = page.parent / name if name else page
            assert path.exists(), target
            assert not heading or heading in anchors(path), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_page_names_exists(page: Path) -> None:
    """Files by their path, and the benchmarks that make its figures; a changelog speaks of what was."""
    if page.name == "CHANGELOG.md":
        pytest.skip("it names what was")
    text = page.read_text()
    runnable = runpy.run_path(str(ROOT / "benchmarks" / "__main__.py"))["benchmarks"]()
    assert {name for name in re.findall(r"python\s-m\sbenchmarks\s(\w+)", text) if name not in runnable} == set()
    paths = re.findall(r"`((?:src|tests|benchmarks|docs|\.ci|supsup|supsup_paper)/[\w/.-]+\.\w+)`", text)
    missing = [path for path in paths if not ((ROOT / path).exists() or (ROOT / "src" / path).exists())]
    assert missing == []


def anchors(page: Path) -> list[str]:
    """The names that headings of a page have in links."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_texts_are_short() -> None:
    """README under 600 words, documentation under 20,000, no sentence over 35; `python .ci/words.py` lists problems."""
    assert runpy.run_path(str(ROOT / ".ci" / "words.py"))["problems"]() == []


def test_a_long_sentence_is_noticed() -> None:
    """Sentences end at full stops and between list items; tables, code and headings are none."""
    long_sentences = runpy.run_path(str(ROOT / ".ci" / "words.py"))["long_sentences"]
    words = " ".join(["word"] * 35)
    assert long_sentences(f"{words}. {words}\n\n{words}\n- {words}") == []
    assert long_sentences(f"# {words} more\n| {words} more |\n```\n{words} more\n```\n") == []
    assert len(long_sentences(f"| a |\n|---|\n\n{words} more")) == 1


def test_the_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    exec(compile("\n".join(blocks), "README.md", "exec"), {"__name__": "readme"})
