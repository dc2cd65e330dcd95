"""What lies in a model file: the header, one record per task, and the checksums that tie them together.

Masks go in and come out as the bank's packed bytes; nothing here knows torch modules. A kind of model that keeps all
its tasks in tensors of one size has a state in place of records, and a format of its own. Nothing here is believed for
its own sake: checksums can be forged, so types, sizes and ranges are held to `limits`.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np

from supsup.file import codec, limits
from supsup.file.card import card, with_card
from supsup.file.codec import Bytes
from supsup.file.journal import PAGE
from supsup.file.reference import Reference
from supsup.file.reference import decode as decode_mask
from supsup.file.task_record import MOST_CLASSES
from supsup.runtime.errors import Damaged, SupSupError, printable

FORMATS = {"SupSup": 1, "HopSupSup": 2}  # by kind of model
APPLICATION_ID = 0x53555053  # "SUPS"
MOST_POSITION = 1 << 62
COLUMNS = "position, name, created, classes, kept, codec, checksum, extras, mask"
_MODEL = "(id INTEGER PRIMARY KEY, header TEXT NOT NULL, tasks BLOB NOT NULL, checksum BLOB NOT NULL)"
SCHEMA = (
    f"CREATE TABLE model {_MODEL}",
    f"CREATE TABLE spare {_MODEL}",  # the same row once more, on a page of its own
    "CREATE TABLE tasks (position INTEGER PRIMARY KEY, name TEXT NOT NULL, created TEXT NOT NULL, "
    "classes INTEGER NOT NULL, kept INTEGER NOT NULL, codec TEXT NOT NULL, checksum BLOB NOT NULL, "
    "extras BLOB NOT NULL, mask BLOB NOT NULL)",
    "CREATE TABLE reference (id INTEGER PRIMARY KEY, members TEXT NOT NULL, codec TEXT NOT NULL, levels BLOB NOT NULL)",
)
SCHEMAS = {
    1: SCHEMA,
    2: (*SCHEMA, "CREATE TABLE state (id INTEGER PRIMARY KEY, tensors BLOB NOT NULL, checksum BLOB NOT NULL)"),
}


class NewerFormat(SupSupError):
    """A file that only a later version of this library can read."""


@dataclass(frozen=True)
class Header:
    """Everything about a model but its masks; JSON values only.

    weights     checksum of the frozen weights
    shapes      of the masked weights, in order
    pretrained  the weights are the user's own, not from the seed
    kind        of model; all but "SupSup" have a state instead of records of tasks
    details     what only this kind of model has to say
    """

    seed: int
    weights: str
    shapes: dict[str, list[int]]
    architecture: dict[str, Any] | None
    recipe: dict[str, Any]
    inference: dict[str, Any]
    allocation: dict[str, Any]
    image_shape: list[int] | None
    notes: dict[str, Any]
    created: str
    library: str
    pretrained: bool = False
    kind: str = "SupSup"
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def format(self) -> int:
        """The version of the file format for this kind of model."""
        return FORMATS[self.kind]

    def to_json(self) -> str:
        """In format 1 there is one kind of model only, and no word about it."""
        values = asdict(self)
        if self.kind == "SupSup":
            del values["kind"], values["details"]
        return json.dumps(values, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The header again, or an error unless it is one that a model of ours can have."""
        if len(text) > limits.LONGEST_HEADER:
            raise Damaged(f"the header has {len(text):,} characters, and {limits.LONGEST_HEADER:,} at most are read")
        try:
            values = json.loads(text)
            limits.check_depth(values)
            header = cls(**values)
        except (TypeError, ValueError, RecursionError) as error:
            raise Damaged(f"the header cannot be read ({error})") from error
        wrong = [name for name, kinds in _KINDS.items() if not isinstance(getattr(header, name), kinds)]
        if wrong or header.kind not in FORMATS or isinstance(header.seed, bool):
            raise Damaged(f"the header cannot be read ({', '.join(wrong or ['kind or seed'])} of the wrong type)")
        limits.check_shapes(header.shapes, header.image_shape)
        for kind in ("recipe", "inference", "allocation"):
            limits.check_settings(getattr(header, kind), kind)
        limits.check_architecture(header.architecture)
        if header.kind != "SupSup":
            limits.check_details(header.details, list(header.shapes.values())[-1][0])
        return header

    @property
    def sizes(self) -> list[int]:
        """How many weights each masked tensor has."""
        return [math.prod(shape) for shape in self.shapes.values()]


_KINDS: dict[str, Any] = {
    "seed": int,
    "weights": str,
    "shapes": dict,
    "architecture": dict | None,
    "recipe": dict,
    "inference": dict,
    "allocation": dict,
    "image_shape": list | None,
    "notes": dict,
    "created": str,
    "library": str,
    "pretrained": bool,
    "kind": str,
    "details": dict,
}


@dataclass(frozen=True)
class PackedTask:
    """One task: its mask as the bank packs it, and extras (safetensors bytes, or none)."""

    name: str
    classes: int
    packed: Bytes = field(repr=False)
    created: str
    extras: bytes = field(default=b"", repr=False)


