"""The task table: what a model knows of each task it has learned, in order, found by name or by index in O(1)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import torch
from torch import Tensor

from supsup.errors import SupSupError, printable

STATISTICS = "statistics/"  # before the names of a task's statistics in a file, among its extras
_NAMED = 5  # tasks that an error lists
_LONGEST_NAME = 1000  # characters of a task's name
_MOST_CLASSES = 1 << 31
_WRITABLE = {
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
}  # fmt: skip


@dataclass
class LearnedTask:
    """The facts of one task.

    learned_at  UTC, as `now` writes it
    extras      tensors that the user keeps with the task
    """

    name: str
    classes: int
    learned_at: str
    extras: dict[str, Tensor] = field(default_factory=dict)


class TaskTable:
    """The tasks of one model; a task's index is that of its mask in the bank."""

    def __init__(self, tasks: Iterable[LearnedTask] = ()) -> None:
        self._tasks: list[LearnedTask] = []
        self._indices: dict[str, int] = {}
        self._unsaved: dict[str, None] = {}  # names of those that the model's file does not have as they are
        for task in tasks:
            self.add(task)

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[LearnedTask]:
        return iter(self._tasks)

    def __contains__(self, name: object) -> bool:
        return name in self._indices

    def __getitem__(self, name: str) -> LearnedTask:
        return self._tasks[self.index(name)]

    @property
    def names(self) -> list[str]:
        """All names, in order."""
        return list(self._indices)

    def index(self, name: str) -> int:
        """The index of a task, or an error that names some of those known."""
        if name not in self._indices:
            raise unknown_task(name, self.names)
        return self._indices[name]

    def indices(self, among: Sequence[str]) -> list[int]:
        """The indices of the tasks to choose from, or an error if there are none or one of them is not known."""
        check_among(among, self._indices)
        return [self._indices[name] for name in among]

    def at(self, index: int) -> LearnedTask:
        """The task with an index."""
        return self._tasks[index]

    def most_classes(self, names: Iterable[str] | None = None) -> int:
        """The most classes that one of these tasks has (of all by default)."""
        return max(task.classes for task in (self._tasks if names is None else map(self.__getitem__, names)))

    def add(self, task: LearnedTask, *, saved: bool = False) -> None:
        """One more task, at index len(table); `saved`: the model's file has it."""
        self.check_new(task.name)
        self._indices[task.name] = len(self._tasks)
        self._tasks.append(task)
        if not saved:
            self._unsaved[task.name] = None

    def check_new(self, name: str) -> None:
        """An error if there is a task of this name."""
        if name in self._indices:
            raise SupSupError(f"task {name!r} has been learned already; use another name")

    def remove(self, name: str) -> None:
        """Take a task out; the later ones move up by one."""
        index = self.index(name)
        del self._tasks[index], self._indices[name]
        self._unsaved.pop(name, None)
        self._indices.update((task.name, i) for i, task in enumerate(self._tasks[index:], index))

    def unsaved(self) -> list[LearnedTask]:
        """The tasks that the model's file does not have as they are, the one that changed last at the end."""
        return [self[name] for name in self._unsaved]

    def changed(self, name: str) -> None:
        """A task is no longer what the model's file has."""
        self._unsaved[self[name].name] = None

    def saved(self, tasks: Iterable[LearnedTask]) -> None:
        """The model's file has these tasks as they are."""
        for task in tasks:
            self._unsaved.pop(task.name, None)

    def copy(self) -> TaskTable:
        """A table of its own with the same facts, none of them saved."""
        return TaskTable(replace(task, extras=dict(task.extras)) for task in self._tasks)


class Extras(MutableMapping[str, dict[str, Tensor]]):
    """The extras of all tasks that have some, by task; what is set here is saved with the next commit."""

    def __init__(self, tasks: TaskTable) -> None:
        self._tasks = tasks

    def __getitem__(self, name: str) -> dict[str, Tensor]:
        if name not in self._tasks or not self._tasks[name].extras:
            raise KeyError(name)
        return self._tasks[name].extras

    def __setitem__(self, name: str, tensors: dict[str, Tensor]) -> None:
        check_extras(tensors)
        self._tasks[name].extras = tensors
        self._tasks.changed(name)

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        self[name] = {}

    def __iter__(self) -> Iterator[str]:
        return (task.name for task in self._tasks if task.extras)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def check_name(name: object) -> None:
    """An error unless a task can be learned, saved and loaded again under this name."""
    if not isinstance(name, str) or not name:
        raise SupSupError(f"a task needs a name that is text and not empty; got {printable(repr(name))}")
    if "\0" in name or len(name) > _LONGEST_NAME or name != name.encode(errors="replace").decode():
        raise SupSupError(
            f"the name {printable(repr(name), 60)} is not text that can be written: without NUL, of at most "
            f"{_LONGEST_NAME:,} characters; use another"
        )


def check_classes(name: str, classes: object, least: int = 1) -> None:
    """An error unless a task can have so many classes."""
    if isinstance(classes, bool) or not isinstance(classes, int) or not least <= classes < _MOST_CLASSES:
        shown = printable(repr(classes))
        raise SupSupError(f"task {printable(repr(name))} has {shown} classes; give a whole number from {least} on")


def check_extras(tensors: object) -> None:
    """An error unless these are tensors by name that can be saved with a task."""
    if not isinstance(tensors, dict):
        raise SupSupError(f"the extras of a task are a dict of tensors by name, not {type(tensors).__name__}")
    for name, value in tensors.items():
        if not isinstance(name, str) or not name or name == "__metadata__" or name.startswith(STATISTICS):
            raise SupSupError(
                f"extras cannot have the name {printable(repr(name))}: it must be text, not empty, neither "
                f'"__metadata__" nor begin with "{STATISTICS}"'
            )
        if name != name.encode(errors="replace").decode():
            raise SupSupError(f"the name {printable(repr(name))} of an extra is not text that can be written")
        dense = isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta
        if not dense or value.dtype not in _WRITABLE:
            raise SupSupError(
                f"the extra {printable(repr(name))} must be a dense tensor of ordinary numbers, not "
                f"{getattr(value, 'dtype', type(value).__name__)}"
            )


def unknown_task(name: object, known: Sequence[str]) -> SupSupError:
    """The error for a task that a learner does not have."""
    listed = ", ".join(map(printable, known[:_NAMED])) + (", …" if len(known) > _NAMED else "")
    return SupSupError(f"unknown task {name!r}; " + (f"known: {listed}" if known else "none has been learned yet"))


def check_among(among: Sequence[str], known: Collection[str]) -> None:
    """An error unless these are known tasks, at least one."""
    if not among:
        raise SupSupError("among=[] leaves no task to choose from; name at least one, or leave among out")
    for name in among:
        if name not in known:
            raise unknown_task(name, list(known))


def now() -> str:
    """The time as it is written beside models and tasks."""
    return datetime.now(UTC).isoformat(timespec="seconds")
