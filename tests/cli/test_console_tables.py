"""On 80 columns no table cuts a word or a name, whatever it holds."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.markup import escape
from rich.table import Table
from typer.testing import CliRunner

from supsup import SupSup, nets
from supsup.cli import app
from supsup.cli.console import print_table
from supsup.data.task import TaskInfo
from supsup.file.task_record import LearnedTask
from supsup.model.state import state_of
from supsup_paper.catalogue.entries import ENTRIES
from supsup_paper.commands import bench
from supsup_paper.report.summary import summarise
from supsup_paper.report.terminal import comparison_table

ROOT = Path(__file__).parents[2]
WORD = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="\\"), min_size=1, max_size=70)
CELL = st.lists(WORD, max_size=4).map(" ".join)
LONG = (
    "birds of the northern seas and of the long coasts between them",
    "a_name_without_any_blank_in_it_such_as_scripts_make_of_paths_and_dates_2026-11-16_and_more",
    "short",
)


def check(printed: str, texts: list[str]) -> None:
    """Every word is there, and only a name that is longer than the terminal goes beyond its edge."""
    for text in texts:
        for word in text.split():
            assert word in printed, (word, printed)
    for line in printed.splitlines():
        assert len(line) <= 80 or len(line.split()) == 1, line


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(CELL, min_size=4, max_size=4), min_size=1, max_size=5), st.booleans())
def test_every_word_of_a_table_is_printed_whole(rows: list[list[str]], header: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        table = Table("name", "what it is", "figures", show_header=header)
        table.add_column("remarks", no_wrap=True)
        for row in rows:
            table.add_row(*map(escape, row))
        with CliRunner().isolation() as (out, *_):
            print_table(table)
            printed = out.getvalue().decode()
    check(printed, [" ".join(cell.split()) for row in rows for cell in row])


@pytest.fixture
def long_names(tmp_path: Path) -> Path:
    model = SupSup(nets.FullyConnected((5, 4)), device="cpu")
    info = TaskInfo(names=("razorbill", "black guillemot", "the-albatross-of-some-kind"))
    packed = torch.zeros(3, len(LONG), dtype=torch.uint8)
    state_of(model).add([LearnedTask(name, 3, info=info) for name in LONG], packed, {}, (5,))
    model.notes = {"where-all-of-it-comes-from": "somewhere"}
    model.save(tmp_path / "a-model-whose-name-is-longer-than-any-of-its-columns.supsup")
    return tmp_path / "a-model-whose-name-is-longer-than-any-of-its-columns.supsup"


def test_tasks_and_info(long_names: Path) -> None:
    for command, words in (("tasks", [*LONG, "black guillemot", "the-albatross-of-some-kind"]), ("info", ["checksum"])):
        printed = CliRunner().invoke(app, [command, str(long_names)], env={"COLUMNS": "80"}).stdout
        check(printed, [*words, long_names.name])
        assert "…" not in printed


def test_measurements(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`supsup bench infer` has six columns, more than have room."""
    monkeypatch.setenv("COLUMNS", "80")
    names = [f"{how}, {layers}, {letter}" for how in ("exact", "few coordinates") for layers, letter in ("aH", "bG")]
    rows = [{"setting": name, "floor of a lone image ms": 123456.0 + i} for i, name in enumerate(names)]
    bench._show("task inference", rows, None, {}, torch.device("cpu"))
    check(capsys.readouterr().out, [*names, *(f"{123456 + i:,}" for i in range(len(names)))])


def test_the_paper_s_tables(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    found = summarise(ENTRIES, ROOT / "results")
    for entry in found.entries:
        print_table(comparison_table(entry, "full"))
        check(capsys.readouterr().out, [entry.entry.title, *(row.row.label for row in entry.rows)])