class TaskRecord(NamedTuple):
    """A task as it lies in the file; nothing in it has been checked but the types.

    kept  how many weights the mask keeps
    """

    position: int
    name: str
    created: str
    classes: int
    kept: int
    codec: str
    checksum: bytes
    extras: bytes
    mask: bytes

    @classmethod
    def of(cls, values: Sequence[Any]) -> Self:
        if tuple(map(type, values)) != (int, str, str, int, int, str, bytes, bytes, bytes):
            raise Damaged(f"task {printable(repr(values[1]))} is damaged (a value has the wrong type)")
        record = cls(*values)
        if not 0 <= record.position < MOST_POSITION or not 0 <= record.classes < MOST_CLASSES:
            raise Damaged(f"task {printable(repr(record.name))} is damaged (a number is out of range)")
        return record

    @classmethod
    def encoded(cls, header: Header, position: int, task: PackedTask) -> Self:
        if task.name != task.name.encode(errors="replace").decode():
            raise SupSupError(f"the name {task.name!r} is not text that can be written; use another")
        name, mask = codec.encode(task.packed, header.sizes)
        kept = int(np.bitwise_count(task.packed).sum())
        about = card(header.seed, header.weights, header.pretrained, header.architecture, header.image_shape)
        task = replace(task, extras=with_card(task.extras, about))
        return cls(
            position, task.name, task.created, task.classes, kept, name, _sum(header, task, kept), task.extras, mask
        )

    def decoded(self, header: Header, reference: Reference | None) -> PackedTask:
        """The task, whose every bit is as it was written, or an error."""
        try:
            packed = decode_mask(self.codec, self.mask, header.sizes, reference)
        except SupSupError as error:
            raise type(error)(f"task {printable(repr(self.name))} cannot be read: {error}") from error
        task = PackedTask(self.name, self.classes, packed, self.created, self.extras)
        if _sum(header, task, self.kept) != self.checksum:
            raise Damaged(f"task {printable(repr(self.name))} is damaged (its checksum differs)")
        return task


def create(connection: sqlite3.Connection, version: int = 1) -> None:
    """The empty tables of a format, always in this order: repair relies on the pages they begin on."""
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={version}")
    for statement in SCHEMAS[version]:
        connection.execute(statement)


def check_first_page(content: bytes) -> None:
    """An error unless the first bytes of a file are those of a model file: before SQLite sees the file.

    SQLite would make files of its own beside one that claims to have a write-ahead log.
    """
    if not content.startswith(b"SQLite format 3\0") or len(content) < 100:
        raise Damaged("not a supsup model file, or damaged at its beginning")
    if int.from_bytes(content[68:72], "big") != APPLICATION_ID:
        raise SupSupError("not a supsup model file but an SQLite file of another program")
    _check_version(int.from_bytes(content[60:64], "big", signed=True))
    if int.from_bytes(content[16:18], "big") != PAGE or content[18:21] != b"\1\1\0":
        raise Damaged("the file is damaged (it does not lie in pages as a model file does)")


