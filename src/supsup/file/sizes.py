"""How many bytes one task takes in a model file, without reading the task."""

from __future__ import annotations

from contextlib import closing

from supsup.file.paths import AnyPath, full_path
from supsup.file.sqlite import connect, explained


def stored_bytes(path: AnyPath, task: str) -> int:
    """The bytes of a task's mask and extras in the file at a path, 0 where it is not there."""
    full = full_path(path)
    with explained(full), closing(connect(full, "ro")) as connection:
        found = connection.execute("SELECT length(mask) + length(extras) FROM tasks WHERE name = ?", (task,)).fetchone()
    return 0 if found is None else int(found[0])
