"""Crafted model files: what somebody may hand over in place of a model, each made by a few lines."""

from __future__ import annotations

import hashlib
import json
import math
import random
import sqlite3
import struct
from functools import partial
from pathlib import Path
from typing import Any

from tests.attack.forging import (
    PAGE,
    Maker,
    case,
    change_header,
    change_record,
    forged,
    header_of,
    put_header,
    safetensors,
    sound,
    statements,
)

NAN = math.nan


def sql(name: str, *lines: str, expect: str = "refused", kind: str = "plain") -> None:
    case(name, lambda path: forged(path, statements(*lines), kind), expect, kind)


def header(name: str, expect: str = "refused", /, *, of: str = "plain", **changes: Any) -> None:
    case(f"header {name}", lambda path: forged(path, change_header(**changes), of), expect, of)


def record(
    name: str, expect: str = "refused", /, *, of: str = "plain", packed: bytes | None = None, **changes: Any
) -> None:
    case(f"record {name}", lambda path: forged(path, change_record(0, packed, **changes), of), expect, of)


# Headers: every field of another kind or beyond any range, under right checksums.
value: Any
for number, value in enumerate((None, "x", 1.5, True, [], {})):
    header(f"seed {number}", seed=value)
header("seed beyond 64 bits", "other", seed=2**70)
for number, value in enumerate((None, 5, "", ["x"])):
    header(f"weights {number}", weights=value)
TWO = "layers.0.weight", "layers.1.weight"
SHAPES: dict[str, Any] = {
    "none": {}, "list": [], "of text": {TWO[0]: "x"}, "negative": {TWO[0]: [-5, 2]}, "zero": {TWO[0]: [0, 5]},
    "fractions": {TWO[0]: [2.5, 4]}, "booleans": {TWO[0]: [True, True]}, "huge": {TWO[0]: [10**9] * 4},
    "2^32 bits": {TWO[0]: [65536, 65536]}, "2^30 bits": {TWO[0]: [32768, 32768]}, "deep": {TWO[0]: [1] * 1000},
    "long numbers": {TWO[0]: [10**4000]}, "many": {f"w{n}": [1] for n in range(20_000)},
    "others": {TWO[0]: [40, 60], TWO[1]: [40, 8]}, "other order": {TWO[1]: [8, 40], TWO[0]: [40, 60]},
}  # fmt: skip
for name, value in SHAPES.items():
    header(f"shapes {name}", shapes=value)
FC = "FullyConnected"
ARCHITECTURES: dict[str, Any] = {
    "unknown": {"name": "os.system", "arguments": {"command": "true"}}, "no name": {"arguments": {}}, "text": "x",
    "name is a list": {"name": [], "arguments": {}}, "arguments are a list": {"name": FC, "arguments": []},
    "one key more": {"name": FC, "arguments": {"widths": [60, 40, 8]}, "more": 1},
    "another keyword": {"name": FC, "arguments": {"colour": 1}},
    "widths are text": {"name": FC, "arguments": {"widths": "abc"}},
    "widths are fractions": {"name": FC, "arguments": {"widths": [60, 40.5, 8]}},
    "widths are lists": {"name": FC, "arguments": {"widths": [[60], [8]]}},
    "widths are negative": {"name": FC, "arguments": {"widths": [60, -40, 8]}},
    "widths are long": {"name": FC, "arguments": {"widths": [10**30, 10**30]}},
    "other widths": {"name": FC, "arguments": {"widths": [60, 41, 8]}},
    "20,000 layers": {"name": FC, "arguments": {"widths": [1] * 20_000}},
    "10^9 blocks": {"name": "ResNet", "arguments": {"outputs": 2, "blocks": [10**9], "widths": [1]}},
    "10^8 blocks": {"name": "ResNet", "arguments": {"outputs": 2, "blocks": [10**4] * 10**4, "widths": [1] * 10**4}},
    "blocks are text": {"name": "ResNet", "arguments": {"outputs": 2, "blocks": "ab", "widths": "cd"}},
    "another kind": {"name": "HopMLP", "arguments": {"widths": [60, 40, 8]}},
}  # fmt: skip
for name, value in ARCHITECTURES.items():  # another kind may compute something else from the same weights
    header(f"architecture {name}", "other" if name == "another kind" else "refused", architecture=value)
