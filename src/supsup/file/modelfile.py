"""One SQLite file per model: many readers, one writer, every change committed whole or not at all.

Readers never write. A writer holds the lock. SQLite never sees a foreign journal (`journal.py`).
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Self, TypeVar

from supsup.file import codec, journal, limits, paths, tables
from supsup.file.codec import Reference
from supsup.file.header import Header
from supsup.file.journal import PAGE, HeldFile
from supsup.file.paths import AnyPath
from supsup.file.sqlite import WriterLock, connect, explain_errors, is_unfinished, transaction
from supsup.file.task_record import COLUMNS, PackedTask, TaskRecord
from supsup.runtime.errors import Damaged, SupSupError, printable

_Model = TypeVar("_Model")
_TRIES = 10  # to open a file while writers roll back commits
_INHERITED: list[sqlite3.Connection] = []  # connections of the parent process, which a forked child must not close
_INSERT = f"REPLACE INTO tasks ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"


class ModelFile:
    """An open model file; `write=True` opens it for the one writer."""

    header: Header
    reference: Reference | None
    _members: list[str]
    _index: dict[str, tuple[int, bytes]] | None  # None while a commit may or may not have happened

    def __init__(self, path: AnyPath, *, write: bool = False) -> None:
        self.path = paths.existing_file(paths.writable_path(path) if write else path)
        self._lock = WriterLock(self.path) if write else None
        self._opened: _Opened | None = None
        self._index = None
        try:
            with explain_errors(self.path):
                self._opened = _Opened(self.path, write=write)
            self._connection = self._opened.connection
            self._known_index()
            with explain_errors(self.path):
                self._version = self._data_version()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; every commit is in it already. In a forked child the parent's stays open and locked."""
        if self._opened is not None:
            self._opened.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def is_at(self, path: AnyPath) -> bool:
        """Whether this is the file at a path."""
        return paths.full_path(path) == self.path

    @property
    def names(self) -> list[str]:
        """The tasks, in order."""
        return list(self._known_index())

    def __contains__(self, name: object) -> bool:
        return name in self._known_index()

    def records(self, *, masks: bool = True) -> Iterator[TaskRecord]:
        """The rows of all tasks, in order; an error after the last if one is missing.

        Without `masks` those are left out; but a row can be checked only with its mask.
        """
        columns = COLUMNS if masks else COLUMNS.removesuffix("mask") + "x''"
        with self._reading() as digest:
            checksums, last = tables.state_checksums(self._connection, self.header), -1
            for values in self._connection.execute(f"SELECT {columns} FROM tasks ORDER BY position"):
                record = TaskRecord.of(values)
                if record.position <= last:
                    raise Damaged("the file is damaged (tasks come in the wrong order)")
                last = record.position
                checksums.append(record.checksum)
                yield record
            tables.check_complete(checksums, digest)

    def tasks(self, first: int = 0) -> Iterator[PackedTask]:
        """The tasks from an index on, each checked; whether one is missing is known only after the last.

        With `first` > 0 that is not checked: the caller has read `records(masks=False)`.
        """
        positions = [position for position, _ in self._known_index().values()][first:]
        rows = self.records_between(positions[0] if positions else limits.MOST_POSITION) if first else self.records()
        return map(self.decoded, rows)

    def records_between(self, first: int, last: int = limits.MOST_POSITION) -> Iterator[TaskRecord]:
        """The rows at some positions, in order."""
        with self._reading():
            rows = f"SELECT {COLUMNS} FROM tasks WHERE position BETWEEN ? AND ? ORDER BY position"
            yield from map(TaskRecord.of, self._connection.execute(rows, (first, last)))

    def decoded(self, record: TaskRecord) -> PackedTask:
        """The task of a row of this file, checked."""
        with explain_errors(self.path):
            return record.decoded(self.header, self.reference)

    def state(self) -> bytes:
        """The tensors of a HopSupSup model as safetensors bytes, checked."""
        with self._reading():
            return tables.read_state(self._connection)

    def state_size(self) -> int:
        """The size of `state()` in bytes, without reading it."""
        with self._reading():
            size = self._connection.execute("SELECT length(tensors) FROM state").fetchone()
        return int(size[0]) if size is not None and isinstance(size[0], int) else 0

    def put(self, tasks: Iterable[PackedTask], header: Header | None = None) -> None:
        """Commit tasks, all or none: new ones, or new masks for old ones."""
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
        independent = [] if self.reference is None or name not in self._members else self._coded_alone(self.records())
        paths.remove_mask_folder(self.path)
        with self._writing(header or self.header, index):
            self._connection.execute("DELETE FROM tasks WHERE position = ?", (position,))
            if independent:
                self._put_masks(independent)
                tables.write_reference(self._connection, None)
        if independent:
            self.reference, self._members = None, []

    def compact(self, *, against_mean: bool = False) -> None:
        """Free the space of removed tasks, and code masks that were written without the entropy coder.

        against_mean  also code masks against their mean, if that makes the file smaller
        """
        self._check_writable()
        if against_mean:
            self._code_against_mean()
        else:
            self._code_plain_ones()
        with explain_errors(self.path):
            self._connection.execute("VACUUM")

    def structure_problems(self) -> list[str]:
        """What is wrong with the file itself, apart from its tasks."""
        with self._reading() as digest:
            lines = [str(line) for (line,) in self._connection.execute("PRAGMA integrity_check(20)")]
            problems = [] if lines == ["ok"] else lines
            try:
                same = tables.read_header(self._connection, "spare") == (self.header, digest)
            except Damaged:
                same = False
        return problems if same else [*problems, "the spare copy of the header is damaged"]

    def _coded_alone(self, records: Iterable[TaskRecord]) -> list[TaskRecord]:
        """Rows of this file, with masks coded independently of the mean."""
        masks = ((record, record.decoded(self.header, self.reference).packed) for record in records)
        coded = ((record, codec.encode(packed, self.header.sizes)) for record, packed in masks)
        return [record._replace(codec=name, mask=blob) for record, (name, blob) in coded]

    def _code_against_mean(self) -> None:
        """Forgetting stays exact: `remove` drops the mean if it was taken over the removed task."""
        limits.check_reference(sum(self.header.sizes))
        alone = self._coded_alone(self.records())
        masks = [record.decoded(self.header, None).packed for record in alone]
        reference = Reference.of(masks, self.header.sizes)
        coded = [reference.encode(packed) for packed in masks]
        better = [
            record._replace(codec=name, mask=blob) if len(blob) < len(record.mask) else record
            for record, (name, blob) in zip(alone, coded)
        ]
        saved = sum(len(record.mask) for record in alone) - sum(len(record.mask) for record in better)
        wins = saved > len(reference.to_bytes()[1])
        with self._writing(self.header, self._known_index()):
            self._put_masks(better if wins else alone)
            tables.write_reference(self._connection, reference if wins else None, self.names)
        self.reference, self._members = (reference, self.names) if wins else (None, [])

    def _code_plain_ones(self) -> None:
        """Code masks that a machine without the entropy coder stored as plain bits."""
        plain = [record for record in self.records() if record.codec == codec.PLAIN]
        smaller = [new for new, old in zip(self._coded_alone(plain), plain) if len(new.mask) < len(old.mask)]
        if smaller:
            with self._writing(self.header, self._known_index()):
                self._put_masks(smaller)

    def _put_masks(self, records: list[TaskRecord]) -> None:
        """Replace the bytes of masks; the masks stay the same."""
        self._connection.executemany(
            "UPDATE tasks SET codec = ?, mask = ? WHERE position = ?", [(r.codec, r.mask, r.position) for r in records]
        )

    def _known_index(self) -> dict[str, tuple[int, bytes]]:
        """Position and checksum of each task by name; no mask is read."""
        if self._index is not None:
            return self._index
        with self._reading() as digest:
            index = tables.read_index(self._connection, self.header, digest)
        self._index = index
        return index

    @contextmanager
    def _reading(self) -> Iterator[bytes]:
        """A transaction that sees one state of the file: reads the header anew and gives the digest of the tasks."""
        with explain_errors(self.path), transaction(self._connection):
            tables.check_format(self._connection)
            self.header, digest = tables.read_header(self._connection)
            self.reference, self._members = tables.read_reference(self._connection, self.header)
            yield digest

    @contextmanager
    def _writing(self, header: Header, index: dict[str, tuple[int, bytes]]) -> Iterator[None]:
        """One commit, after which the file has the tasks in `index`."""
        self._check_writable()
        with explain_errors(self.path), transaction(self._connection, "IMMEDIATE"):
            if self._data_version() != self._version:
                raise SupSupError("another process has changed it; load it again before you continue")
            yield
            tables.write_header(self._connection, header, (checksum for _, checksum in index.values()))
            self._index = None
        self._index, self.header = index, header

    def _check_writable(self) -> None:
        if self._lock is not None and not self._lock.is_mine:
            raise SupSupError(f"{self.path} was opened by another process before it forked; load it again in this one")
        if self._lock is None:
            raise SupSupError(f"{self.path} was opened to read only; open it with write=True to change it")
        if self.header.kind != "SupSup":
            raise SupSupError(
                f"{self.path} holds a {self.header.kind} model, whose tasks share one memory: none of them can be "
                "changed or removed on its own"
            )

    def _data_version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])


