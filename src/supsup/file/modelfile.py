"""One SQLite file per model: read by many, changed by one, every change committed whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Self

from supsup.file import codec, journal, limits
from supsup.file import mask_blocks as blocks
from supsup.file.format import (
    COLUMNS,
    MOST_POSITION,
    Header,
    PackedTask,
    TaskRecord,
    check_complete,
    check_format,
    create,
    read_header,
    read_index,
    read_reference,
    read_state,
    state_checksums,
    write_header,
    write_reference,
    write_state,
)
from supsup.file.journal import PAGE
from supsup.file.lock import WriterLock
from supsup.file.opening import Opened
from supsup.file.paths import AnyPath, existing, full_path, new_part, remove_parts, to_write
from supsup.file.reference import Reference
from supsup.file.sqlite import connect, explained, transaction
from supsup.runtime.errors import Damaged, SupSupError, printable

_INSERT = f"REPLACE INTO tasks ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"


class ModelFile:
    """An open model file; with `write=True` the only one that may change it."""

    header: Header
    reference: Reference | None
    _members: list[str]
    _index: dict[str, tuple[int, bytes]] | None  # None while a commit may or may not have happened

    def __init__(self, path: AnyPath, *, write: bool = False) -> None:
        self.path = existing(to_write(path) if write else path)
        self._lock = WriterLock(self.path) if write else None
        self._index = None
        try:
            with explained(self.path):
                self._opened = Opened(self.path, write=write)
        except BaseException:
            self._unlock()
            raise
        self._connection = self._opened.connection
        try:
            self._known_index()
            with explained(self.path):
                self._version = self._data_version()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the file go; every commit is in it already. In a forked child the parent's stays open and locked."""
        self._opened.close()
        self._unlock()

    def is_at(self, path: AnyPath) -> bool:
        """Whether this is the file at a path."""
        return full_path(path) == self.path

    @property
    def names(self) -> list[str]:
        """The tasks, in order."""
        return list(self._known_index())

    def __contains__(self, name: object) -> bool:
        return name in self._known_index()

    def records(self) -> Iterator[TaskRecord]:
        """Every task as it lies in the file, in order; an error after the last if one is missing."""
        with self._reading() as digest:
            checksums, last = state_checksums(self._connection, self.header), -1
            for values in self._connection.execute(f"SELECT {COLUMNS} FROM tasks ORDER BY position"):
                record = TaskRecord.of(values)
                if record.position <= last:
                    raise Damaged("the file is damaged (tasks come in the wrong order)")
                last = record.position
                checksums.append(record.checksum)
                yield record
            check_complete(checksums, digest)

    def tasks(self) -> Iterator[PackedTask]:
        """Every task, checked, in order; none is to be trusted before the last has come."""
        for record in self.records():
            with explained(self.path):
                task = record.decoded(self.header, self.reference)
            yield task

    def position(self, index: int) -> int:
        """Where the task with an index lies; beyond the last there is nothing."""
        positions = [position for position, _ in self._known_index().values()]
        return positions[index] if index < len(positions) else positions[-1] + 1

    def records_without_masks(self) -> list[TaskRecord]:
        """All but the masks of every task, in order; none is missing, but only with its mask can one be checked."""
        with self._reading() as digest:
            columns = COLUMNS.removesuffix("mask") + "x''"
            rows = self._connection.execute(f"SELECT {columns} FROM tasks ORDER BY position")
            records = [TaskRecord.of(values) for values in rows]
            check_complete((record.checksum for record in records), digest)
        return records

    def records_between(self, first: int, last: int = MOST_POSITION) -> Iterator[TaskRecord]:
        """The tasks at some positions as they lie in the file, in order."""
        with self._reading():
            rows = f"SELECT {COLUMNS} FROM tasks WHERE position BETWEEN ? AND ? ORDER BY position"
            yield from map(TaskRecord.of, self._connection.execute(rows, (first, last)))

    def tasks_from(self, first: int) -> Iterator[PackedTask]:
        """The tasks from a position on, checked, in order."""
        return map(self.decoded, self.records_between(first))

    def decoded(self, record: TaskRecord) -> PackedTask:
        """A task of this file, checked."""
        with explained(self.path):
            return record.decoded(self.header, self.reference)

    def state(self) -> bytes:
        """The tensors of a model that keeps all its tasks together, as safetensors bytes, checked."""
        with self._reading():
            return read_state(self._connection)

    def state_size(self) -> int:
        """How many bytes those tensors take, before they are read."""
        with self._reading():
            size = self._connection.execute("SELECT length(tensors) FROM state").fetchone()
        return int(size[0]) if size is not None and isinstance(size[0], int) else 0

    def put(self, tasks: Iterable[PackedTask], header: Header | None = None) -> None:
        """Commit tasks, all or none: new ones, or new masks of those that are there."""
        header = header or self.header
        index = dict(self._known_index())
        next_position = max((position for position, _ in index.values()), default=-1) + 1
        with self._writing(header, index):
            for task in tasks:
                position = index[task.name][0] if task.name in index else next_position
                next_position += task.name not in index
                record = TaskRecord.encoded(header, position, task)
                index[task.name] = (position, record.checksum)
                self._connection.execute(_INSERT, record)

    def remove(self, name: str, header: Header | None = None) -> None:
        """Commit the removal of a task; its bytes are overwritten with zeros."""
        self._check_writable()
        index = dict(self._known_index())
        if name not in index:
            raise SupSupError(
                f"{self.path}: no task {printable(repr(name))}; `supsup tasks {self.path.name}` lists what there is"
            )
        position, _ = index.pop(name)
        independent = [] if self.reference is None or name not in self._members else self._coded_alone()
        blocks.discard(self.path)
        with self._writing(header or self.header, index):
            self._connection.execute("DELETE FROM tasks WHERE position = ?", (position,))
            if independent:
                self._recode(independent, None)
        if independent:
            self.reference, self._members = None, []

    def compact(self, *, against_mean: bool = False) -> None:
        """Give the space of removed tasks back to the file system, and code masks that were written without a coder.

        against_mean  also code masks against their mean, if the file gets smaller by it
        """
        self._check_writable()
        if against_mean:
            self._code_against_mean()
        else:
            self._code_plain_ones()
        with explained(self.path):
            self._connection.execute("VACUUM")

    def structure_problems(self) -> list[str]:
        """What is wrong with the file below the level of tasks."""
        with self._reading() as digest:
            lines = [str(line) for (line,) in self._connection.execute("PRAGMA integrity_check(20)")]
            problems = [] if lines == ["ok"] else lines
            try:
                same = read_header(self._connection, "spare") == (self.header, digest)
            except Damaged:
                same = False
        return problems if same else [*problems, "the spare copy of the header is damaged"]

    def _coded_alone(self) -> list[TaskRecord]:
        """Every record, its mask coded so that it needs no other."""
        tasks = ((record.position, record.decoded(self.header, self.reference)) for record in self.records())
        return [TaskRecord.encoded(self.header, position, task) for position, task in tasks]

    def _code_against_mean(self) -> None:
        """Forgetting stays exact: when a task goes that the mean was taken over, the mean goes too."""
        limits.check_reference(sum(self.header.sizes))
        alone = self._coded_alone()
        sizes = self.header.sizes
        masks = [record.decoded(self.header, None).packed for record in alone]
        reference = Reference.of(masks, sizes)
        coded = [reference.encode(packed) for packed in masks]
        better = [
            record._replace(codec=name, mask=blob) if len(blob) < len(record.mask) else record
            for record, (name, blob) in zip(alone, coded)
        ]
        saved = sum(len(record.mask) for record in alone) - sum(len(record.mask) for record in better)
        wins = saved > len(reference.to_bytes()[1])
        with self._writing(self.header, self._known_index()):
            self._recode(better if wins else alone, reference if wins else None)
        self.reference, self._members = (reference, self.names) if wins else (None, [])

    def _code_plain_ones(self) -> None:
        """Masks that lie in the file bit by bit, as a machine without the entropy coder writes them."""
        plain = [record for record in self.records() if record.codec == codec.PLAIN]
        coded = [TaskRecord.encoded(self.header, each.position, each.decoded(self.header, None)) for each in plain]
        smaller = [new for new, old in zip(coded, plain) if len(new.mask) < len(old.mask)]
        if smaller:
            with self._writing(self.header, self._known_index()):
                self._put_masks(smaller)

    def _recode(self, records: list[TaskRecord], reference: Reference | None) -> None:
        self._put_masks(records)
        write_reference(self._connection, reference, self.names)

    def _put_masks(self, records: list[TaskRecord]) -> None:
        """The same masks, coded otherwise."""
        self._connection.executemany(
            "UPDATE tasks SET codec = ?, mask = ? WHERE position = ?", [(r.codec, r.mask, r.position) for r in records]
        )

    def _known_index(self) -> dict[str, tuple[int, bytes]]:
        """Position and checksum of each task; the masks are not read."""
        if self._index is not None:
            return self._index
        with self._reading() as digest:
            index = read_index(self._connection, self.header, digest)
        self._index = index
        return index

    @contextmanager
    def _reading(self) -> Iterator[bytes]:
        """One state of the file from beginning to end: its header is read anew, the digest of its tasks is given."""
        with explained(self.path), transaction(self._connection):
            check_format(self._connection)
            self.header, digest = read_header(self._connection)
            self.reference, self._members = read_reference(self._connection, self.header)
            yield digest

    @contextmanager
    def _writing(self, header: Header, index: dict[str, tuple[int, bytes]]) -> Iterator[None]:
        """One commit, after which the tasks are those in `index`."""
        self._check_writable()
        with explained(self.path), transaction(self._connection, "IMMEDIATE"):
            if self._data_version() != self._version:
                raise SupSupError("another process has changed it; load it again before you go on")
            yield
            write_header(self._connection, header, (checksum for _, checksum in index.values()))
            self._index = None
        self._index, self.header = index, header

    def _check_writable(self) -> None:
        if self._lock is not None and not self._lock.is_mine:
            raise SupSupError(f"{self.path} was opened by another process before it forked; load it again in this one")
        if self._lock is None:
            raise SupSupError(f"{self.path} was opened to read only; open it with write=True to change it")
        if self.header.kind != "SupSup":
            raise SupSupError(
                f"{self.path} holds a {self.header.kind} model, whose tasks lie in one memory: none of them can be "
                "changed or removed on its own"
            )

    def _data_version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def write_new(path: AnyPath, header: Header, tasks: Iterable[PackedTask] = (), state: bytes = b"") -> Path:
    """A whole model file at once, in place of an older model file if there is one; complete or not at all.

    tasks  those of a SupSup model; `state` the tensors (safetensors) of a kind of model that has a state instead
    """
    target = to_write(path)
    lock = WriterLock(target)
    try:
        remove_parts(target)
        _check_replaceable(target)
        part = new_part(target)
        try:
            with explained(target):
                _write(part, header, tasks, state)
            if target.exists():
                shutil.copymode(target, part)
                blocks.discard(target)
            os.replace(part, target)
            _sync(target.parent)
        except OSError as error:
            raise SupSupError(f"{target} could not be written: {error}") from error
        finally:
            for leftover in (part, journal.path_of(part)):
                leftover.unlink(missing_ok=True)
    finally:
        lock.release()
    return target