header("architecture missing", architecture=None)
header(
    "network of 4 GiB", architecture={"name": FC, "arguments": {"widths": [32768, 32768]}}, shapes={TWO[0]: [32768] * 2}
)
header(
    "network of 400 MB", architecture={"name": FC, "arguments": {"widths": [10**4] * 2}}, shapes={TWO[0]: [10**4] * 2}
)
SETTINGS: dict[str, dict[str, list[Any]]] = {
    "recipe": {"steps": [10**15, 0, "x", None, NAN, [1], {}], "batch_size": [10**12], "epochs": [10**9], "colour": [1],
               "learning_rate": [NAN, math.inf, "x", None], "optimiser": [5, "x", []], "density": [10**400]},
    "inference": {"steps": [10**15, 10_001, "x"], "method": ["x", 5], "layers": [5, [5], ["x"] * 20_000],
                  "gamma": [NAN, "x"], "step_size": [NAN], "objective": [[], "x"]},
    "allocation": {"floor": [10**9, "x"], "every": [-1, 10**12, None], "deviations": [NAN]},
}  # fmt: skip
for kind, names in SETTINGS.items():
    for name, values in names.items():
        for number, value in enumerate(values):
            allowed = "other" if (kind, name, value) in [("inference", "layers", 5)] else "refused"
            changes: dict[str, Any] = {kind: {name: value} if kind != "recipe" else {"steps": 2, name: value}}
            header(f"{kind} {name} {number}", allowed, **changes)
for name in ("recipe", "inference", "allocation", "notes", "details", "kind", "created", "library", "pretrained"):
    change: dict[str, Any] = {name: 5}
    header(f"{name} is a number", **change)
for number, value in enumerate(("x", [0], [1.5], [10**6, 10**6], [[]], {}, 5)):
    header(f"image_shape {number}", image_shape=value)
header("another kind of model", kind="Brain", details={})
header("the other kind of model", kind="HopSupSup", details={})
header("one field more", more=1)
TEXTS = {
    "no JSON": "{", "a list": "[]", "a number": "5", "nothing": "", "deep": "[" * 100_000,
    "deep and closed": "[" * 90_000 + "]" * 90_000,
    "long number": '{"seed": ' + "9" * 5000 + "}", "17 million characters": '{"seed": "' + "x" * 17_000_000 + '"}',
    "escapes": '{"\\u001b[2J": "\\u001b]0;gone\\u0007"}', "surrogates": '{"seed": "\\ud800"}',
}  # fmt: skip
for name, text in TEXTS.items():
    case(f"header text {name}", partial(forged, change=partial(put_header, text=text)))


def notes_of_depth(depth: int) -> dict[str, Any]:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return {"deep": value}


header("notes 100 deep", notes=notes_of_depth(100))
sql("header as bytes", "UPDATE model SET header = CAST(header AS BLOB)")
sql("header twice", "INSERT INTO model SELECT 2, header, tasks, checksum FROM model")
sql("no header", "DELETE FROM model", "DELETE FROM spare")
sql("a spare header alone", "DELETE FROM model")

# Records.
for number, literal in enumerate(("X'7461'", "''", "zeroblob(0)", "5.5")):
    sql(f"record name {number}", f"UPDATE tasks SET name = {literal} WHERE position = 0")
record("name with escapes", "other", name="\x1b[2J\x1b]0;gone\x07")
record("name of a million characters", "other", name="x" * 1_000_000)
record("name with NUL", "other", name="a\0b")
record("name of another task", "forged", name="task-1")
for number, value in enumerate((-1, 2**40, "x", 2.5)):
    record(f"classes {number}", classes=value)
