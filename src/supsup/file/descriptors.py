"""Reading a model file beside SQLite: its bytes, without losing the locks that SQLite holds on it.

POSIX locks belong to a process and a file: when a process closes any descriptor of a file, all its locks on that file
are gone. So descriptors stay open until the last user of the file in this process is done.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_Key = tuple[int, int]  # device and inode
_guard = threading.Lock()
_users: dict[_Key, int] = {}
_descriptors: dict[_Key, list[int]] = {}


class Held:
    """A file that is held open; close it after SQLite's connection to the file, never before."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, _FLAGS)
        status = os.fstat(self.descriptor)
        self._key: _Key | None = (status.st_dev, status.st_ino)
        with _guard:
            _users[self._key] = _users.get(self._key, 0) + 1
            _descriptors.setdefault(self._key, []).append(self.descriptor)

    @property
    def size(self) -> int:
        """How many bytes the file has now."""
        return os.fstat(self.descriptor).st_size

    def read(self, count: int, start: int = 0) -> bytes:
        """So many bytes from a position on, fewer at the end of the file."""
        return os.pread(self.descriptor, count, start)

    def next_data(self, start: int) -> int:
        """The first position from `start` on where something was written; the end of the file if there is none."""
        if not hasattr(os, "SEEK_DATA"):
            return start
        try:
            return os.lseek(self.descriptor, start, os.SEEK_DATA)
        except OSError:
            return max(start, self.size)

    def close(self) -> None:
        """Let go; the descriptors are closed with the last user."""
        with _guard:
            if self._key is None:
                return
            _users[self._key] -= 1
            if not _users[self._key]:
                del _users[self._key]
                for descriptor in _descriptors.pop(self._key):
                    os.close(descriptor)
            self._key = None
