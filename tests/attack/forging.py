"""What crafted files are made with: sound model files, and the means to forge any part of them with right checksums."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import torch

from supsup import HopSupSup, Recipe, SupSup, nets
from supsup.model.state import state_of

PAGE = 1024
BYSTANDER = b"somebody else's file\n" * 20
Maker = Callable[[Path], Any]
CASES: dict[str, tuple[str, str, Maker]] = {}  # by name: what must come of loading it, kind of model, maker


def case(name: str, make: Maker, expect: str = "refused", kind: str = "plain") -> None:
    """One more crafted file.

    expect  "refused": an error of ours; "right": the model as it was; "either": one of the two; "other": an error, or a
            model that is consistent in itself (all its checksums are forged); "forged": an error, and repair may find
            such a model
    """
    assert name not in CASES, name
    CASES[name] = (expect, kind, make)


def bystander(path: Path) -> Path:
    """A file beside the crafted one that has nothing to do with it."""
    return path.with_name("bystander")


def _learn(model: SupSup, tasks: int, shape: tuple[int, ...]) -> None:
    for number in range(tasks):
        x = torch.randn(16, *shape, generator=torch.Generator().manual_seed(number))
        model.learn((x, torch.arange(16) % 3), task=f"task-{number}")


def plain_model(tasks: int = 3) -> SupSup:
    """A small model; about half of the weights are kept, so its masks lie in the file bit by bit."""
    model = SupSup(nets.FullyConnected((60, 40, 8)), recipe=Recipe(steps=2), device="cpu")
    _learn(model, tasks, (60,))
    model.extras["task-1"] = {"numbers": torch.arange(5.0)}
    return model


def residual_model() -> SupSup:
    """A model whose tasks have statistics."""
    model = SupSup(nets.ResNet(3, [1], [4], channels=1), recipe=Recipe(steps=2), device="cpu")
    _learn(model, 2, (1, 8, 8))
    return model


def hop_model() -> HopSupSup:
    model = HopSupSup(nets.HopMLP((20, 40, 30, 8)), device="cpu")
    for number in range(3):
        chance = torch.Generator().manual_seed(number)
        model.store(f"task-{number}", 2, [torch.rand(width, generator=chance) < 0.5 for width in (40, 30)], (20,))
    return model


@cache
def sound(kind: str = "plain", tasks: int = 3) -> bytes:
    """The bytes of a sound file."""
    makers: dict[str, Callable[[], Any]] = {"residual": residual_model, "hop": hop_model}
    model = makers.get(kind, lambda: plain_model(tasks))()
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "m")
        return (Path(folder) / "m").read_bytes()


def info(model: SupSup | HopSupSup) -> str:
    """A digest of all that answers depend on."""
    net = model.net if isinstance(model, HopSupSup) else state_of(model).net
    digest = hashlib.blake2b(net.checksum.encode(), digest_size=16)
    for index, task in enumerate(model.tasks):
        digest.update(f"{task}/{model.classes(task)}/".encode(errors="surrogatepass"))
        if isinstance(model, SupSup):
            digest.update(state_of(model).bank.packed(index).numpy().tobytes())
            digest.update(state_of(model).bank.flat_statistics(index).numpy().tobytes())
    if isinstance(model, HopSupSup):
        for tensor in [*model.psi, *model.mean]:
            digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def mask_of(model: SupSup, task: str) -> str:
    """A digest of one task's bits."""
    return digest_of(state_of(model).bank.packed(model.tasks.index(task)).numpy().tobytes())


def digest_of(packed: bytes) -> str:
    return hashlib.blake2b(packed, digest_size=8).hexdigest()


def forged(path: Path, change: Callable[[sqlite3.Connection], Any], kind: str = "plain") -> None:
    """A sound file, changed by any program that knows SQLite."""
    path.write_bytes(sound(kind))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        change(connection)


def statements(*lines: str) -> Callable[[sqlite3.Connection], None]:
    def run(connection: sqlite3.Connection) -> None:
        for line in lines:
            connection.execute(line)

    return run


def header_of(connection: sqlite3.Connection) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(connection.execute("SELECT header FROM model").fetchone()[0])
    return values


def put_header(connection: sqlite3.Connection, text: str) -> None:
    """Any text as the header, under right checksums, in both places; the digest of the tasks is made right too."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    sums = [row[0] for row in connection.execute("SELECT checksum FROM state")] if "state" in tables else []
    sums += [row[0] for row in connection.execute("SELECT checksum FROM tasks ORDER BY position")]
    digest = hashlib.blake2b(b"".join(s if isinstance(s, bytes) else b"" for s in sums), digest_size=16).digest()
    total = hashlib.blake2b(digest + text.encode(errors="surrogatepass"), digest_size=16).digest()
    for table in ("model", "spare"):
        connection.execute(f"REPLACE INTO {table} VALUES (1, ?, ?, ?)", (text, digest, total))


def change_header(**changes: Any) -> Callable[[sqlite3.Connection], None]:
    def change(connection: sqlite3.Connection) -> None:
        put_header(connection, json.dumps(header_of(connection) | changes))

    return change


def change_record(
    where: int = 0, packed: bytes | None = None, /, **changes: Any
) -> Callable[[sqlite3.Connection], None]:
    """Change columns of a task, and make all checksums right again; `packed` are the bits that the mask decodes to."""

    def change(connection: sqlite3.Connection) -> None:
        for column, value in changes.items():
            connection.execute(f"UPDATE tasks SET {column} = ? WHERE position = ?", (value, where))
        resum(connection, changes.get("position", where), packed)

    return change


def resum(connection: sqlite3.Connection, position: int, packed: bytes | None = None) -> None:
    """Right checksums for a task, as far as its values have any, and for the table."""
    columns = "name, created, classes, kept, extras, codec, mask"
    row = connection.execute(f"SELECT {columns} FROM tasks WHERE position = ?", (position,)).fetchone()
    name, created, classes, kept, extras, codec, mask = row
    if packed is None:
        packed = mask if codec == "bits" and isinstance(mask, bytes) else b""
    if isinstance(extras, bytes):
        about = json.dumps(
            [header_of(connection)["weights"], str(name), created, classes, kept, len(extras)], default=str
        )
        digest = hashlib.blake2b(about.encode(errors="surrogatepass"), digest_size=16)
        digest.update(extras + packed)
        connection.execute("UPDATE tasks SET checksum = ? WHERE position = ?", (digest.digest(), position))
    put_header(connection, json.dumps(header_of(connection)))


def safetensors(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """Bytes whose header may say anything."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def crashed(path: Path, kind: str = "plain") -> None:
    """A file and the journal of a commit to it that was broken off when part of it was written."""
    content, journal = _crash(kind)
    path.write_bytes(content)
    path.with_name(path.name + "-journal").write_bytes(journal)


@cache
def _crash(kind: str) -> tuple[bytes, bytes]:
    """A file and its journal in the middle of a commit."""
    large = "UPDATE state SET tensors" if kind == "hop" else "UPDATE tasks SET mask"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m"
        path.write_bytes(sound(kind))
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            for line in ("PRAGMA cache_size=2", "BEGIN IMMEDIATE", f"{large} = zeroblob(9000)"):
                connection.execute(line)
            left = path.read_bytes(), path.with_name("m-journal").read_bytes()
            connection.execute("ROLLBACK")
    assert left[0] != sound(kind)
    assert left[1].startswith(bytes.fromhex("d9d505f920a163d7"))
    return left
