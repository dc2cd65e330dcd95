"""The table of a model's tasks in the order in which they were learned, with look-up by name or index in O(1)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace

from torch import Tensor

from supsup.data.inputs import Inputs, inputs_key
from supsup.file.task_record import MOST_CLASSES, LearnedTask, check_extras
from supsup.runtime.errors import SupSupError, printable
from supsup.runtime.interrupts import uninterrupted
from supsup.runtime.validation import quoted

Change = Callable[[], None]  # the last step of a prepared change: short, and it cannot fail
_NAMED = 5  # tasks that an error lists
_LONGEST_NAME = 1000  # characters of a task's name

InputGroups = list[tuple[Inputs | None, list[int]]]  # indices of tasks that normalise raw inputs in the same way


class TaskTable:
    """The tasks of one model; a task and its mask in the bank have the same index.

    Any thread may read at any time. A change is prepared (`prepare_add`, `prepare_remove`), then made in one step
    that replaces all rows.
    """

    def __init__(self, tasks: Iterable[LearnedTask] = ()) -> None:
        self._rows: tuple[list[LearnedTask], dict[str, int]] = ([], {})  # in order, and their indices by name
        self._unsaved: dict[
            str, object
        ] = {}  # by name: tasks that differ from the model's file, each with a mark of its last change
        self._groups: tuple[object, InputGroups] = (None, [])  # the rows and their groups, cached
        self.prepare_add(tasks)()

    def __len__(self) -> int:
        return len(self._rows[0])

    def __iter__(self) -> Iterator[LearnedTask]:
        return iter(self._rows[0])

    def __contains__(self, name: object) -> bool:
        return name in self._rows[1]

    def __getitem__(self, name: str) -> LearnedTask:
        tasks, indices = self._rows
        return tasks[_index(indices, name)]

    @property
    def version(self) -> object:
        """A new object whenever a task is added or removed."""
        return self._rows[0]

    @property
    def names(self) -> list[str]:
        """All names, in order."""
        return list(self._rows[1])

    def index(self, name: str) -> int:
        """The index of a task, or an error that lists some known tasks."""
        return _index(self._rows[1], name)

    def indices(self, among: Sequence[str]) -> list[int]:
        """The indices of these tasks, or an error if there are none or one is unknown."""
        indices = self._rows[1]
        check_among(among, indices)
        return [indices[name] for name in among]

    def at(self, index: int) -> LearnedTask:
        """The task with an index."""
        return self._rows[0][index]

    def input_groups(self, members: Sequence[int] | None = None) -> InputGroups:
        """Tasks (all by default) grouped by how they normalise raw inputs, in the order of the first of each group."""
        rows = self._rows[0]
        if members is not None:
            return _group_by_inputs(rows, members)
        cached_for, groups = self._groups
        if cached_for is not rows:
            groups = _group_by_inputs(rows, range(len(rows)))
            self._groups = rows, groups
        return groups

    def most_classes(self, names: Iterable[str] | None = None) -> int:
        """The largest number of classes of these tasks (all by default)."""
        return max(task.classes for task in (self._rows[0] if names is None else map(self.__getitem__, names)))

    def add(self, task: LearnedTask, *, saved: bool = False) -> None:
        """Append a task; `saved`: the model's file has it already."""
        self.prepare_add([task], saved=saved)()

    def prepare_add(self, new: Iterable[LearnedTask], *, saved: bool = False) -> Change:
        """Prepare to append several tasks; an error if a name is taken."""
        tasks, indices = list(self._rows[0]), dict(self._rows[1])
        marks: dict[str, object] = {}
        for task in new:
            if task.name in indices:
                raise SupSupError(f"task {task.name!r} has been learned already; use another name")
            indices[task.name] = len(tasks)
            tasks.append(task)
            marks[task.name] = object()

        def change() -> None:
            self._rows = tasks, indices
            if not saved:
                self._unsaved.update(marks)

        return change

    def remove(self, name: str) -> None:
        """Remove a task; the indices of later tasks decrease by one."""
        self.prepare_remove(name)()

    def prepare_remove(self, name: str) -> Change:
        """Prepare to remove a task."""
        index = self.index(name)
        tasks = [task for i, task in enumerate(self._rows[0]) if i != index]
        indices = {task.name: i for i, task in enumerate(tasks)}

        def change() -> None:
            self._rows = tasks, indices
            self._unsaved.pop(name, None)

        return change

    def unsaved(self) -> list[LearnedTask]:
        """The tasks that differ from the model's file, in order."""
        return [self[name] for name in self.unsaved_marks()]

    def unsaved_marks(self) -> dict[str, object]:
        """The names of unsaved tasks, each with a mark of its last change, for `mark_saved`."""
        indices, marks = self._rows[1], self._unsaved.copy()
        return {name: marks[name] for name in sorted(marks, key=indices.__getitem__)}

    def mark_unsaved(self, name: str) -> None:
        """Note that a task differs from the model's file."""
        task = self[name]
        self._unsaved[task.name] = object()

    def mark_saved(self, marks: Mapping[str, object]) -> None:
        """Note that the file has the tasks as of these marks; tasks that changed since remain unsaved."""
        for name, mark in marks.items():
            if self._unsaved.get(name) is mark:
                self._unsaved.pop(name, None)

    def copy(self) -> TaskTable:
        """A copy, in which every task is unsaved."""
        return TaskTable(
            replace(task, extras={name: value.clone() for name, value in task.extras.items()}) for task in self
        )


