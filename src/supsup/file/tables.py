"""The tables of a model file: an SQLite file with application id `SUPS`, in pages of 1,024 bytes.

Format 1 is for `SupSup` models:
    model      one row: the header (`header.py`) as JSON, a digest of the checksums of all tasks, a checksum of both
    spare      the same row again, on another page
    tasks      one row per task (`task_record.py`)
    reference  at most one row: the mean that masks are coded against (`codec.py`), and the tasks it was taken over
Format 2 is for `HopSupSup` models, which keep all tasks in tensors of one size:
    state      one row more: those tensors as safetensors bytes, and their checksum; `tasks` is empty

Later versions added metadata and tensors to the records of format 1, which older ones ignore; the number stayed the
same. Nothing read here is trusted: checksums can be forged, so types, sizes and ranges are checked (`limits.py`).
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Sequence

from supsup.file import limits
from supsup.file.codec import Reference
from supsup.file.header import Header
from supsup.file.journal import PAGE
from supsup.file.sqlite import transaction
from supsup.runtime.errors import Damaged, SupSupError, printable

APPLICATION_ID = 0x53555053  # "SUPS"
_MODEL = "(id INTEGER PRIMARY KEY, header TEXT NOT NULL, tasks BLOB NOT NULL, checksum BLOB NOT NULL)"
_FORMAT_1 = (
    f"CREATE TABLE model {_MODEL}",
    f"CREATE TABLE spare {_MODEL}",
    "CREATE TABLE tasks (position INTEGER PRIMARY KEY, name TEXT NOT NULL, created TEXT NOT NULL, "
    "classes INTEGER NOT NULL, kept INTEGER NOT NULL, codec TEXT NOT NULL, checksum BLOB NOT NULL, "
    "extras BLOB NOT NULL, mask BLOB NOT NULL)",
    "CREATE TABLE reference (id INTEGER PRIMARY KEY, members TEXT NOT NULL, codec TEXT NOT NULL, levels BLOB NOT NULL)",
)
SCHEMAS = {
    1: _FORMAT_1,
    2: (*_FORMAT_1, "CREATE TABLE state (id INTEGER PRIMARY KEY, tensors BLOB NOT NULL, checksum BLOB NOT NULL)"),
}


class NewerFormat(SupSupError):
    """A file that only a later version of this library can read."""


def create_tables(connection: sqlite3.Connection, version: int = 1) -> None:
    """Create the empty tables of a format, always in this order: repair relies on the pages where they begin."""
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={version}")
    for statement in SCHEMAS[version]:
        connection.execute(statement)


def check_first_page(content: bytes) -> None:
    """An error unless the first bytes of a file are those of a model file; to be called before SQLite opens it.

    SQLite would create files beside one that claims to have a write-ahead log.
    """
    if not content.startswith(b"SQLite format 3\0") or len(content) < 100:
        raise Damaged("not a supsup model file, or damaged at its beginning")
    _check_identity(int.from_bytes(content[68:72], "big"), int.from_bytes(content[60:64], "big", signed=True))
    if int.from_bytes(content[16:18], "big") != PAGE or content[18:21] != b"\1\1\0":
        raise Damaged("the file is damaged (its pages are not those of a model file)")


def check_format(connection: sqlite3.Connection) -> None:
    """An error unless this is a model file of a known format, with our tables and nothing else."""
    application, version = (
        connection.execute(f"PRAGMA {number}").fetchone()[0] for number in ("application_id", "user_version")
    )
    _check_identity(application, version)
    if not has_our_tables(connection, version):
        raise Damaged("the file is damaged (its tables are not those of a model file)")


def check_whole(connection: sqlite3.Connection) -> None:
    """An error unless this is a model file that misses no task; no mask is read."""
    with transaction(connection):
        check_format(connection)
        read_index(connection, *read_header(connection))


def _check_identity(application: int, version: int) -> None:
    newest = max(SCHEMAS)
    if application != APPLICATION_ID:
        raise SupSupError("not a supsup model file but an SQLite file of another program")
    if version > newest:
        raise NewerFormat(f"format {version} is newer than {newest}, the newest known here: pip install -U supsup")
    if version not in SCHEMAS:
        raise Damaged(f"the file is damaged (its format is {version})")


def has_our_tables(connection: sqlite3.Connection, version: int = 1) -> bool:
    """Whether the file has exactly the tables of a format: no others, no views, no triggers."""
    return tuple(sql for (sql,) in connection.execute("SELECT sql FROM sqlite_schema")) == SCHEMAS[version]


def write_header(connection: sqlite3.Connection, header: Header, checksums: Iterable[bytes]) -> None:
    """Replace the header and the digest of the tasks' checksums (in order)."""
    try:
        text, digest = header.to_json(), _digest(*checksums)
        if Header.from_json(text) != header:
            raise TypeError("mappings with text as keys, lists, numbers")
    except (TypeError, ValueError, RecursionError) as error:
        raise SupSupError(
            f"the model's notes and settings must be JSON values that can be read back ({error})"
        ) from error
    for table in ("model", "spare"):
        connection.execute(f"REPLACE INTO {table} VALUES (1, ?, ?, ?)", (text, digest, _header_sum(text, digest)))
        if _header_row(connection, table) != (text, digest):
            raise Damaged("what was written cannot be read back")


