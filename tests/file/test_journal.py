"""A journal beside a model file: readers change nothing, writers put right what is their own, the rest is refused."""

import os
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch

import supsup
from supsup import Recipe, SupSup, SupSupError, nets
from supsup.file import journal
from supsup.file.journal import HeldFile
from supsup.file.modelfile import ModelFile
from supsup.file.repair import repair, verify

NAMES = [f"task-{number}" for number in range(4)]
SPILL = ("PRAGMA cache_size=2", "BEGIN IMMEDIATE")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A sound model file."""
    model = SupSup(nets.FullyConnected((60, 40, 8)), recipe=Recipe(steps=1), device="cpu")
    x = torch.randn(8, 60, generator=torch.Generator().manual_seed(0))
    for name in NAMES:
        model.learn((x, torch.arange(8) % 3), task=name)
    model.save(tmp_path / "model.supsup")
    return tmp_path / "model.supsup"


def break_off(path: Path, *lines: str) -> None:
    """Leave the file and its journal as they are in the middle of a transaction."""
    file = path.with_name(path.name + "-journal")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for line in (*SPILL, *lines):
            connection.execute(line)
        left = path.read_bytes(), file.read_bytes()
        connection.execute("ROLLBACK")
    path.write_bytes(left[0])
    file.write_bytes(left[1])


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


REST = "name || 'x', created, classes, kept, codec, checksum, extras, mask || zeroblob(5000)"
BROKEN: dict[str, list[str]] = {
    "masks": ["UPDATE tasks SET mask = zeroblob(20000)"],
    "removal": ["DELETE FROM tasks"],
    "additions": [f"INSERT INTO tasks SELECT position + {n}, {REST} FROM tasks WHERE position < 4" for n in (10, 20)],
}


@pytest.mark.parametrize("lines", BROKEN.values(), ids=BROKEN)
def test_readers_see_the_state_before_and_change_nothing(path: Path, tmp_path: Path, lines: list[str]) -> None:
    break_off(path, *lines)
    before = contents(tmp_path)
    for _ in range(2):
        assert supsup.load(path, device="cpu").tasks == NAMES
        assert verify(path).clean
    assert contents(tmp_path) == before


@pytest.mark.parametrize("lines", BROKEN.values(), ids=BROKEN)
def test_the_next_writer_puts_it_right(path: Path, tmp_path: Path, lines: list[str]) -> None:
    sound = path.read_bytes()
    break_off(path, *lines)
    with supsup.load(path, in_place=True, device="cpu") as model:
        assert model.tasks == NAMES
        assert path.read_bytes() == sound
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("begun", [b"", bytes(512)], ids=["empty", "without its header"])
@pytest.mark.parametrize("write", [False, True], ids=["reader", "writer"])
def test_a_journal_that_was_only_begun_goes_with_the_next_writer(
    path: Path, tmp_path: Path, begun: bytes, write: bool
) -> None:
    """A writer was killed before its first change was secured; SQLite leaves such a journal until the next commit."""
    sound = path.read_bytes()
    journal.path_of(path).write_bytes(begun)
    before = contents(tmp_path)
    with supsup.load(path, in_place=write, device="cpu") as model:
        assert model.tasks == NAMES
    assert contents(tmp_path) == ({path.name: sound} if write else before)


def test_saving_over_it_leaves_no_journal(path: Path, tmp_path: Path) -> None:
    break_off(path, *BROKEN["masks"])
    SupSup(nets.FullyConnected((5, 4)), seed=9, device="cpu").save(path)
    assert os.listdir(tmp_path) == [path.name]
    assert supsup.load(path, device="cpu").seed == 9


def planted(change: Callable[[bytearray], object]) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        break_off(path, *BROKEN["masks"])
        file = journal.path_of(path)
        content = bytearray(file.read_bytes())
        change(content)
        file.write_bytes(content)

    return make


def zero_pages(content: bytearray) -> None:
    content[16:20] = bytes(4)


def names_a_file(content: bytearray) -> None:
    name = b"/nowhere/at/all"
    content += struct.pack(">I", 2**20 + 1) + name + struct.pack(">II", len(name), sum(name)) + journal.MAGIC


def other_page_size(content: bytearray) -> None:
    content[24:28] = struct.pack(">I", 4096)


def wrong_checksum(content: bytearray) -> None:
    content[512 + 4 + 1024] ^= 1


REFUSED: dict[str, Callable[[Path], object]] = {
    "it would leave nothing": planted(zero_pages),
    "it names another file": planted(names_a_file),
    "pages of 4096 bytes": planted(other_page_size),
    "a checksum differs": planted(wrong_checksum),
    "it is not a journal": lambda path: journal.path_of(path).write_bytes(b"x" * 3000),
    "is not an ordinary file": lambda path: journal.path_of(path).mkdir(),
    "-wal lies beside it": lambda path: path.with_name(path.name + "-wal").touch(),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_the_file_does_not_vouch_for_is_refused(path: Path, tmp_path: Path, why: str) -> None:
    REFUSED[why](path)
    listed = sorted(os.listdir(tmp_path))
    before = path.read_bytes()
    for attempt in (
        lambda: supsup.load(path, device="cpu"),
        lambda: supsup.load(path, in_place=True, device="cpu"),
        lambda: verify(path),
    ):
        with pytest.raises(SupSupError, match=rf"model.supsup.*{why}"):
            attempt()
    with pytest.raises(SupSupError, match="not overwritten"):
        SupSup(nets.FullyConnected((5, 4)), device="cpu").save(path)
    assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == listed


def test_repair_reads_without_a_foreign_journal(path: Path, tmp_path: Path) -> None:
    journal.path_of(path).write_bytes(b"x" * 3000)
    assert len(repair(path, tmp_path / "out").intact) == 4
    assert supsup.load(tmp_path / "out", device="cpu").tasks == NAMES


def test_repair_of_a_damaged_file_plays_its_own_journal_back(path: Path, tmp_path: Path) -> None:
    break_off(path, *BROKEN["masks"])
    with path.open("r+b") as file:
        file.seek(1024)
        file.write(b"\xff" * 300)  # the header's own page
    assert [record.name for record in repair(path, tmp_path / "out").intact] == NAMES


def test_looking_at_a_file_keeps_the_locks_that_this_process_holds(path: Path) -> None:
    """POSIX: closing any descriptor of a file gives all locks on it up; a writer would lose its lock in a commit."""
    with ModelFile(path, write=True) as writer:
        writer._connection.execute("BEGIN EXCLUSIVE")
        for _ in range(3):
            HeldFile(path).close()
        child = os.popen(
            f"python3 -c \"import sqlite3; sqlite3.connect('{path}', timeout=0).execute('SELECT 1 FROM tasks')\" 2>&1"
        )
        assert "locked" in child.read()
        child.close()
        writer._connection.execute("ROLLBACK")


def test_a_writer_may_remove_its_journal_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads meanwhile saw it there, and must not take its absence for a fault."""
    path = tmp_path / "m.supsup"
    journal.path_of(path).write_bytes(b"")
    seen = Path.lstat

    def gone(self: Path) -> object:
        self.unlink()
        return seen(self)

    monkeypatch.setattr(Path, "lstat", gone)
    journal.check_beside(path)
    assert not journal.path_of(path).exists(), "it was removed in between"
