"""The rollback journal that a crash leaves beside a model file, checked before SQLite may use it.

SQLite plays back any journal it finds. A planted one can empty the file, or name another file that SQLite then deletes.
So SQLite gets a journal only after it was played back here, on a private copy, and proved to belong to the file: the
page size and the checksums are right, it names no other file, and the result agrees with it.
"""

from __future__ import annotations

import os
import stat
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from supsup.file.paths import beside
from supsup.runtime.errors import SupSupError

PAGE = 1024  # bytes; a mask fills its last page by half on average, so small pages waste little
MAGIC = bytes.fromhex("d9d505f920a163d7")  # before every header, and after the name of a super-journal
_HEADER = struct.Struct(">8sIIIII")  # magic, records, nonce, pages of the file before, bytes of a sector and a page
_RECORD = 4 + PAGE + 4  # page number, content, checksum
_AS_MANY_AS_FIT = 0xFFFFFFFF
_CHUNK = 1 << 20
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_Key = tuple[int, int]  # device and inode
_guard = threading.Lock()
_files: dict[_Key, list[HeldFile]] = {}  # open ones, and those that wait for the others


class HeldFile:
    """A file that is held open, to be read beside SQLite; close it after SQLite's connection to it, never before.

    When a process closes any descriptor of a file, POSIX drops all its locks on that file, those of SQLite too. So
    descriptors stay open until the last user of the file in this process is done.
    """

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, _FLAGS)
        status = os.fstat(self.descriptor)
        self._key, self._done = (status.st_dev, status.st_ino), False
        with _guard:
            _files.setdefault(self._key, []).append(self)

    def read(self, count: int) -> bytes:
        """The first bytes of the file."""
        return os.pread(self.descriptor, count, 0)

    def copy_to(self, out: BinaryIO) -> None:
        """Copy all bytes; holes in a sparse file cost nothing."""
        position = self._next_data(0)
        while chunk := os.pread(self.descriptor, _CHUNK, position):
            out.seek(position)
            out.write(chunk)
            position = self._next_data(position + len(chunk))
        out.truncate(os.fstat(self.descriptor).st_size)

    def _next_data(self, start: int) -> int:
        """The first position from `start` on that is not in a hole, else the end of the file."""
        if not hasattr(os, "SEEK_DATA"):
            return start
        try:
            return os.lseek(self.descriptor, start, os.SEEK_DATA)
        except OSError:
            return max(start, os.fstat(self.descriptor).st_size)

    def close(self) -> None:
        """Release the file; the last user closes the descriptors."""
        with _guard:
            self._done = True
            if all(file._done for file in _files[self._key]):
                for file in _files.pop(self._key):
                    os.close(file.descriptor)


class ForeignJournal(SupSupError):
    """A journal that does not belong to the file it lies beside."""


def path_of(path: Path) -> Path:
    """Where SQLite looks for the journal of a file."""
    return beside(path, "-journal")


def check_beside(path: Path) -> None:
    """An error if a file lies beside the model that SQLite would use and that we never write."""
    log = beside(path, "-wal")
    if os.path.lexists(log):
        raise ForeignJournal(f"{log.name} lies beside it, which no model file has; move it away if it is not yours")
    journal = path_of(path)
    with suppress(FileNotFoundError):  # there is none, or a writer has just removed its journal
        if not stat.S_ISREG(journal.lstat().st_mode):
            raise ForeignJournal(f"{journal.name} beside it is not an ordinary file; move it away")


def is_pending(path: Path) -> bool | None:
    """Whether the journal beside a file waits to be played back; None if there is no journal."""
    with suppress(FileNotFoundError), _opened(path_of(path)) as journal:
        return journal.read(1) not in (b"", b"\0")  # just begun, or done: SQLite then overwrites its header
    return None


def copy_rolled_back(file: HeldFile, path: Path, copy: Path) -> None:
    """Copy a file as it was before the commit that its journal belongs to; the file itself is not touched.

    FileNotFoundError if a writer has rolled the file back by now.
    """
    with _opened(path_of(path)) as journal, copy.open("x+b") as out:
        file.copy_to(out)
        if not os.path.samestat(os.fstat(journal.fileno()), path_of(path).lstat()):
            raise FileNotFoundError(journal.name)  # a newer journal: the file was changed meanwhile
        _play_back(journal, out)


def _play_back(journal: BinaryIO, out: BinaryIO) -> None:
    size, present = os.fstat(journal.fileno()).st_size, out.seek(0, os.SEEK_END) // PAGE
    journal.seek(max(0, size - len(MAGIC)))
    if journal.read() == MAGIC:
        raise _foreign("it names another file")
    first = _header_at(journal, 0)
    if first is None:
        raise _foreign("it is not a journal")
    _, _, _, pages, sector, page = first
    if page != PAGE or not 32 <= sector <= 1 << 16 or sector & (sector - 1):
        raise _foreign(f"it is of a file with pages of {page} bytes in sectors of {sector}")
    if pages < 1:
        raise _foreign("it would leave nothing of the file")
    restored: set[int] = set()
    for number, content in _records(journal, size, pages, sector):
        if number in restored:
            raise _foreign(f"it holds page {number} twice")
        restored.add(number)
        out.seek((number - 1) * PAGE)
        out.write(content)
    if any(number not in restored for number in range(present + 1, min(pages, present + len(restored) + 1) + 1)):
        raise _foreign(f"it says that the file had {pages:,} pages, and there are {present:,}")
    out.truncate(pages * PAGE)
    out.seek(28)
    if int.from_bytes(out.read(4), "big") != pages:
        raise _foreign("the file had another size than it says")


def _header_at(journal: BinaryIO, start: int) -> tuple[Any, ...] | None:
    journal.seek(start)
    content = journal.read(_HEADER.size)
    return _HEADER.unpack(content) if len(content) == _HEADER.size and content.startswith(MAGIC) else None


def _records(journal: BinaryIO, size: int, pages: int, sector: int) -> Iterator[tuple[int, bytes]]:
    """(number, content) of every page that was saved before the file was changed: headers, each with its records.

    After the last header come records that were being written; their pages in the file were not changed yet.
    """
    start = 0
    while header := _header_at(journal, start):
        _, count, nonce, before, _, _ = header
        if before != pages:
            raise _foreign("its headers contradict each other")
        journal.seek(start + sector)
        if count == _AS_MANY_AS_FIT:
            count = (size - start - sector) // _RECORD
        for _ in range(count):
            record = journal.read(_RECORD)
            if len(record) < _RECORD:
                raise _foreign("it is cut off")
            number, content = int.from_bytes(record[:4], "big"), record[4:-4]
            if not 1 <= number <= pages:
                raise _foreign(f"it holds page {number} of a file of {pages}")
            if _checksum(content, nonce) != int.from_bytes(record[-4:], "big"):
                raise _foreign("a checksum differs")
            yield number, content
        start = -(-journal.tell() // sector) * sector


def _checksum(content: bytes, nonce: int) -> int:
    return (nonce + sum(content[position] for position in range(PAGE - 200, 0, -200))) & 0xFFFFFFFF


def _opened(journal: Path) -> BinaryIO:
    """Open a journal; links are not followed."""
    return open(journal, "rb", opener=lambda path, _: os.open(path, _FLAGS))


def _foreign(why: str) -> ForeignJournal:
    return ForeignJournal(
        f"the journal beside it does not belong to it ({why}), so nothing was opened or changed; move the journal away "
        "if it is not yours, or let `supsup repair` write the intact tasks to a new file"
    )
