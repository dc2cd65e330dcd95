"""The task table: what a model knows of each task it has learned, in order, found by name or by index in O(1)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from torch import Tensor

from supsup.errors import SupSupError
from supsup.validation import shown

_NAMED = 5  # tasks that an error lists


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
        if not isinstance(name, str) or name not in self._indices:
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


def unknown_task(name: object, known: Sequence[str]) -> SupSupError:
    """The error for a task that a learner does not have."""
    listed = ", ".join(known[:_NAMED]) + (", …" if len(known) > _NAMED else "")
    return SupSupError(f"unknown task {shown(name)}; " + (f"known: {listed}" if known else "none has been learned yet"))


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
