"""Damage to a model file: find it, and rescue every task whose bits are still as they were written."""

from __future__ import annotations

import operator
import os
import sqlite3
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from supsup.file import journal, limits, tables
from supsup.file.codec import Reference
from supsup.file.header import Header, build_architecture, build_header, explain_unknown_settings
from supsup.file.journal import PAGE, HeldFile
from supsup.file.limits import TooLarge
from supsup.file.modelfile import ModelFile, write_new
from supsup.file.paths import AnyPath, existing_file, full_path
from supsup.file.sqlite import connect
from supsup.file.task_record import (
    COLUMNS,
    STATISTICS,
    TaskRecord,
    impossible_statistics,
    info_of,
    network_description,
    tensors_from_bytes,
    tensors_of,
)
from supsup.masks.frozen import RUNNING, FrozenNet
from supsup.nets.architecture import Architecture
from supsup.nets.imagenet import fixed_prefixes
from supsup.runtime.errors import Damaged, SupSupError, printable

# What reading a damaged row may raise; MemoryError: it may claim any size.
_UNREADABLE = (sqlite3.Error, SupSupError, UnicodeDecodeError, OverflowError, MemoryError)
_RECORDS_PER_PAGE = 8  # at most, for networks of a useful size
_MOST_NETWORKS = 3  # tasks whose network is built to replace a lost header
_MOST_TRIED = 1 << 20  # positions that are tried one by one


@dataclass
class Findings:
    """The state of a file, task by task."""

    header: Header | None = None
    reference: Reference | None = None
    intact: list[TaskRecord] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)  # what is wrong, by task
    structure: list[str] = field(default_factory=list)  # what is wrong with the file itself
    _names: set[str] = field(default_factory=set)

    @property
    def clean(self) -> bool:
        """Whether the file and every task are intact."""
        return not self.damaged and not self.structure

    def add(self, record: TaskRecord, header: Header) -> None:
        """Check a task, and count it among the intact or the damaged ones."""
        try:
            record.decoded(header, self.reference)
            info_of(record, header)
            for name, value in tensors_of(record).items():
                if name.startswith(STATISTICS) and bool(impossible_statistics(name, value).any()):
                    raise Damaged(f"task {printable(repr(record.name))} has statistics that no training gives")
            if record.name in self._names:
                raise Damaged("a second task of this name")
            self.intact.append(record)
            self._names.add(record.name)
        except SupSupError as error:
            self.damaged[printable(record.name)] = printable(error)


def verify(path: AnyPath) -> Findings:
    """Check every task and the file itself; an error only if this is not a model file at all."""
    findings = Findings()
    try:
        with ModelFile(path) as file:
            findings.header, findings.reference = file.header, file.reference
            findings.structure += file.structure_problems()
            for record in file.records():
                findings.add(record, file.header)
            if file.header.format > 1:
                tensors_from_bytes(file.state(), "the model's state")
    except Damaged as error:
        findings.structure.append(str(error))
    return findings


def repair(path: AnyPath, out: AnyPath, net: nn.Module | None = None) -> Findings:
    """Write every intact task of a file to a new one; the damaged file is left as it is.

    net  your module, where the model was not built from `supsup.nets`; needed only if the header is lost
    """
    source, target = existing_file(path), full_path(out)
    if os.path.lexists(target):
        raise SupSupError(f"{target} exists; give the name of a new file for the rescued tasks")
    try:
        findings = verify(source)
    except tables.NewerFormat:
        raise
    except SupSupError as error:
        findings = Findings(structure=[str(error)])
    if findings.header is not None and findings.header.format > 1:
        state = (
            "damaged; restore the file from a backup" if findings.structure else "intact; there is nothing to repair"
        )
        raise SupSupError(f"{source}: the tasks of a {findings.header.kind} model share one memory, and it is {state}")
    if findings.structure:
        findings = _salvage(source, findings.structure, net)
    header, reference = findings.header, findings.reference
    if header is None:
        raise Damaged(
            f"{source}: nothing can be rescued, both copies of the header are lost "
            f"({printable(findings.structure[0])}); restore it from a backup"
        )
    records = (
        TaskRecord.encoded(header, each.name, each.created, each.classes, each.decoded(header, reference), each.extras)
        for each in findings.intact
    )
    write_new(target, header, records)
    return findings


def _salvage(source: Path, problems: list[str], net: nn.Module | None) -> Findings:
    """Read what can be read from a copy; if that finds no header, with a new first page."""
    try:
        with tempfile.TemporaryDirectory(prefix="supsup-") as folder, closing(HeldFile(source)) as file:
            copy = Path(folder) / "copy"
            _copy(file, source, copy)
            findings = _read_copy(copy, net)
            if findings.header is None:
                _replace_first_page(copy)
                findings = _read_copy(copy, net)
    except OSError as error:
        raise SupSupError(
            f"{source}: no copy to work on can be made ({error}); set TMPDIR to a folder with room"
        ) from error
    findings.structure += problems
    return findings


