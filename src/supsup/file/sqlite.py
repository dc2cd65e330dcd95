"""SQLite as a model file needs it: connecting with care, transactions, and errors a user can act on.

A rollback journal rather than a write-ahead log: between commits there is one file and no other, it can be copied and
read from read-only media, and readers wait for a few milliseconds only while a commit is being written.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from supsup.runtime.errors import Damaged, SupSupError, printable

_LONGEST = 2000  # characters of a message
_WAIT = 30.0  # seconds for readers and a commit to get out of each other's way


def connect(path: Path, mode: Literal["ro", "rw", "rwc"]) -> sqlite3.Connection:
    """A connection that runs nothing from the file; with "ro" it writes nothing, not even what a crash left undone."""
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode={mode}", uri=True, timeout=_WAIT, isolation_level=None, check_same_thread=False
    )
    try:
        for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "secure_delete=ON", "synchronous=EXTRA"):
            connection.execute(f"PRAGMA {pragma}")
    except MemoryError as error:  # so little is read here that it must be damage: a row that claims to be huge
        connection.close()
        raise sqlite3.DatabaseError("its tables cannot be read") from error
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


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Errors of SQLite and of the format, in a user's words: which file, what is wrong, what to do.

    What they quote from the file is made fit for a terminal.
    """
    try:
        yield
    except Damaged as error:
        raise Damaged(f"{path}: {printable(error, _LONGEST)}; {_rescue(path)}") from error
    except SupSupError as error:
        raise type(error)(f"{path}: {printable(error, _LONGEST)}") from error
    except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite's message may quote the damaged bytes
        raise _translated(error, path) from error
    except OSError as error:
        shown = error.strerror or error
        raise SupSupError(
            f"{path}: cannot be opened ({shown}); look at the permissions of it and its folder"
        ) from error
    except MemoryError as error:
        raise SupSupError(f"{path}: asks for more memory than there is") from error


def is_unfinished(error: sqlite3.Error) -> bool:
    """Whether a file could not be read because a commit to it was broken off."""
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_READONLY_ROLLBACK


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
    if isinstance(error, sqlite3.Error) and is_unfinished(error):
        return SupSupError(f"{path}: its writer died in the middle of a commit; load it again")
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    if code in meanings:
        return SupSupError(f"{path}: {meanings[code]}")
    if code == sqlite3.SQLITE_NOTADB:
        return Damaged(f"{path}: not a supsup model file, or damaged at its beginning; if it is one, {_rescue(path)}")
    return Damaged(f"{path}: the file is damaged ({printable(error)}); {_rescue(path)}")


def _rescue(path: Path) -> str:
    return f"`supsup repair {path.name}` writes the undamaged tasks to a new file"