class Extras(MutableMapping[str, dict[str, Tensor]]):
    """The extras of tasks, by task; the next commit saves what is set here."""

    def __init__(self, tasks: TaskTable) -> None:
        self._tasks = tasks

    def __getitem__(self, name: str) -> dict[str, Tensor]:
        if name not in self._tasks or not self._tasks[name].extras:
            raise KeyError(name)
        return self._tasks[name].extras

    def __setitem__(self, name: str, tensors: dict[str, Tensor]) -> None:
        check_extras(tensors)
        task = self._tasks[name]
        with uninterrupted():
            task.extras = tensors
            self._tasks.mark_unsaved(name)  # last: a commit in between did not write them

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        self[name] = {}

    def __iter__(self) -> Iterator[str]:
        return (task.name for task in self._tasks if task.extras)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _group_by_inputs(tasks: Sequence[LearnedTask], members: Iterable[int]) -> InputGroups:
    found: dict[object, tuple[Inputs | None, list[int]]] = {}
    for index in members:
        inputs = tasks[index].info.inputs
        found.setdefault(inputs_key(inputs), (inputs, []))[1].append(index)
    return list(found.values())


def _index(indices: Mapping[str, int], name: str) -> int:
    if not isinstance(name, str) or name not in indices:
        raise unknown_task(name, list(indices))
    return indices[name]


def check_name(name: object) -> None:
    """An error unless a task can be learned, saved and loaded again under this name."""
    if not isinstance(name, str) or not name:
        raise SupSupError(f"a task needs a name that is text and not empty; got {quoted(name)}")
    if "\0" in name or len(name) > _LONGEST_NAME or name != name.encode(errors="replace").decode():
        raise SupSupError(
            f"the name {printable(repr(name), 60)} is not text that can be written: without NUL, of at most "
            f"{_LONGEST_NAME:,} characters; use another"
        )


def check_classes(name: str, classes: object, least: int = 1) -> None:
    """An error unless this is a valid number of classes."""
    if isinstance(classes, bool) or not isinstance(classes, int) or not least <= classes < MOST_CLASSES:
        raise SupSupError(f"task {quoted(name)} has {quoted(classes)} classes; give a whole number, at least {least}")


def unknown_task(name: object, known: Sequence[str]) -> SupSupError:
    """The error for a task that a learner has not learned."""
    listed = ", ".join(map(printable, known[:_NAMED])) + (", …" if len(known) > _NAMED else "")
    return SupSupError(
        f"unknown task {quoted(name)}; " + (f"known: {listed}" if known else "none has been learned yet")
    )


def check_among(among: Sequence[str], known: Collection[str]) -> None:
    """An error unless there is at least one name and all are known tasks."""
    if not among:
        raise SupSupError("among=[] leaves no task to choose from; name at least one, or leave among out")
    for name in among:
        if name not in known:
            raise unknown_task(name, list(known))
