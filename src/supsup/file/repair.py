"""Damage to a model file: find it, and rescue every task whose bits are still as they were written."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from supsup.errors import Damaged, SupSupError
from supsup.file.format import (
    COLUMNS,
    Header,
    NewerFormat,
    PackedTask,
    TaskRecord,
    create,
    has_our_tables,
    read_header,
    read_reference,
)
from supsup.file.modelfile import AnyPath, ModelFile, existing, write_new
from supsup.file.reference import Reference
from supsup.file.sqlite import PAGE, connect

_UNREADABLE = (sqlite3.Error, SupSupError, UnicodeDecodeError)
_RECORDS_PER_PAGE = 8  # at most, for tasks that are worth the name


@dataclass
class Findings:
    """The state of a whole file, task by task."""

    header: Header | None = None
    intact: list[PackedTask] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)  # what is wrong, by task
    structure: list[str] = field(default_factory=list)  # what is wrong with the file itself

    @property
    def clean(self) -> bool:
        """Whether every task is as it was written, and the file sound."""
        return not self.damaged and not self.structure

    def judge(self, record: TaskRecord, header: Header, reference: Reference | None) -> None:
        """Add a task to the intact or to the damaged ones."""
        try:
            self.intact.append(record.decoded(header, reference))
        except SupSupError as error:
            self.damaged[record.name] = str(error)


def verify(path: AnyPath) -> Findings:
    """Look at every byte that matters; an error only if this is no model file at all."""
    findings = Findings()
    try:
        with ModelFile(path) as file:
            findings.header = file.header
            findings.structure += file.structure_problems()
            for record in file.records():
                findings.judge(record, file.header, file.reference)
            if file.header.format > 1:
                file.state()
    except Damaged as error:
        findings.structure.append(str(error))
    return findings


def repair(path: AnyPath, out: AnyPath) -> Findings:
    """Write every intact task of a file to a new one; the damaged file is left as it is."""
    source = existing(path)
    if Path(out).exists():
        raise SupSupError(f"{out} exists; give the name of a new file for the rescued tasks")
    try:
        findings = verify(source)
    except NewerFormat:
        raise
    except SupSupError as error:
        findings = Findings(structure=[str(error)])
    if findings.header is not None and findings.header.format > 1:
        state = (
            "damaged; restore the file from a backup" if findings.structure else "intact; there is nothing to repair"
        )
        raise SupSupError(f"{source}: the tasks of a {findings.header.kind} model lie in one memory, and it is {state}")
    if findings.structure:
        findings = _salvage(source, findings.structure)
    if findings.header is None:
        raise Damaged(f"{source}: nothing can be rescued, both copies of the header are gone; restore it from a backup")
    write_new(out, findings.header, findings.intact)
    return findings


def _salvage(source: Path, problems: list[str]) -> Findings:
    """Read around the damage in a copy: as it is, and with a new first page if that finds no header."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copyfile(source, copy)
        findings = _read_around(copy)
        if findings.header is None:
            _replace_first_page(copy)
            findings = _read_around(copy)
    findings.structure += problems
    return findings


def _read_around(path: Path) -> Findings:
    findings = Findings()
    with suppress(*_UNREADABLE), closing(connect(path)) as connection:
        connection.execute("PRAGMA writable_schema=ON")  # lets SQLite open a file that was cut off
        if not has_our_tables(connection):
            return findings
        for table in ("model", "spare"):
            with suppress(*_UNREADABLE):
                findings.header = findings.header or read_header(connection, table)[0]
        if findings.header is not None:
            reference = None
            with suppress(*_UNREADABLE):
                reference, _ = read_reference(connection, findings.header)
            pages = path.stat().st_size // PAGE
            for position in _positions(connection, pages * _RECORDS_PER_PAGE):
                _read_task(connection, position, findings.header, reference, findings)
    return findings


def _positions(connection: sqlite3.Connection, most: int) -> Iterable[int]:
    """Where tasks may be: up to the first damaged page, from the last one on, and everything between."""

    def scan(order: str) -> tuple[list[int], bool]:
        positions: list[int] = []
        try:
            for (position,) in connection.execute(f"SELECT position FROM tasks ORDER BY position {order}"):
                if positions and (position <= positions[-1]) == (order == "ASC"):
                    return positions, False
                positions.append(position)
        except _UNREADABLE:
            return positions, False
        return positions, True

    forward, whole = scan("ASC")
    if whole:
        return forward
    backward, _ = scan("DESC")
    start, stop = max(forward, default=-1) + 1, min(backward, default=most)
    return [*forward, *range(start, min(stop, start + most)), *(p for p in reversed(backward) if p >= start)]


def _read_task(
    connection: sqlite3.Connection, position: int, header: Header, reference: Reference | None, findings: Findings
) -> None:
    try:
        values = connection.execute(f"SELECT {COLUMNS} FROM tasks WHERE position = ?", (position,)).fetchone()
        if values is not None:
            findings.judge(TaskRecord.of(values), header, reference)
    except _UNREADABLE as error:
        with suppress(*_UNREADABLE):
            (name,) = connection.execute("SELECT name FROM tasks WHERE position = ?", (position,)).fetchone()
            findings.damaged[str(name)] = str(error)


def _replace_first_page(path: Path) -> None:
    """The first page of a new model file: the tables begin on the same pages in every one."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"PRAGMA page_size={PAGE}")
        create(connection)
        page = bytearray(connection.serialize()[:PAGE])
    page[28:32] = (path.stat().st_size // PAGE).to_bytes(4, "big")
    with path.open("r+b") as file:
        file.write(page)