def read_header(connection: sqlite3.Connection, table: str = "model") -> tuple[Header, bytes]:
    """The header, and the digest that the tasks' checksums must have."""
    text, digest = _header_row(connection, table)
    return Header.from_json(text), digest


def _header_row(connection: sqlite3.Connection, table: str) -> tuple[str, bytes]:
    """The header's text and the digest, checked."""
    rows = connection.execute(f"SELECT header, tasks, checksum FROM {table}").fetchmany(2)
    if len(rows) != 1 or [type(value) for value in rows[0]] != [str, bytes, bytes]:
        raise Damaged("the file is damaged (it has no header)")
    text, digest, checksum = rows[0]
    if _header_sum(text, digest) != checksum:
        raise Damaged("the file is damaged (the checksum of its header differs)")
    return text, digest


def read_index(connection: sqlite3.Connection, header: Header, digest: bytes) -> dict[str, tuple[int, bytes]]:
    """Position and checksum of each task by name; none is missing, and no mask is read."""
    index: dict[str, tuple[int, bytes]] = {}
    last, total, weights = -1, 0, sum(header.sizes)
    for values in connection.execute("SELECT position, name, checksum, length(mask) FROM tasks ORDER BY position"):
        if tuple(map(type, values)) != (int, str, bytes, int) or values[1] in index:
            raise Damaged(f"task {printable(repr(values[1]))} is damaged (a value has the wrong type or occurs twice)")
        position, name, checksum, stored = values
        total += stored
        limits.check_masks(len(index) + 1, weights, total)
        if not last < position < limits.MOST_POSITION:
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
    """The mean that masks are coded against and the tasks it was taken over; None and no tasks if there is none."""
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
    checksum = _digest(tensors)
    connection.execute("REPLACE INTO state VALUES (1, ?, ?)", (tensors, checksum))
    return checksum


def read_state(connection: sqlite3.Connection) -> bytes:
    """The state, every byte as it was written, or an error."""
    row = connection.execute("SELECT tensors, checksum FROM state").fetchone()
    if row is None or [type(value) for value in row] != [bytes, bytes]:
        raise Damaged("the file is damaged (the model's state is missing)")
    tensors: bytes = row[0]
    if _digest(tensors) != row[1]:
        raise Damaged("the file is damaged (the checksum of the model's state differs)")
    return tensors


def state_checksums(connection: sqlite3.Connection, header: Header) -> list[bytes]:
    """What the state adds to the digest in the header: one checksum in format 2, none in format 1."""
    if header.format == 1:
        return []
    return [checksum for (checksum,) in connection.execute("SELECT checksum FROM state") if type(checksum) is bytes]


def check_complete(checksums: Iterable[bytes], digest: bytes) -> None:
    """An error if a task was removed, added or moved since the header was written."""
    if _digest(*checksums) != digest:
        raise Damaged("the file is damaged (tasks are missing or changed)")


def _header_sum(text: str, digest: bytes) -> bytes:
    return _digest(digest, text.encode(errors="surrogatepass"))


def _digest(*parts: bytes) -> bytes:
    return hashlib.blake2b(b"".join(parts), digest_size=16).digest()
