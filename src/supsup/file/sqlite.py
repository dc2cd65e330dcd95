"""SQLite as a model file needs it: careful connections, transactions, clear errors, and a lock for the one writer.

A rollback journal rather than a write-ahead log: between commits there is one file and no other, it can be copied and
read from read-only media, and readers wait a few milliseconds only while a commit is written.

The writer's lock lies on an empty file beside the model. The operating system holds it for a process and releases it
when the process dies. The writer deletes that file at the end, so whoever gets the lock checks that the file is still
the one at its path; if not, the lock means nothing, and the next file is tried.
"""

from __future__ import annotations

import fcntl
import io
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from supsup.file.paths import beside
from supsup.runtime.errors import Damaged, SupSupError, printable
from supsup.runtime.interrupts import uninterrupted

_LONGEST = 2000  # characters of a message
_WAIT = 30.0  # seconds that readers and a commit wait for each other
_TRIES = 100  # to take the lock; each fails only because another writer has just released it
_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK


def connect(path: Path, mode: Literal["ro", "rw", "rwc"]) -> sqlite3.Connection:
    """A connection that runs no code from the file; with "ro" it writes nothing and rolls back no broken commit."""
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode={mode}", uri=True, timeout=_WAIT, isolation_level=None, check_same_thread=False
    )
    try:
        for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "secure_delete=ON", "synchronous=EXTRA"):
            connection.execute(f"PRAGMA {pragma}")
    except MemoryError as error:  # so little is read here that it must be damage: a row with a huge declared size
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
def explain_errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and of the format into messages for the user: which file, what is wrong, what to do.

    Text quoted from the file is escaped for a terminal.
    """
    try:
        yield
    except SupSupError as error:
        hint = f"; {_repair_hint(path)}" if isinstance(error, Damaged) else ""
        raise type(error)(f"{path}: {printable(error, _LONGEST)}{hint}") from error
    except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite's message may quote the damaged bytes
        raise _translated(error, path) from error
    except OSError as error:
        reason = error.strerror or error
        raise SupSupError(f"{path}: cannot be opened ({reason}); check the permissions of it and its folder") from error
    except MemoryError as error:
        raise SupSupError(f"{path}: needs more memory than there is") from error


def is_unfinished(error: sqlite3.Error) -> bool:
    """Whether a file could not be read because a commit to it was interrupted."""
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_READONLY_ROLLBACK


def _translated(error: Exception, path: Path) -> SupSupError:
    permissions = "cannot be opened; check the permissions of the file and its folder"
    meanings = {
        sqlite3.SQLITE_FULL: "the disk is full; free some space and save again, nothing in the file is lost",
        sqlite3.SQLITE_READONLY: "is read-only or was moved away; make it writable or save to another file",
        sqlite3.SQLITE_BUSY: "another process reads or writes it; try again when that is done",
        sqlite3.SQLITE_CANTOPEN: permissions,
        sqlite3.SQLITE_PERM: permissions,
        sqlite3.SQLITE_IOERR: f"could not be read or written ({error}); check the disk and try again",
    }
    if isinstance(error, sqlite3.Error) and is_unfinished(error):
        return SupSupError(f"{path}: its writer died in the middle of a commit; load it again")
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    if code in meanings:
        return SupSupError(f"{path}: {meanings[code]}")
    if code == sqlite3.SQLITE_NOTADB:
        return Damaged(
            f"{path}: not a supsup model file, or damaged at its beginning; if it is one, {_repair_hint(path)}"
        )
    return Damaged(f"{path}: the file is damaged ({printable(error)}); {_repair_hint(path)}")


def _repair_hint(path: Path) -> str:
    return f"`supsup repair {path.name}` writes the undamaged tasks to a new file"


class WriterLock:
    """Held by the one model that writes to a file; a forked child neither holds it nor can release it.

    An interrupt may come before the caller has stored the lock in a variable. It is then released with the last
    reference to it, as any open file is: `io` does that, and no signal comes between.
    """

    def __init__(self, path: Path) -> None:
        self._file = beside(path, "-writer")
        self._process = os.getpid()
        with uninterrupted():
            for _ in range(_TRIES):
                self._open = _open(self._file, path)
                try:
                    fcntl.flock(self._open, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if self._still_there():
                        return
                except (BlockingIOError, PermissionError) as error:
                    self._open.close()
                    raise SupSupError(
                        f"{path} is being written by another process or model; close it there first, "
                        "or load it without in_place=True to read only"
                    ) from error
                except OSError as error:
                    self._open.close()
                    raise SupSupError(
                        f"{path} cannot be locked ({error}); save to a file system with locks, such as a local disk"
                    ) from error
                self._open.close()
        raise SupSupError(f"{path} is being written by many processes at once; try again later")

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        with uninterrupted():
            if os.getpid() == self._process and not self._open.closed:  # not in a process that was forked
                with suppress(OSError):
                    if self._still_there() and os.fstat(self._open.fileno()).st_size == 0:  # otherwise it is not ours
                        self._file.unlink()
                with suppress(OSError):
                    fcntl.flock(self._open, fcntl.LOCK_UN)  # a forked child may have the handle open for long
            self._open.close()

    def _still_there(self) -> bool:
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self._open.fileno()), os.lstat(self._file))
        return False


def _open(file: Path, path: Path) -> io.FileIO:
    try:
        try:
            handle = os.open(file, os.O_RDWR | os.O_CREAT | _FLAGS, 0o666)
        except PermissionError:  # left by another user's crash; a lock needs no more than that
            handle = os.open(file, os.O_RDONLY | _FLAGS)
    except OSError as error:
        raise SupSupError(
            f"{path} cannot be written: its lock {file.name} cannot be created in its folder ({error.strerror}); "
            "make the folder writable or save to another one"
        ) from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise SupSupError(f"{path} cannot be written: {file.name} beside it is not an ordinary file; remove it")
    return io.FileIO(handle)
