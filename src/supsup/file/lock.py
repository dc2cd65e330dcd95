"""One writer at a time: a lock that the operating system holds for a process and lets go of when that process dies.

It lies on an empty file beside the model. The file goes with the writer, so whoever gets the lock looks whether the
file is still the one at its path; if not, the lock means nothing, and the next file is tried.
"""

from __future__ import annotations

import io
import os
import stat
import sys
from contextlib import suppress
from pathlib import Path

from supsup.file.paths import beside
from supsup.runtime.errors import SupSupError
from supsup.runtime.interrupts import uninterrupted

_TRIES = 100  # each fails only because another writer has just let go
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)

if sys.platform == "win32":
    import msvcrt

    def _lock(handle: int) -> None:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)

    def _unlock(handle: int) -> None:
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)
else:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_UN)


class WriterLock:
    """Held by the one model that writes to a file; a forked child neither holds it nor can let go of it.

    An interrupt may come before its owner has it in hand. It is then let go of with the last reference to it, as any
    open file is: `io` does that, and no signal comes between.
    """

    def __init__(self, path: Path) -> None:
        self._file = beside(path, "-writer")
        self._process = os.getpid()
        with uninterrupted():
            for _ in range(_TRIES):
                self._open = _open(self._file, path)
                try:
                    _lock(self._open.fileno())
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
                        f"{path} cannot be locked ({error}); save to a file system that has locks, such as a local disk"
                    ) from error
                self._open.close()
        raise SupSupError(f"{path} is being written by many at once; try again later")

    @property
    def is_mine(self) -> bool:
        """Whether this process took the lock, and not one that it was forked from."""
        return os.getpid() == self._process

    def release(self) -> None:
        """Let go; a second time does nothing."""
        with uninterrupted():
            if self.is_mine and not self._open.closed:
                with suppress(OSError):
                    if self._still_there() and os.fstat(self._open.fileno()).st_size == 0:  # else it is not ours
                        self._file.unlink()
                with suppress(OSError):
                    _unlock(self._open.fileno())  # a forked child may have the handle open for long
            self._open.close()

    def _still_there(self) -> bool:
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self._open.fileno()), os.lstat(self._file))
        return False


def _open(file: Path, path: Path) -> io.FileIO:
    try:
        try:
            handle = os.open(file, os.O_RDWR | os.O_CREAT | _FLAGS, 0o666)
        except PermissionError:  # left there by another user's crash; a lock does not need more
            handle = os.open(file, os.O_RDONLY | _FLAGS)
    except OSError as error:
        raise SupSupError(
            f"{path} cannot be written: its lock {file.name} cannot be made in its folder ({error.strerror}); "
            "make the folder writable or save to another one"
        ) from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise SupSupError(f"{path} cannot be written: {file.name} beside it is not an ordinary file; remove it")
    return io.FileIO(handle)
