"""Things that lie where a model file should lie, or beside one: links, pipes, journals, logs and locks."""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.attack.forging import PAGE, Maker, bystander, case, crashed, sound

MAGIC = bytes.fromhex("d9d505f920a163d7")


def sparse(path: Path) -> None:
    path.write_bytes(sound())
    os.truncate(path, 1 << 40)


case("a terabyte of nothing", sparse, "either")
case("a pipe", lambda path: os.mkfifo(path))
case("a folder", lambda path: path.mkdir())
case("a device", lambda path: path.symlink_to("/dev/zero"))
case("a link to itself", lambda path: path.symlink_to(path))


def linked(path: Path) -> None:
    path.with_name("real").write_bytes(sound())
    path.symlink_to("real")


case("a link to a model", linked, "right")


# Journals: one that a crash left, and the same with one thing wrong.
def journal(name: str, change: Callable[[bytearray], Any], expect: str = "refused") -> None:
    def make(path: Path) -> None:
        crashed(path)
        file = path.with_name(path.name + "-journal")
        content = bytearray(file.read_bytes())
        changed = change(content)
        file.write_bytes(content if changed is None else changed)

    case(f"journal {name}", make, expect)


def put(where: int, what: bytes) -> Callable[[bytearray], None]:
    return lambda content: content.__setitem__(slice(where, where + len(what)), what)


RECORD = 512  # where the first record begins
journal("of a crash", lambda _: None, "right")
journal("magic", put(0, b"\xd9\0"))
journal("of a kind unknown", put(0, b"x" * 28))
journal("many records", put(8, b"\0\xff\xff\xff"))
journal("as many as fit", put(8, b"\xff\xff\xff\xff"), "either")
journal("no records", put(8, b"\0\0\0\0"))
journal("nonce", put(12, b"\1\2\3\4"))
journal("zero pages", put(16, b"\0\0\0\0"))
journal("one page", put(16, b"\0\0\0\1"))
journal("2^32 pages", put(16, b"\xff\xff\xff\xff"))
for number, size in enumerate((0, 1, 3, 33, 2**31)):
    journal(f"sector {number}", put(20, struct.pack(">I", size)))
for number, size in enumerate((0, 512, 4096, 1000)):
    journal(f"page size {number}", put(24, struct.pack(">I", size)))
for number, page in enumerate((0, 10**6, 2**32 - 1)):
    journal(f"page number {number}", put(RECORD, struct.pack(">I", page)))
journal("content", put(RECORD + 4 + 824, b"\xff\xee"))
journal("checksum", put(RECORD + 4 + PAGE, b"\1\2\3\4"))
journal("cut off", lambda content: content[: RECORD + 700])
journal("header alone", lambda content: content[:28])
journal("few bytes", lambda content: content[:5])
journal(
    "a page twice",
    lambda content: content.__setitem__(slice(RECORD + 1032, RECORD + 2064), content[RECORD : RECORD + 1032]),
)


def super_journal(content: bytearray, name: bytes) -> None:
    total = sum(name) & 0xFFFFFFFF
    content += struct.pack(">I", 2**30 // PAGE + 1) + name + struct.pack(">II", len(name), total) + MAGIC


def names_bystander(only: bool) -> Maker:
    """The attack that made SQLite delete any file: the journal says that it was part of a commit to several files."""

    def make(path: Path) -> None:
        crashed(path)
        file = path.with_name(path.name + "-journal")
        content = bytearray(file.read_bytes())
        if only:
            content = bytearray(
                MAGIC + struct.pack(">IIIII", 0, 0, len(path.read_bytes()) // PAGE, 512, PAGE) + bytes(484)
            )
            path.write_bytes(sound())
        super_journal(content, str(bystander(path)).encode())
        file.write_bytes(content)

    return make


case("journal names another file", names_bystander(False))
case("journal only names another file", names_bystander(True))


def planted(name: str, ending: str, make: Callable[[Path, Path], Any], expect: str = "refused") -> None:
    """A sound file, and something beside it."""

    def both(path: Path) -> None:
        path.write_bytes(sound())
        make(path.with_name(path.name + ending), path)

    case(f"planted {name}", both, expect)


def of_another(file: Path, path: Path) -> None:
    other = path.with_name("other")
    crashed(other, "residual")
    other.with_name("other-journal").rename(file)
    other.unlink()


def gigabyte(file: Path, path: Path) -> None:
    file.write_bytes(MAGIC)
    os.truncate(file, 1 << 30)


planted("journal of another model", "-journal", of_another)
planted("empty journal", "-journal", lambda file, _: file.touch(), "right")
planted("finished journal", "-journal", lambda file, _: file.write_bytes(bytes(2000)), "right")
planted("noise as journal", "-journal", lambda file, _: file.write_bytes(b"x" * 3000))
planted("journal that is a link", "-journal", lambda file, path: file.symlink_to(bystander(path)))
planted("journal that is a folder", "-journal", lambda file, _: file.mkdir())
planted("journal that is a pipe", "-journal", lambda file, _: os.mkfifo(file))
planted("journal of a gigabyte", "-journal", gigabyte)
planted("empty log", "-wal", lambda file, _: file.touch())
planted("noise as log", "-wal", lambda file, _: file.write_bytes(b"x" * 3000))
planted("log that is a link", "-wal", lambda file, path: file.symlink_to(bystander(path)))
planted("log that is a pipe", "-wal", lambda file, _: os.mkfifo(file))
planted("index of a log", "-shm", lambda file, _: file.write_bytes(b"x" * 3000), "right")
planted("garbage in the lock", "-writer", lambda file, _: file.write_bytes(b"\0garbage" * 100), "right")
planted("lock that is a link", "-writer", lambda file, path: file.symlink_to(bystander(path)), "right")
planted("lock that is a folder", "-writer", lambda file, _: file.mkdir(), "right")


def real_log(path: Path) -> None:
    """A file with a real write-ahead log that empties it."""
    path.write_bytes(sound())
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("DELETE FROM tasks")
        log = path.with_name(path.name + "-wal").read_bytes()
    path.write_bytes(sound())
    path.with_name(path.name + "-wal").write_bytes(log)


case("planted log that empties it", real_log)