def _copy(file: HeldFile, source: Path, copy: Path) -> None:
    """Copy a file as it was before an interrupted commit, if the journal beside it belongs to it."""
    try:
        journal.check_beside(source)
        if journal.is_pending(source):
            journal.copy_rolled_back(file, source, copy)
            return
    except (FileNotFoundError, journal.ForeignJournal):
        copy.unlink(missing_ok=True)
    with copy.open("xb") as out:
        file.copy_to(out)


def _read_copy(path: Path, net: nn.Module | None) -> Findings:
    findings = Findings()
    try:
        with closing(connect(path, "rw")) as connection:
            connection.execute("PRAGMA writable_schema=ON")  # lets SQLite open a file that was cut off
            if tables.has_our_tables(connection):
                _read_tables(connection, path.stat().st_size // PAGE, net, findings)
    except TooLarge:
        raise
    except _UNREADABLE as error:
        findings.structure.append(printable(error))
    return findings


def _read_tables(connection: sqlite3.Connection, pages: int, net: nn.Module | None, findings: Findings) -> None:
    """Read as much of the header and the tasks as possible."""
    for table in ("model", "spare"):
        with suppress(*_UNREADABLE):
            findings.header = findings.header or tables.read_header(connection, table)[0]
    positions = list(_positions(connection, min(_MOST_TRIED, pages * _RECORDS_PER_PAGE)))
    if findings.header is None:
        findings.header = _header_from_a_task(connection, positions, net, findings.structure)
    if findings.header is not None:
        with suppress(*_UNREADABLE):
            findings.reference, _ = tables.read_reference(connection, findings.header)
        count, stored, weights = 0, 0, sum(findings.header.sizes)
        for position in positions:
            try:
                record = _record_at(connection, position)
                if record is not None:
                    count, stored = count + 1, stored + len(record.mask)
                    limits.check_masks(count, weights, stored)
                    findings.add(record, findings.header)
            except TooLarge:
                raise
            except _UNREADABLE as error:
                with suppress(*_UNREADABLE, TypeError):
                    (name,) = connection.execute("SELECT name FROM tasks WHERE position = ?", (position,)).fetchone()
                    findings.damaged[printable(name)] = printable(error)


def _header_from_a_task(
    connection: sqlite3.Connection, positions: Iterable[int], net: nn.Module | None, problems: list[str]
) -> Header | None:
    """A header to replace the lost one, from the first task that describes its network and is intact with it."""
    tried = 0
    for position in positions:
        try:
            record = _record_at(connection, position)
            about = None if record is None else network_description(record.extras)
            if record is None or about is None or tried == _MOST_NETWORKS:
                continue
            tried += 1
            header = _rebuild_header(about, net, record)
            reference, _ = tables.read_reference(connection, header)
            record.decoded(header, reference)
            return header
        except _UNREADABLE as error:
            problems.append(printable(error))
    return None


def _rebuild_header(about: Mapping[str, Any], net: nn.Module | None, task: TaskRecord) -> Header:
    """A header from what a task's record says about its network; recipe, inference and notes are lost."""
    stored = [name for name in tensors_of(task) if name.startswith(STATISTICS)]
    with explain_unknown_settings():
        if net is None and about["architecture"] is None:
            raise SupSupError("the model was built from your own module; give it: repair(path, out, net=your_module)")
        module = net if net is not None else build_architecture(Architecture(**about["architecture"]))
        seed, pretrained = operator.index(about["seed"]), bool(about["pretrained"])
        own_head = not all(name.endswith(RUNNING) for name in stored) if stored else bool(fixed_prefixes(module))
        size = str(about.get("profile_size", "default"))
        frozen = FrozenNet(module, seed, torch.device("cpu"), pretrained, own_head=own_head, profile_size=size)
        if frozen.checksum != about["weights"]:
            raise SupSupError("the network does not fit: its weights are not those of the tasks in the file")
        notes = {"repaired": "the header was lost: recipe, inference, allocation and notes are not what they were"}
        values = {"image_shape": about["image_shape"], "notes": notes, "created": task.created}
        header = build_header(frozen, recipe={}, inference={}, allocation={}, **values)
    limits.check_shapes(header.shapes, header.image_shape)
    return header


def _positions(connection: sqlite3.Connection, most: int) -> Iterable[int]:
    """Where tasks may be: up to the first damaged page, after the last one, and everything between."""

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


def _record_at(connection: sqlite3.Connection, position: int) -> TaskRecord | None:
    values = connection.execute(f"SELECT {COLUMNS} FROM tasks WHERE position = ?", (position,)).fetchone()
    return None if values is None else TaskRecord.of(values)


def _replace_first_page(path: Path) -> None:
    """Put the first page of a new model file there: tables begin on the same pages in every file."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"PRAGMA page_size={PAGE}")
        tables.create_tables(connection)
        page = bytearray(connection.serialize()[:PAGE])
    page[28:32] = (path.stat().st_size // PAGE).to_bytes(4, "big")
    with path.open("r+b") as file:
        file.write(page)