record("kept", "other", kept=-5)
record("created", "other", created=5)
for number, value in enumerate(("", "x", "mean-1+bits", "mean-1+mean-1+bits", "ans-2", 5)):
    record(f"codec {number}", codec=value)
sql("record checksum short", "UPDATE tasks SET checksum = X'0102'")
record("mask empty", mask=b"")
record("mask one byte", codec="ans-1", mask=b"\0")
record("mask two bytes", "other", codec="ans-1", mask=b"\0\x80", packed=b"\0" * 300 + b"\xff" * 40)
record("mask of words", codec="ans-1", mask=b"\x50\x50" + b"\xff" * 40)
record("mask odd", codec="ans-1", mask=b"\x50\x50\1")
record("mask as it is, missing", codec="ans-1", mask=b"\x7f\x7f" + b"\0" * 4)
record("mask long", mask=b"\0" * 100_000)
record("position last", "other", position=2**63 - 1)
record("position negative", position=-7)
EXTRAS = {
    "garbage": b"garbage", "short": b"\1", "no JSON": safetensors(b"{{{"),
    "longer than all": safetensors(b"{}", length=2**63 - 1),
    "list": safetensors([]), "deep": safetensors(b'{"x":' * 50_000 + b'"dtype"'),
    "unknown dtype": safetensors({"x": {"dtype": "Q9", "shape": [1], "data_offsets": [0, 4]}}, b"1234"),
    "negative shape": safetensors({"x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"1234"),
    "huge shape": safetensors({"x": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 4]}}, b"1234"),
    "overflow": safetensors({"x": {"dtype": "F32", "shape": [2**32, 2**32], "data_offsets": [0, 0]}}),
    "empty and huge": safetensors({"x": {"dtype": "F32", "shape": [0, 2**60], "data_offsets": [0, 0]}}),
    "beyond the end": safetensors({"x": {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]}}, b"1234"),
    "backwards": safetensors({"x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, b"1234"),
    "statistics": safetensors({"statistics/x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"1234"),
    "metadata of numbers": safetensors({"__metadata__": {"network": 5}}),
}  # fmt: skip
for name, extras in EXTRAS.items():
    record(f"extras {name}", "other", extras=extras)
PLAIN = {"gain": "AACAPw==", "offset": "AAAAAA==", "channels_last": False, "tokens": False}  # · 1 + 0
OWN: dict[str, Any] = {
    "number": 5, "no JSON": "{{{", "list": "[]", "deep": "[" * 50_000, "long": " " * (5 << 20),
    "names missing": {"names": ["a"]}, "names twice": {"names": ["a", "a", "b"]}, "names of names": {"names": "abc"},
    "names nested": {"names": [[[[[[["a"]]]]]], "b", "c"]}, "names huge": '{"names":[1,2,1' + "0" * 4500 + "]}",
    "names endless": {"names": ["a", "b", "c" * 100_000]}, "names of mappings": {"names": [{}, {}, {}]},
    "gain of another length": {"inputs": PLAIN | {"gain": ["AACAPwAAgD8="], "offset": ["AACAPwAAgD8="]}},
    "gain not finite": {"inputs": PLAIN | {"gain": "AACAfw=="}}, "gain no number": {"inputs": PLAIN | {"gain": 1e300}},
    "gain empty": {"inputs": PLAIN | {"gain": "", "offset": ""}}, "flags": {"inputs": PLAIN | {"tokens": "yes"}},
    "recipe beyond range": {"recipe": {"steps": 10**12}}, "recipe nested": {"recipe": {"steps": {"a": [1]}}},
}  # fmt: skip
for name, value in OWN.items():
    written = value if isinstance(value, str | int) else json.dumps(value)
    record(f"facts {name}", extras=safetensors({"__metadata__": {"task": written}}))
TOKENS = json.dumps({"inputs": PLAIN | {"tokens": True}})
record("facts tokens", "other", extras=safetensors({"__metadata__": {"task": TOKENS}}))
sql(
    "masks swapped",
    "UPDATE tasks SET mask = (SELECT mask FROM tasks t WHERE t.position = 1 - tasks.position) WHERE position < 2",
)
sql("names swapped", "UPDATE tasks SET name = iif(position = 0, 'task-1', 'task-0') WHERE position < 2")
sql("names shifted", "UPDATE tasks SET name = 'task-' || ((position + 1) % 3)")
sql("a task renamed", "UPDATE tasks SET name = 'mine' WHERE position = 2")
sql("a task deleted", "DELETE FROM tasks WHERE position = 1")
sql(
    "a task twice",
    "INSERT INTO tasks SELECT 9, name, created, classes, kept, codec, checksum, extras, mask FROM tasks LIMIT 1",
)
sql("a task moved", "UPDATE tasks SET position = 9 WHERE position = 0")
sql("all tasks deleted", "DELETE FROM tasks")
SHIFTED = "UPDATE tasks SET name = 'task-' || ((position + 1) % 3)"


def shifted_and_signed(connection: sqlite3.Connection) -> None:
    """Names moved by one, the digest of the table made right: only the checksums of the tasks can tell."""
    connection.execute(SHIFTED)
    put_header(connection, json.dumps(header_of(connection)))


case("names shifted, the table signed", lambda path: forged(path, shifted_and_signed))


def many_empty(connection: sqlite3.Connection, side: int, tasks: int) -> None:
    """Very many masks of one byte each, for a network of side² weights."""
    values = header_of(connection) | {"shapes": {TWO[0]: [side, side]}, "architecture": None}
    connection.execute("DELETE FROM tasks")
    row = ("now", 2, 0, "ans-1", b"x" * 16, b"", b"\0")
    connection.execute("BEGIN")
    connection.executemany(
        "INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", [(n, f"task-{n}", *row) for n in range(tasks)]
    )
    connection.execute("COMMIT")
    put_header(connection, json.dumps(values))


case("many empty masks", lambda path: forged(path, lambda c: many_empty(c, 30_000, 20_000)))
case("one mask of one byte", lambda path: forged(path, lambda c: many_empty(c, 65_536, 1)))


# The mean that masks are coded against.
def put_reference(connection: sqlite3.Connection, row: tuple[str, str, bytes]) -> None:
    connection.execute("INSERT INTO reference VALUES (1, ?, ?, ?)", row)


for name, members, codec, levels in (
    ("no JSON", "[", "bits", b""), ("deep", "[" * 100_000, "bits", b""), ("unknown codec", "[]", "x", b""),
    ("nothing", "[]", "ans-1", b""), ("bytes", "[]", "ans-1", b"\0" * 7), ("escapes", '"\\u001b[2J"', "\x1b[2J", b""),
    ("of numbers", "[1, 2]", "ans-1", b"\0" * 6), ("no list", "5", "ans-1", b"\0" * 6),
):  # fmt: skip
    case(f"reference {name}", partial(forged, change=partial(put_reference, row=(members, codec, levels))), "either")


def huge_reference(connection: sqlite3.Connection, side: int) -> None:
    connection.execute("INSERT INTO reference VALUES (1, '[]', 'ans-1', ?)", (b"\0" * 3,))
    connection.execute("DELETE FROM tasks")
    put_header(connection, json.dumps(header_of(connection) | {"shapes": {TWO[0]: [side, side]}, "architecture": None}))


case("reference of 10^9 weights", lambda path: forged(path, lambda c: huge_reference(c, 31_000)))
case("reference of 10^8 weights", lambda path: forged(path, lambda c: huge_reference(c, 10_000)))


# Statistics that no training gives, under right checksums.
def statistics(value: float, which: str) -> Maker:
    def change(connection: sqlite3.Connection) -> None:
        (extras,) = connection.execute("SELECT extras FROM tasks WHERE position = 0").fetchone()
        end = 8 + int.from_bytes(extras[:8], "little")
        tensors = {k: v for k, v in json.loads(extras[8:end]).items() if k.endswith(which)}
        data = bytearray(extras[end:])
        start = next(iter(tensors.values()))["data_offsets"][0]
        data[start : start + 4] = struct.pack("<f", value)
        (mask,) = connection.execute("SELECT mask FROM tasks WHERE position = 0").fetchone()
        change_record(0, mask, extras=extras[:end] + bytes(data))(connection)

    return lambda path: forged(path, change, "residual")


for name, value in (("NaN", NAN), ("infinite", math.inf)):
    case(f"statistics {name}", statistics(value, "running_mean"), kind="residual")
case("variance negative", statistics(-1.0, "running_var"), kind="residual")
record("statistics missing", of="residual", extras=b"")

# What SQLite can hold besides our tables.
sql("a view", "CREATE VIEW more AS SELECT 1")
sql("a trigger", "CREATE TRIGGER t AFTER INSERT ON tasks BEGIN DELETE FROM tasks; END")
sql("an index", "CREATE INDEX i ON tasks (name)")
sql("another table", "CREATE TABLE more (x)")
sql("tasks is a view", "ALTER TABLE tasks RENAME TO old", "CREATE VIEW tasks AS SELECT * FROM old")
sql("a generated column", "ALTER TABLE tasks ADD COLUMN twice AS (mask || mask)")
sql(
    "columns of other types",
    "DROP TABLE tasks",
    "CREATE TABLE tasks (position, name, created, classes, kept, codec, checksum, extras, mask)",
)
sql("no tables", "DROP TABLE tasks", "DROP TABLE model", "DROP TABLE spare", "DROP TABLE reference")
sql("another program", "PRAGMA application_id=5")
for version in (-1, 0, 2, 3, 2**31 - 1):
    sql(f"format {version}", f"PRAGMA user_version={version}")
EDIT = "PRAGMA writable_schema=ON"
sql("tables on one page", EDIT, "UPDATE sqlite_schema SET rootpage = 2 WHERE name = 'tasks'")
sql("a table on no page", EDIT, "UPDATE sqlite_schema SET rootpage = 0 WHERE name = 'tasks'")
sql("a table far away", EDIT, "UPDATE sqlite_schema SET rootpage = 1000000 WHERE name = 'tasks'")
sql("a schema of escapes", EDIT, "UPDATE sqlite_schema SET sql = char(27) || '[2J' WHERE name = 'tasks'")
sql("in UTF-16", "PRAGMA encoding='UTF-16le'", expect="right")


def patched(name: str, *changes: tuple[int, bytes], expect: str = "refused") -> None:
    def make(path: Path) -> None:
        content = bytearray(sound())
        for where, what in changes:
            content[where : where + len(what)] = what
        path.write_bytes(content)

    case(f"bytes {name}", make, expect)


def cut(path: Path, count: int) -> None:
    path.write_bytes(sound()[:count])


for size in (0, 1, 2, 3, 512, 4096, 65535):
    patched(f"page size {size}", (16, struct.pack(">H", size)))
patched("write-ahead log", (18, b"\2\2"))
patched("a later write version", (18, b"\5\1"))
patched("a later read version", (18, b"\1\5"))
patched("reserved", (20, b"\xff"))
patched("text encoding", (56, b"\0\0\0\7"))
patched("size of 2^32 pages", (28, b"\xff\xff\xff\xff"))
patched("size of one page", (28, b"\0\0\0\1"))
patched("free list", (32, b"\0\0\0\2\0\0\xff\xff"), expect="either")
patched("schema format", (44, b"\0\0\0\x09"))
for page in range(2, 6):
    patched(f"page {page} zero", ((page - 1) * PAGE, bytes(PAGE)), expect="either")
    cells = b"".join(struct.pack(">H", 0x300 + 8 * n) for n in range(3))
    root = b"\5" + bytes(2) + b"\0\3" + b"\3\0" + b"\0" + page.to_bytes(4, "big") + cells
    children = b"".join(page.to_bytes(4, "big") + bytes([n + 1]) + bytes(3) for n in range(3))
    start = (page - 1) * PAGE
    patched(f"page {page} its own child", (start, root), (start + 0x300, children), expect="either")
for share in range(1, 12):
    case(f"cut to {share} of 12", partial(cut, count=len(sound()) * share // 12))
for count in (1, 15, 16, 50, 99, 100, 101, PAGE - 1, PAGE, PAGE + 1):
    case(f"the first {count} bytes", partial(cut, count=count))
chance = random.Random(0)
for number in range(20):
    where, what = chance.randrange(len(sound()) - 9), chance.randbytes(9)
    patched(f"overwritten {number}", (where, what), expect="either")
case("empty", lambda path: path.touch())
case("a picture", lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(5000)))
case("zeros", lambda path: path.write_bytes(bytes(5000)))
case("noise", lambda path: path.write_bytes(random.Random(1).randbytes(9000)))


# HopSupSup: the tasks lie in the header.
def hop(name: str, expect: str = "refused", /, **changes: Any) -> None:
    def change(connection: sqlite3.Connection) -> None:
        values = header_of(connection)
        put_header(connection, json.dumps(values | {"details": values["details"] | changes}))

    case(f"hop {name}", lambda path: forged(path, change, "hop"), expect, "hop")


hop("10^9 classes", tasks=[["a", 10**9, "now"]])
hop("more classes than outputs", tasks=[["a", 5, "now"], ["b", 4, "now"]])
hop("classes negative", tasks=[["a", -5, "now"]])
hop("classes of text", tasks=[["a", "x", "now"]])
hop("a name twice", tasks=[["a", 1, "now"], ["a", 1, "now"]])
hop("tasks are text", tasks="abc")
hop("tasks of four", tasks=[["a", 1, "now", 4]])
hop("rule", rule="x")
hop("facts are a list", facts=[])
hop("facts are numbers", facts={"task-0": 3})
hop("facts are no JSON", facts={"task-0": "{{{"})
hop("facts name other classes", facts={"task-0": '{"names":["a"]}'})
hop("facts of nobody", "other", facts={"nobody": '{"names":["a"]}'})
hop("rule is a list", rule=[])
hop("recovery is a list", recovery=[])
hop("10^12 starts", recovery={"starts": 10**12})
hop("10^12 steps", recovery={"least_steps": 10**12})
hop("NaN", recovery={"learning_rate": NAN})
WIDE = {"shapes": {"layers.0.weight": [50_000, 1], "layers.1.weight": [8, 50_000]}}
header(
    "hop memory of 10 GB", of="hop", architecture={"name": "HopMLP", "arguments": {"widths": [1, 50_000, 8]}}, **WIDE
)
header("hop without details", of="hop", details={})
sql("hop without state", "DELETE FROM state", kind="hop")
sql("hop with another state", "UPDATE state SET tensors = zeroblob(3000)", kind="hop")


def hop_state(tensors: bytes) -> Maker:
    def change(connection: sqlite3.Connection) -> None:
        total = hashlib.blake2b(tensors, digest_size=16).digest()
        connection.execute("UPDATE state SET tensors = ?, checksum = ?", (tensors, total))
        put_header(connection, json.dumps(header_of(connection)))

    return lambda path: forged(path, change, "hop")


case("hop state is garbage", hop_state(b"x" * 3000), kind="hop")
case(
    "hop state lies",
    hop_state(safetensors({"psi.0": {"dtype": "F32", "shape": [12, 12], "data_offsets": [0, 9**9]}}, bytes(3000))),
    kind="hop",
)


def huge_row(path: Path) -> None:
    """The definition of a table that claims to be longer than memory."""
    content = bytearray(sound())
    start = content.index(b" NOT NULL, codec TEXT NOT NULL, levels")
    content[start : start + 60] = b"\xff" * 60
    path.write_bytes(content)


case("a row that claims to be huge", huge_row)
