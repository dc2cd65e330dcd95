"""Opening a model file: who reads changes nothing, who writes holds the lock, and SQLite sees no foreign journal."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import suppress
from pathlib import Path

from supsup.file import journal
from supsup.file.descriptors import Held
from supsup.file.format import check_first_page, check_format, read_header, read_index
from supsup.file.sqlite import connect, is_unfinished, transaction
from supsup.runtime.errors import SupSupError

_TRIES = 10
_INHERITED: list[sqlite3.Connection] = []  # by a forked child, which must not even close them


class Opened:
    """A connection to a model file, and what has to be kept as long as it.

    After a commit that was broken off, a reader gets a private copy of the file as it was before; a writer lets SQLite
    put the file itself right, once such a copy has proved to be a whole model.
    """

    connection: sqlite3.Connection

    def __init__(self, path: Path, *, write: bool) -> None:
        self._process = os.getpid()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._held = Held(path)
        try:
            check_first_page(self._held.read(100))
            journal.check_beside(path)
            if write and journal.is_pending(path):
                self._connect_to_copy(path)
                with transaction(self.connection):
                    check_format(self.connection)
                    read_index(self.connection, *read_header(self.connection))
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
        """Close the connection, and only then what else was open of the file."""
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
        """One that a writer had begun when it died, and that SQLite leaves there until the next commit."""
        if journal.is_unused(path):
            with transaction(self.connection, "IMMEDIATE"):  # until it ends nobody begins another
                if journal.is_unused(path):
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
            with suppress(FileNotFoundError):  # a writer was faster and has put the file right
                self._connect_to_copy(path)
                return
        raise SupSupError("it is being put right by a writer; load it again")

    def _connect_to_copy(self, path: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="supsup-")
        copy = Path(self._folder.name) / "model"
        try:
            journal.copy_settled(self._held, path, copy)
        except (FileNotFoundError, PermissionError):
            self._disconnect()
            raise
        except OSError as error:
            raise SupSupError(
                f"a commit to it was broken off, and no copy can be made in {self._folder.name} to read it from "
                f"({error}); set TMPDIR to a folder with room"
            ) from error
        self.connection = connect(copy, "ro")