def _write(path: Path, header: Header, tasks: Iterable[PackedTask], state: bytes) -> None:
    connection = connect(path, "rwc")
    try:
        connection.execute(f"PRAGMA page_size={PAGE}")
        connection.execute("PRAGMA synchronous=FULL")
        with transaction(connection, "IMMEDIATE"):
            create(connection, header.format)
            checksums = [] if header.format == 1 else [write_state(connection, state)]
            for position, task in enumerate(tasks):
                record = TaskRecord.encoded(header, position, task)
                checksums.append(record.checksum)
                connection.execute(_INSERT, record)
            write_header(connection, header, checksums)
    finally:
        connection.close()
    with closing(connect(path, "ro")) as connection, transaction(connection):  # what was written can be read again
        check_format(connection)
        read_index(connection, *read_header(connection))


def _check_replaceable(target: Path) -> None:
    """Only a model file, or an empty one, may be overwritten; an unfinished commit to it is rolled back first."""
    if not target.exists() or (target.is_file() and target.stat().st_size == 0):
        journal.check_beside(target)
        journal.path_of(target).unlink(missing_ok=True)  # of a file that is no more
        return
    existing(target)
    try:
        with explained(target), closing(Opened(target, write=True)) as file, transaction(file.connection):
            check_format(file.connection)
            read_index(file.connection, *read_header(file.connection))
    except SupSupError as error:
        raise SupSupError(
            f"{target} exists and is not a model file that can be read, so it is not overwritten; "
            "remove it or save to another file"
        ) from error


def _sync(folder: Path) -> None:
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
