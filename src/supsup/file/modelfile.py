"""One SQLite file per model: many readers, one writer, every change committed whole or not at all.

Readers never write. A writer holds the lock. SQLite never sees a foreign journal (`journal.py`).
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Self, TypeVar

from supsup.file import codec, journal, limits, paths, tables
from supsup.file.codec import Bytes, Reference
from supsup.file.header import Header
from supsup.file.journal import PAGE, HeldFile
from supsup.file.paths import AnyPath
from supsup.file.sqlite import WriterLock, connect, explain_errors, is_unfinished, transaction
from supsup.file.task_record import COLUMNS, TaskRecord
from supsup.runtime.errors import Damaged, SupSupError, printable
from supsup.runtime.interrupts import uninterrupted

_Model = TypeVar("_Model")
_TRIES = 10  # to open a file while writers roll back commits
_INHERITED: list[ExitStack] = []  # connections of the parent process, which a forked child must not close
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
        self._process, self._held = os.getpid(), ExitStack()
        self._index = None
        try:
            with explain_errors(self.path):
                self._connection = _connected(self.path, write, self._held)
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
        with uninterrupted():
            if self.is_foreign:
                _INHERITED.append(self._held.pop_all())
            else:
                self._held.close()
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    @property
    def is_foreign(self) -> bool:
        """Whether this process was forked from the one that opened the file."""
        return self._process != os.getpid()

    def is_at(self, path: AnyPath) -> bool:
        """Whether this is the file at a path."""
        return paths.full_path(path) == self.path

    @property
    def names(self) -> list[str]:
        """The tasks, in order."""
        return list(self._known_index())

    def __contains__(self, name: object) -> bool:
        return name in self._known_index()

    def records(self, start: int = 0, *, masks: bool = True) -> Iterator[TaskRecord]:
        """The rows of all tasks from a position on, in order; if that is 0, an error after the last if one is missing.

        Without `masks` those are left out; but a row can be checked only with its mask.
        """
        columns = COLUMNS if masks else COLUMNS.removesuffix("mask") + "x''"
        with self._reading() as digest:
            checksums = tables.state_checksums(self._connection, self.header)
            rows = f"SELECT {columns} FROM tasks WHERE position >= ? ORDER BY position"
            for record in map(TaskRecord.of, self._connection.execute(rows, (start,))):
                checksums.append(record.checksum)
                yield record
            if start == 0:
                tables.check_complete(checksums, digest)

    def records_from(self, index: int) -> Iterator[TaskRecord]:
        """The rows of the tasks from an index on; if that is above 0, none is known to be missing or not."""
        positions = [position for position, _ in self._known_index().values()]
        return self.records([*positions, limits.MOST_POSITION][index] if index else 0)

    def decoded(self, record: TaskRecord) -> Bytes:
        """The packed mask of a row of this file, checked."""
        with explain_errors(self.path):
            return record.decoded(self.header, self.reference)

    def state(self) -> bytes:
        """The tensors of a HopSupSup model as safetensors bytes, checked."""
        with self._reading():
            return tables.read_state(self._connection)

    def put(self, records: Iterable[TaskRecord], header: Header) -> None:
        """Commit tasks, all or none: new ones, or new masks for old ones; they get the positions of this file."""
        index = dict(self._known_index())
        next_position = max((position for position, _ in index.values()), default=-1) + 1
        with self._writing(header, index):
            for record in records:
                position = index[record.name][0] if record.name in index else next_position
                next_position += record.name not in index
                index[record.name] = (position, record.checksum)
                self._connection.execute(_INSERT, record._replace(position=position))

    def remove(self, name: str, header: Header | None = None) -> None:
        """Commit the removal of a task; its bytes are overwritten with zeros."""
        self.check_writable()
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
        self.check_writable()
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
        masks = ((record, record.decoded(self.header, self.reference)) for record in records)
        coded = ((record, codec.encode(packed, self.header.sizes)) for record, packed in masks)
        return [record._replace(codec=name, mask=blob) for record, (name, blob) in coded]

    def _code_against_mean(self) -> None:
        """Forgetting stays exact: `remove` drops the mean if it was taken over the removed task."""
        limits.check_reference(sum(self.header.sizes))
        alone = self._coded_alone(self.records())
        masks = [record.decoded(self.header, None) for record in alone]
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
        self.check_writable()
        with explain_errors(self.path), transaction(self._connection, "IMMEDIATE"):
            if self._data_version() != self._version:
                raise SupSupError("another process has changed it; load it again before you continue")
            yield
            tables.write_header(self._connection, header, (checksum for _, checksum in index.values()))
            self._index = None
        self._index, self.header = index, header

    def check_writable(self) -> None:
        """An error unless tasks can be changed or removed."""
        if self._lock is not None and self.is_foreign:
            raise SupSupError(
                f"{self.path} was opened by the parent of this forked process, and only that may write to it; "
                "close() the model here to continue without the file, or save it to another one"
            )
        if self._lock is None:
            raise SupSupError(f"{self.path} was opened to read only; open it with write=True to change it")
        if self.header.kind != "SupSup":
            raise SupSupError(
                f"{self.path} holds a {self.header.kind} model, whose tasks share one memory: none of them can be "
                "changed or removed on its own"
            )

    def _data_version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])


def _connected(path: Path, write: bool, held: ExitStack) -> sqlite3.Connection:
    """A connection to a model file; `held` closes it and what must live as long.

    After an interrupted commit a reader gets a private copy of the file as it was before. A writer lets SQLite roll
    back the file itself, once a copy has proved to be a complete model.
    """
    file = held.enter_context(closing(HeldFile(path)))
    tables.check_first_page(file.read(100))
    journal.check_beside(path)
    if write:
        if journal.is_pending(path):
            with ExitStack() as briefly:
                tables.check_whole(_connected_to_copy(file, path, briefly))
        connection = held.enter_context(closing(connect(path, "rw")))
        _remove_unused_journal(connection, path)
        return connection
    for _ in range(_TRIES):
        with suppress(FileNotFoundError), ExitStack() as tried:  # a writer was faster and has rolled the file back
            try:
                connection = tried.enter_context(closing(connect(path, "ro")))
                connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
            except sqlite3.Error as error:
                if not is_unfinished(error):
                    raise
                tried.close()
                connection = _connected_to_copy(file, path, tried)
            held.enter_context(tried.pop_all())
            return connection
    raise SupSupError("a writer is rolling back an interrupted commit; load it again")


def _connected_to_copy(file: HeldFile, path: Path, held: ExitStack) -> sqlite3.Connection:
    folder = held.enter_context(tempfile.TemporaryDirectory(prefix="supsup-"))
    copy = Path(folder) / "model"
    try:
        journal.copy_rolled_back(file, path, copy)
    except (FileNotFoundError, PermissionError):
        raise
    except OSError as error:
        raise SupSupError(
            f"a commit to it was interrupted, and no copy to read from can be made in {folder} "
            f"({error}); set TMPDIR to a folder with room"
        ) from error
    return held.enter_context(closing(connect(copy, "ro")))


def _remove_unused_journal(connection: sqlite3.Connection, path: Path) -> None:
    """Remove a journal that a writer had just created when it died; SQLite leaves it until the next commit."""
    if journal.is_pending(path) is False:
        with transaction(connection, "IMMEDIATE"):  # until it ends nobody creates another
            if journal.is_pending(path) is False:
                journal.path_of(path).unlink()


def write_new(path: AnyPath, header: Header, records: Iterable[TaskRecord] = (), state: bytes = b"") -> Path:
    """Write a model file at once, complete or not at all; an older model file is replaced.

    records  of a SupSup model's tasks, which are numbered anew
    state    the tensors (safetensors) of a HopSupSup model
    """
    target = paths.writable_path(path)
    with ExitStack() as held:
        held.callback(WriterLock(target).release)
        paths.remove_parts(target)
        _check_replaceable(target)
        part = paths.new_part(target)
        try:
            with explain_errors(target):
                _write(part, header, records, state)
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
    return target


def _write(path: Path, header: Header, records: Iterable[TaskRecord], state: bytes) -> None:
    with closing(connect(path, "rwc")) as connection:
        connection.execute(f"PRAGMA page_size={PAGE}")
        connection.execute("PRAGMA synchronous=FULL")
        with transaction(connection, "IMMEDIATE"):
            tables.create_tables(connection, header.format)
            checksums = [] if header.format == 1 else [tables.write_state(connection, state)]
            for position, record in enumerate(records):
                checksums.append(record.checksum)
                connection.execute(_INSERT, record._replace(position=position))
            tables.write_header(connection, header, checksums)
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
        with explain_errors(target), ExitStack() as held:
            tables.check_whole(_connected(target, True, held))
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
