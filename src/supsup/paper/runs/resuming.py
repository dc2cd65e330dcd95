"""A model that lives in a file while a job learns, so that an interrupted job goes on at the task where it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from supsup.data import Stream, Task
from supsup.errors import SupSupError
from supsup.learner import SupSup
from supsup.loading import load


@contextmanager
def living_in(file: Path, model: SupSup) -> Iterator[SupSup]:
    """The new model or, where a job with the same seed, notes and recipe left it there, the one in the file."""
    if not _holds(file, model):
        file.parent.mkdir(parents=True, exist_ok=True)
        model.save(file)
    with load(file, in_place=True, device=model.device) as kept:
        yield kept


def not_learned(model: SupSup, stream: Stream) -> list[Task]:
    """The tasks that are still to be learned."""
    known = set(model.tasks)
    return [task for task in stream if task.name not in known]


def _holds(file: Path, model: SupSup) -> bool:
    if not file.exists():
        return False
    try:
        there = load(file, device="cpu")
    except SupSupError:
        return False
    return (there.seed, there.notes, there.recipe) == (model.seed, model.notes, model.recipe)