class _Opened:
    """A connection to a model file, and what must live as long as the connection.

    After an interrupted commit a reader gets a private copy of the file as it was before. A writer lets SQLite roll
    back the file itself, once a copy has proved to be a complete model.
    """

    connection: sqlite3.Connection

    def __init__(self, path: Path, *, write: bool) -> None:
        self._process = os.getpid()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._held = HeldFile(path)
        try:
            tables.check_first_page(self._held.read(100))
            journal.check_beside(path)
            if write and journal.is_pending(path):
                self._connect_to_copy(path)
                tables.check_whole(self.connection)
                self._disconnect()
            if write:
                self.connection = connect(path, "rw")
                self._remove_unused_journal(path)
            else:
                self._connect_to_read(path)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection, and only then the held file."""
        if self._process != os.getpid():
            _INHERITED.append(self.connection)
            return
        self._disconnect()
        self._held.close()

    def _disconnect(self) -> None:
        if hasattr(self, "connection"):
            self.connection.close()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _remove_unused_journal(self, path: Path) -> None:
        """Remove a journal that a writer had just created when it died; SQLite leaves it until the next commit."""
        if journal.is_pending(path) is False:
            with transaction(self.connection, "IMMEDIATE"):  # until it ends nobody creates another
                if journal.is_pending(path) is False:
                    journal.path_of(path).unlink()

    def _connect_to_read(self, path: Path) -> None:
        for _ in range(_TRIES):
            try:
                self.connection = connect(path, "ro")
                self.connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
                return
            except sqlite3.Error as error:
                if not is_unfinished(error):
                    raise
            self._disconnect()
            with suppress(FileNotFoundError):  # a writer was faster and has rolled the file back
                self._connect_to_copy(path)
                return
        raise SupSupError("a writer is rolling back an interrupted commit; load it again")

    def _connect_to_copy(self, path: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="supsup-")
        copy = Path(self._folder.name) / "model"
        try:
            journal.copy_rolled_back(self._held, path, copy)
        except (FileNotFoundError, PermissionError):
            self._disconnect()
            raise
        except OSError as error:
            raise SupSupError(
                f"a commit to it was interrupted, and no copy to read from can be made in {self._folder.name} "
                f"({error}); set TMPDIR to a folder with room"
            ) from error
        self.connection = connect(copy, "ro")


def write_new(path: AnyPath, header: Header, tasks: Iterable[PackedTask] = (), state: bytes = b"") -> Path:
    """Write a model file at once, complete or not at all; an older model file is replaced.

    tasks  of a SupSup model
    state  the tensors (safetensors) of a HopSupSup model
    """
    target = paths.writable_path(path)
    lock = WriterLock(target)
    try:
        paths.remove_parts(target)
        _check_replaceable(target)
        part = paths.new_part(target)
        try:
            with explain_errors(target):
                _write(part, header, tasks, state)
            if target.exists():
                shutil.copymode(target, part)
                paths.remove_mask_folder(target)
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
            tables.create_tables(connection, header.format)
            checksums = [] if header.format == 1 else [tables.write_state(connection, state)]
            for position, task in enumerate(tasks):
                record = TaskRecord.encoded(header, position, task)
                checksums.append(record.checksum)
                connection.execute(_INSERT, record)
            tables.write_header(connection, header, checksums)
    finally:
        connection.close()
    with closing(connect(path, "ro")) as connection:  # what was written can be read back
        tables.check_whole(connection)


def _check_replaceable(target: Path) -> None:
    """Only a model file or an empty file may be overwritten; an interrupted commit to it is rolled back first."""
    if not target.exists() or (target.is_file() and target.stat().st_size == 0):
        journal.check_beside(target)
        journal.path_of(target).unlink(missing_ok=True)  # of a file that is gone
        return
    paths.existing_file(target)
    try:
        with explain_errors(target), closing(_Opened(target, write=True)) as file:
            tables.check_whole(file.connection)
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


def stored_bytes(path: AnyPath, task: str) -> int:
    """How many bytes a task's mask and extras take in a file, without reading them; 0 for an unknown task."""
    full = paths.full_path(path)
    with explain_errors(full), closing(connect(full, "ro")) as connection:
        found = connection.execute("SELECT length(mask) + length(extras) FROM tasks WHERE name = ?", (task,)).fetchone()
    return 0 if found is None else int(found[0])


def model_to_bytes(save: Callable[[Path], object]) -> bytes:
    """The bytes of the file that `save` writes: for `pickle`, and to send a model to another process."""
    with _temporary_path() as path:
        save(path)
        return path.read_bytes()


def model_from_bytes(content: bytes, load: Callable[[Path], _Model]) -> _Model:
    """What `load` reads from a file with this content, which is checked as any file is."""
    with _temporary_path() as path:
        path.write_bytes(content)
        return load(path)


@contextmanager
def _temporary_path() -> Iterator[Path]:
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder) / "model.supsup"
    except OSError as error:
        raise SupSupError(f"the model could not be copied through a temporary file: {error}") from error