def check_format(connection: sqlite3.Connection) -> None:
    """An error unless this is a model file of a version that can be read, with our tables and nothing else."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application != APPLICATION_ID:
        raise SupSupError("not a supsup model file but an SQLite file of another program")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    _check_version(version)
    if not has_our_tables(connection, version):
        raise Damaged("the file is damaged (its tables are not those of a model file)")


def _check_version(version: int) -> None:
    newest = max(SCHEMAS)
    if version > newest:
        raise NewerFormat(f"format {version} is newer than {newest}, the newest known here: pip install -U supsup")
    if version not in SCHEMAS:
        raise Damaged(f"the file is damaged (its format is given as {version})")


def has_our_tables(connection: sqlite3.Connection, version: int = 1) -> bool:
    """Whether the file has the tables of a format, and no others, no views and no triggers."""
    return tuple(sql for (sql,) in connection.execute("SELECT sql FROM sqlite_schema")) == SCHEMAS[version]


def write_header(connection: sqlite3.Connection, header: Header, checksums: Iterable[bytes]) -> None:
    """Replace the header and the digest of the tasks' checksums (in order)."""
    try:
        text, digest = header.to_json(), _digest(checksums)
        again = Header.from_json(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise SupSupError(
            f"the model's notes and settings must be JSON values that can be read again ({error})"
        ) from error
    if again != header:
        raise SupSupError(
            "the model's notes and settings must be JSON values: mappings with text as keys, lists, numbers"
        )
    for table in ("model", "spare"):
        connection.execute(f"REPLACE INTO {table} VALUES (1, ?, ?, ?)", (text, digest, _header_sum(text, digest)))
        if _header_row(connection, table) != (text, digest):
            raise Damaged("what was written cannot be read again")


def read_header(connection: sqlite3.Connection, table: str = "model") -> tuple[Header, bytes]:
    """The header, and the digest that the tasks' checksums must have."""
    text, digest = _header_row(connection, table)
    return Header.from_json(text), digest


def _header_row(connection: sqlite3.Connection, table: str) -> tuple[str, bytes]:
    """The header's text and the digest, as they were written."""
    rows = connection.execute(f"SELECT header, tasks, checksum FROM {table}").fetchmany(2)
    if len(rows) != 1 or [type(value) for value in rows[0]] != [str, bytes, bytes]:
        raise Damaged("the file is damaged (it has no header)")
    text, digest, checksum = rows[0]
    if _header_sum(text, digest) != checksum:
        raise Damaged("the file is damaged (the checksum of its header differs)")
    return text, digest


def read_index(connection: sqlite3.Connection, header: Header, digest: bytes) -> dict[str, tuple[int, bytes]]:
    """Position and checksum of each task, all of them there; the masks are not read."""
    index: dict[str, tuple[int, bytes]] = {}
    last, memory = -1, limits.MaskBytes(sum(header.sizes))
    for values in connection.execute("SELECT position, name, checksum, length(mask) FROM tasks ORDER BY position"):
        if tuple(map(type, values)) != (int, str, bytes, int) or values[1] in index:
            raise Damaged(
                f"task {printable(repr(values[1]))} is damaged (a value has the wrong type or is there twice)"
            )
        position, name, checksum, stored = values
        memory.add(stored)
        if not last < position < MOST_POSITION:
            raise Damaged(f"task {printable(repr(name))} is damaged (its position is out of order)")
        last = position
        index[name] = (position, checksum)
    check_complete([*state_checksums(connection, header), *(checksum for _, checksum in index.values())], digest)
    return index


def write_reference(connection: sqlite3.Connection, reference: Reference | None, members: Sequence[str] = ()) -> None:
    """Replace the mean that masks are coded against; `members` are the tasks it was taken over."""
    connection.execute("DELETE FROM reference")
    if reference is not None:
        connection.execute("INSERT INTO reference VALUES (1, ?, ?, ?)", (json.dumps(members), *reference.to_bytes()))


def read_reference(connection: sqlite3.Connection, header: Header) -> tuple[Reference | None, list[str]]:
    """The mean that masks are coded against, and the tasks it was taken over; None and no tasks where there is none."""
    row = connection.execute("SELECT members, codec, levels FROM reference").fetchone()
    if row is None:
        return None, []
    if [type(value) for value in row] != [str, str, bytes]:
        raise Damaged("the mean that masks are coded against is damaged (a value has the wrong type)")
    limits.check_reference(sum(header.sizes))
    try:
        return Reference.from_bytes(row[1], row[2], header.sizes), list(map(str, json.loads(row[0])))
    except (ValueError, TypeError, RecursionError) as error:
        raise Damaged(f"the mean that masks are coded against is damaged ({error})") from error


def write_state(connection: sqlite3.Connection, tensors: bytes) -> bytes:
    """Replace the state (safetensors bytes); returns its checksum."""
    checksum = hashlib.blake2b(tensors, digest_size=16).digest()
    connection.execute("REPLACE INTO state VALUES (1, ?, ?)", (tensors, checksum))
    return checksum


def read_state(connection: sqlite3.Connection) -> bytes:
    """The state, whose every byte is as it was written, or an error."""
    row = connection.execute("SELECT tensors, checksum FROM state").fetchone()
    if row is None or [type(value) for value in row] != [bytes, bytes]:
        raise Damaged("the file is damaged (the model's state is missing)")
    if hashlib.blake2b(row[0], digest_size=16).digest() != row[1]:
        raise Damaged("the file is damaged (the checksum of the model's state differs)")
    tensors: bytes = row[0]
    return tensors


def state_checksums(connection: sqlite3.Connection, header: Header) -> list[bytes]:
    """What the state adds to the digest in the header: one checksum, or none for a kind of model without a state."""
    if header.format == 1:
        return []
    return [checksum for (checksum,) in connection.execute("SELECT checksum FROM state") if type(checksum) is bytes]


def check_complete(checksums: Iterable[bytes], digest: bytes) -> None:
    """An error if a task was removed, added or moved since the header was written."""
    if _digest(checksums) != digest:
        raise Damaged("the file is damaged (tasks are missing or changed)")


def _sum(header: Header, task: PackedTask, kept: int) -> bytes:
    """Over the decoded bits, and all that belongs to them: which weights, which task."""
    about = json.dumps([header.weights, task.name, task.created, task.classes, kept, len(task.extras)])
    digest = hashlib.blake2b(about.encode(errors="surrogatepass"), digest_size=16)
    digest.update(task.extras)
    digest.update(task.packed.tobytes())
    return digest.digest()


def _header_sum(text: str, digest: bytes) -> bytes:
    return hashlib.blake2b(digest + text.encode(errors="surrogatepass"), digest_size=16).digest()


def _digest(checksums: Iterable[bytes]) -> bytes:
    return hashlib.blake2b(b"".join(checksums), digest_size=16).digest()
