"""SQLite as a model file needs it: connecting with care, one writer at a time, and errors a user can act on.

A rollback journal rather than a write-ahead log: between commits there is one file and no other, it can be copied and
read from read-only media, and readers wait for a few milliseconds only while a commit is being written.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from supsup.errors import Damaged, SupSupError

PAGE = 1024  # bytes; a mask fills its last page by half on average, so small pages waste little
_WAIT = 30.0  # seconds for readers and a commit to get out of each other's way


def connect(path: Path, *, create: bool = False) -> sqlite3.Connection:
    """A connection that runs nothing from the file; it may write where the file system lets it.

    A reader needs that too: after a crash the first to open the file rolls the unfinished commit back.
    """
    writable = os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)
    mode = "rwc" if create else "rw" if writable else "ro"
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode={mode}", uri=True, timeout=_WAIT, isolation_level=None, check_same_thread=False
    )
    try:
        for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "secure_delete=ON", "synchronous=EXTRA"):
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection, kind: str = "DEFERRED") -> Iterator[None]:
    """All or nothing."""
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


class WriterLock:
    """Held by the one process that writes to a file; the operating system releases it when that process dies.

    The lock is SQLite's own, on an empty file beside the model that goes when the writer closes.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.with_name(path.name + "-writer")
        try:
            self._connection = sqlite3.connect(self._file, timeout=0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise SupSupError(
                f"{path} cannot be written: no file can be made in its folder ({error}); "
                "make the folder writable or save to another one"
            ) from error
        try:
            self._connection.execute("PRAGMA journal_mode=OFF")
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            self._connection.close()
            raise SupSupError(
                f"{path} is being written by another process or model; close it there first, "
                "or load it without in_place=True to read only"
            ) from error

    def release(self) -> None:
        with suppress(OSError):
            self._file.unlink()
        self._connection.close()


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Errors of SQLite and of the format, in a user's words: which file, what is wrong, what to do."""
    try:
        yield
    except Damaged as error:
        raise Damaged(f"{path}: {error}; {_rescue(path)}") from error
    except SupSupError as error:
        raise type(error)(f"{path}: {error}") from error
    except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite's message may quote the damaged bytes
        raise _translated(error, path) from error


def _translated(error: Exception, path: Path) -> SupSupError:
    permissions = "cannot be opened; look at the permissions of the file and its folder"
    meanings = {
        sqlite3.SQLITE_FULL: "the disk is full; free some space and save again, nothing in the file is lost",
        sqlite3.SQLITE_READONLY: "is read-only or was moved away; make it writable or save to another file",
        sqlite3.SQLITE_BUSY: "another process reads or writes it; try again when that is done",
        sqlite3.SQLITE_CANTOPEN: permissions,
        sqlite3.SQLITE_PERM: permissions,
        sqlite3.SQLITE_IOERR: f"could not be read or written ({error}); look at the disk and try again",
    }
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    if code in meanings:
        return SupSupError(f"{path}: {meanings[code]}")
    if code == sqlite3.SQLITE_NOTADB:
        return Damaged(f"{path}: not a supsup model file, or damaged at its beginning; if it is one, {_rescue(path)}")
    return Damaged(f"{path}: the file is damaged ({error}); {_rescue(path)}")


def _rescue(path: Path) -> str:
    return f"`supsup repair {path.name}` writes the undamaged tasks to a new file"
