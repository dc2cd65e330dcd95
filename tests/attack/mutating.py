"""Random mutations of model files and journals: flipped bits, cuts, swapped pages, spliced files, forged values.

A mutation is a function of its number, so that any of them can be made again.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.attack.forging import (
    BYSTANDER,
    PAGE,
    bystander,
    crashed,
    forged,
    header_of,
    put_header,
    resum,
    safetensors,
    sound,
)

KINDS = ("plain", "plain", "plain", "hop", "hop", "residual")  # of models, the usual one most often
TASKS = (2, 3, 5)  # of other files that pieces are taken from
NUMBERS = (0, 1, -1, 2, 7, 255, 256, 1 << 15, 1 << 31, 1 << 32, 1 << 62, 10**18, 0.5, -0.0, 1e300, 1e-300)
WORDS = ("", "x", "H", "none", "SupSup", "HopSupSup", "lenet_300_100", "\x1b[2J", "\ud800", "../../x", "a" * 3000)
COLUMNS = ("position", "name", "created", "classes", "kept", "codec", "checksum", "extras", "mask")
Bytewise = Callable[[bytearray, random.Random], None]


def mutated(path: Path, number: int) -> tuple[str, str, str]:
    """Make the mutation of this number at a path: what it is, the kind of model, and what must come of loading it.

    That is one of the words of `forging.case`, or "one of them": an error, or one of several sound models.
    """
    chance = random.Random(f"mutation {number}")
    kind, what = chance.choice(KINDS), chance.choice(OFTEN)
    bystander(path).write_bytes(BYSTANDER)
    expect = MUTATIONS[what](path, kind, chance)
    return what, kind, expect


def of_bytes(change: Bytewise, expect: str = "either") -> Callable[[Path, str, random.Random], str]:
    def make(path: Path, kind: str, chance: random.Random) -> str:
        content = bytearray(sound(kind))
        change(content, chance)
        path.write_bytes(content)
        return expect

    return make


def of_journal(change: Bytewise) -> Callable[[Path, str, random.Random], str]:
    def make(path: Path, kind: str, chance: random.Random) -> str:
        crashed(path, kind)
        file = path.with_name(path.name + "-journal")
        content = bytearray(file.read_bytes())
        change(content, chance)
        file.write_bytes(content)
        return "either"

    return make


def flip_bits(content: bytearray, chance: random.Random) -> None:
    for _ in range(chance.choice((1, 1, 1, 2, 5, 50))):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)


def flip_at_the_beginning(content: bytearray, chance: random.Random) -> None:
    for _ in range(chance.choice((1, 1, 2, 4))):
        content[chance.randrange(min(200, len(content)))] ^= 1 << chance.randrange(8)


def overwrite(content: bytearray, chance: random.Random) -> None:
    start, length = chance.randrange(len(content)), chance.choice((1, 2, 4, 8, 60, 1000))
    filler = chance.choice((b"\0", b"\xff", b"\x7f", b"a", None))
    for position in range(start, min(start + length, len(content))):
        content[position] = chance.randrange(256) if filler is None else filler[0]


def cut(content: bytearray, chance: random.Random) -> None:
    del content[chance.randrange(1, len(content)) :]


def cut_out(content: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(content) - 1)
    del content[start : start + chance.choice((1, 7, 100, PAGE))]


def put_in(content: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(content))
    content[start:start] = chance.randbytes(chance.choice((1, 7, 100, PAGE)))


def go_on(content: bytearray, chance: random.Random) -> None:
    content += chance.choice((bytes, chance.randbytes))(chance.choice((1, 100, PAGE, 10 * PAGE)))


def pages(content: bytearray) -> list[slice]:
    return [slice(start, start + PAGE) for start in range(0, len(content) - PAGE + 1, PAGE)]


def swap_pages(content: bytearray, chance: random.Random) -> None:
    one, other = chance.sample(pages(content), 2) if len(pages(content)) > 1 else [slice(0, 8), slice(8, 16)]
    content[one], content[other] = content[other], content[one]


def copy_page(content: bytearray, chance: random.Random) -> None:
    one, other = chance.choice(pages(content)), chance.choice(pages(content))
    content[one] = content[other]


def wipe_page(content: bytearray, chance: random.Random) -> None:
    content[chance.choice(pages(content))] = chance.choice((bytes, chance.randbytes))(PAGE)


def splice(content: bytearray, chance: random.Random) -> None:
    """A piece of another file in the same place, by pages or by bytes."""
    other = sound(chance.choice(KINDS), chance.choice(TASKS))
    unit = chance.choice((1, PAGE))
    start, stop = sorted(unit * chance.randrange(len(content) // unit + 1) for _ in range(2))
    content[start:stop] = other[start:stop]


def spliced_journal(content: bytearray, chance: random.Random) -> None:
    """Pages of another model among the records of a journal."""
    other, start = sound(chance.choice(KINDS), 5), 512 + chance.randrange(3) * (PAGE + 8) + 4
    page = chance.choice(pages(bytearray(other)))
    content[start : start + PAGE] = other[page]


def any_value(chance: random.Random, depth: int = 0) -> Any:
    """A value that JSON has a word for, mostly a strange one."""
    kind = chance.randrange(8 if depth < 3 else 5)
    if kind < 2:
        return chance.choice(NUMBERS)
    if kind < 4:
        return chance.choice(WORDS)
    if kind == 4:
        return chance.choice((None, True, False, float("nan"), float("inf")))
    if kind == 5:
        return {chance.choice(WORDS): any_value(chance, depth + 1) for _ in range(chance.randrange(3))}
    return [any_value(chance, depth + 1) for _ in range(chance.choice((0, 1, 2, 3, 20)))]


def change_somewhere(value: Any, chance: random.Random) -> Any:
    """The same with one value in it changed, added, doubled or left out."""
    if not isinstance(value, dict | list) or not value or chance.random() < 0.1:
        return any_value(chance)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = chance.choice(keys)
    turn = chance.random()
    if turn < 0.1:
        del value[key]
    elif turn < 0.15:
        if isinstance(value, list):
            value.append(value[key])
        else:
            value[chance.choice(WORDS)] = any_value(chance)
    else:
        value[key] = change_somewhere(value[key], chance)
    return value


def header_with_right_checksums(path: Path, kind: str, chance: random.Random) -> str:
    def change(connection: sqlite3.Connection) -> None:
        text = json.dumps(change_somewhere(header_of(connection), chance))
        if chance.random() < 0.05:
            text = text[: chance.randrange(len(text))]
        put_header(connection, text)

    forged(path, change, kind)
    return "other"


def record_with_right_checksums(path: Path, kind: str, chance: random.Random) -> str:
    def change(connection: sqlite3.Connection) -> None:
        column = chance.choice(COLUMNS)
        columns = chance.choice(COLUMNS) if chance.random() < 0.1 else column
        where = chance.randrange(3)
        row = connection.execute(f"SELECT {column} FROM tasks WHERE position = ?", (where,)).fetchone()
        with suppress(sqlite3.Error, UnicodeEncodeError, OverflowError):
            value = other_value(row[0] if row else None, chance)
            connection.execute(f"UPDATE tasks SET {columns} = ? WHERE position = ?", (value, where))
        with suppress(sqlite3.Error, TypeError, ValueError):
            resum(connection, where)

    forged(path, change, kind)
    return "other"


def other_value(value: Any, chance: random.Random) -> Any:
    """In place of a value in a table: other bytes, another number, another type."""
    if isinstance(value, bytes) and chance.random() < 0.7 and len(value) > 8:
        content = bytearray(value)
        chance.choice((flip_bits, overwrite, cut, cut_out, put_in, go_on))(content, chance)
        return bytes(content)
    choices = (*NUMBERS, *WORDS, None, chance.randbytes(20), safetensors({"x": any_value(chance)}))
    return chance.choice(choices)


def tables(path: Path, kind: str, chance: random.Random) -> str:
    """By any program that knows SQLite, without right checksums."""
    lines = (
        f"DELETE FROM tasks WHERE position = {chance.randrange(3)}",
        f"UPDATE tasks SET position = position + {chance.choice((1, 5, 1 << 40))}",
        f"UPDATE tasks SET position = {chance.randrange(9)} WHERE position = {chance.randrange(3)}",
        "UPDATE tasks SET name = (SELECT name FROM tasks WHERE position = 1)",
        f"UPDATE tasks SET mask = (SELECT mask FROM tasks WHERE position = {chance.randrange(3)})",
        f"UPDATE tasks SET checksum = (SELECT checksum FROM tasks WHERE position = {chance.randrange(3)})",
        f"UPDATE tasks SET extras = zeroblob({chance.choice((0, 1, 9, 10**6))})",
        f"UPDATE {chance.choice(('model', 'spare'))} SET tasks = zeroblob(16)",
        f"UPDATE {chance.choice(('model', 'spare'))} SET header = 'x' || header",
        f"DELETE FROM {chance.choice(('model', 'spare'))}",
        "INSERT INTO model SELECT 2, header, tasks, checksum FROM model",
        f"INSERT INTO reference VALUES (1, '[]', 'bits', zeroblob({chance.choice((0, 900, 10**6))}))",
        "CREATE TABLE more (x)",
        "CREATE VIEW seen AS SELECT * FROM tasks",
        "CREATE TRIGGER t AFTER INSERT ON tasks BEGIN DELETE FROM tasks; END",
        f"PRAGMA user_version={chance.choice((0, 1, 2, 3, -1, 99))}",
        f"PRAGMA application_id={chance.choice((0, 1, 0x53555053))}",
        "PRAGMA auto_vacuum=FULL",
        "VACUUM",
    )

    def change(connection: sqlite3.Connection) -> None:
        for line in chance.sample(lines, chance.choice((1, 1, 2))):
            with suppress(sqlite3.Error):
                connection.execute(line)

    forged(path, change, kind)
    return "either"


def beside(path: Path, kind: str, chance: random.Random) -> str:
    """Something that SQLite could take for its own, beside a file that may be damaged as well."""
    content = bytearray(sound(kind))
    if chance.random() < 0.3:
        flip_bits(content, chance)
    path.write_bytes(content)
    planted = chance.choice((b"", bytes(600), chance.randbytes(600), bytes.fromhex("d9d505f920a163d7") + bytes(700)))
    path.with_name(path.name + chance.choice(("-journal", "-wal", "-shm", "-writer"))).write_bytes(planted)
    return "either"


MUTATIONS: dict[str, Callable[[Path, str, random.Random], str]] = {
    "bits": of_bytes(flip_bits),
    "bits at the beginning": of_bytes(flip_at_the_beginning),
    "overwritten": of_bytes(overwrite),
    "cut off": of_bytes(cut),
    "cut out": of_bytes(cut_out),
    "put in": of_bytes(put_in),
    "longer": of_bytes(go_on),
    "pages swapped": of_bytes(swap_pages),
    "page copied": of_bytes(copy_page),
    "page wiped": of_bytes(wipe_page),
    "spliced": of_bytes(splice, "one of them"),
    "journal: bits": of_journal(flip_bits),
    "journal: bits at the beginning": of_journal(flip_at_the_beginning),
    "journal: overwritten": of_journal(overwrite),
    "journal: cut off": of_journal(cut),
    "journal: cut out": of_journal(cut_out),
    "journal: put in": of_journal(put_in),
    "journal: longer": of_journal(go_on),
    "journal: spliced": of_journal(spliced_journal),
    "header, checksums right": header_with_right_checksums,
    "task, checksums right": record_with_right_checksums,
    "tables": tables,
    "beside": beside,
}
# The others often leave a file that is as good as before, and reading one that is takes longest.
OFTEN = [
    *MUTATIONS,
    *(name for name in MUTATIONS if name not in ("longer", "beside") and not name.startswith("journal")),
]
