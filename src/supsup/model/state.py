"""The state of a `SupSup` model and the operations that change it: add, replace, remove, commit.

Only this module writes to the model's file. `TaskTable` has the tasks in the order in which they were learned, with
look-up by name or index in O(1).
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from supsup.data.inputs import Inputs, inputs_key
from supsup.data.task import TaskInfo
from supsup.file.header import Header, build_header, check_network, explain_unknown_settings, network_from_header
from supsup.file.modelfile import ModelFile, model_from_bytes, model_to_bytes, write_new
from supsup.file.paths import AnyPath
from supsup.file.sqlite import explain_errors
from supsup.file.task_blocks import map_blocks, read_blocks
from supsup.file.task_record import MOST_CLASSES, LearnedTask, check_extras, pack_task, pack_tasks
from supsup.inference.methods import Inference
from supsup.inference.new_task import NewTaskRule
from supsup.inference.profiles.features import SIZES
from supsup.masks.bank import Bank, Change
from supsup.masks.frozen import FrozenNet, SwitchedNets
from supsup.masks.scores import RunningMean
from supsup.runtime.clock import now
from supsup.runtime.devices import resolve
from supsup.runtime.errors import SupSupError, printable
from supsup.runtime.interrupts import uninterrupted
from supsup.runtime.locks import ReadersWriter, new_lock
from supsup.runtime.process import no_garbage_collection
from supsup.runtime.validation import choice, names, quoted
from supsup.training import AutoRecipe, Recipe, recipe_from_dict

T = TypeVar("T")
_NAMED = 5  # tasks that a summary or an error lists
_GPU_TRAINING = new_lock()  # one model at a time learns on a GPU: capturing a graph affects all threads


class OtherKind(SupSupError):
    """The file holds another kind of model."""


@dataclass
class ModelSettings:
    """Settings that the user may change at any time; the next commit writes them."""

    recipe: Recipe | AutoRecipe
    inference: Inference
    new_task_rule: NewTaskRule
    notes: dict[str, Any] = field(default_factory=dict)


class Setting(Generic[T]):
    """A field of a model's settings as an attribute of the model, checked when it is set."""

    def __init__(self, check: Callable[[Any], T]) -> None:
        self._check = check

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, model: Any, owner: type | None = None) -> T:
        value: T = getattr(model._state.settings, self._name)
        return value

    def __set__(self, model: Any, value: T) -> None:
        setattr(model._state.settings, self._name, self._check(value))


class ModelState:
    """A frozen network, the bank of its masks and the table of their tasks; a mask and its task have the same index.

    file      the file of a model loaded with in_place=True, else None; `remove` and `commit` write to it
    lock      answers hold the read lock; changes take the write lock, for the short step that makes the change
    changing  held by the thread that learns, observes, forgets or commits, from its checks to its end; readers do not
              wait for training
    """

    def __init__(self, net: FrozenNet, settings: ModelSettings, created: str | None = None) -> None:
        self.net, self.settings = net, settings
        self.bank = Bank(net.shapes, net.device, net.statistics)
        self.tasks = TaskTable()
        self.image_shape: tuple[int, ...] | None = None
        self.created = created or now()
        self.lock = ReadersWriter()
        self.changing = _GPU_TRAINING if net.device.type == "cuda" else new_lock()
        self.switched = SwitchedNets(net)  # networks with a mask applied, for answers
        self.file: ModelFile | None = None
        self.earlier_scores = RunningMean()  # of all tasks learned, for transfer="scores"; not saved

    @classmethod
    def load(
        cls,
        path: AnyPath,
        net: nn.Module | None,
        device: str | torch.device,
        *,
        in_place: bool = False,
        masks: str = "memory",
    ) -> ModelState:
        """The model in a file; with `in_place`, `commit` keeps the file up to date."""
        choice("memory", "disk")(masks, "masks")
        with ExitStack() as held:
            with uninterrupted():
                file = held.enter_context(ModelFile(path, write=in_place))
            state = cls._from_file(file, net, device, masks)
            if in_place:
                with uninterrupted():
                    state._keep_file(file)
                held.pop_all()
            return state

    @classmethod
    def _from_file(cls, file: ModelFile, net: nn.Module | None, device: str | torch.device, masks: str) -> Self:
        """The state in a file, every mask checked."""
        header = file.header
        with explain_errors(file.path):
            if header.kind != "SupSup":
                raise OtherKind(f"holds a {header.kind} model, not a SupSup one: open it with supsup.load(path)")
            with explain_unknown_settings():
                recipe = recipe_from_dict(header.recipe)
                inference, new_task_rule = Inference(**header.inference), NewTaskRule(**header.allocation)
                settings = ModelSettings(recipe, inference, new_task_rule, dict(header.notes))
                module = net if net is not None else network_from_header(header)
                size = choice(*SIZES)(header.profile_size, "profile_size")
                frozen = FrozenNet(
                    module, header.seed, resolve(device), header.pretrained, header.shapes, profile_size=size
                )
            check_network(frozen, header)
        state = cls(frozen, settings, header.created)
        state.image_shape = header.learned_shape
        if masks == "disk" and frozen.device.type != "cpu":
            raise SupSupError('masks on disk are searched by the CPU: load(path, masks="disk", device="cpu")')
        bank, tasks = state.bank, list[LearnedTask]()
        with no_garbage_collection():  # everything created here stays alive
            if masks == "disk":  # whole blocks of masks; the rest is read into memory
                for block, kept in map_blocks(file, frozen):
                    bank.map_block(block.packed, kept, block.statistics)
                    tasks += block.tasks
            bank.reserve(len(file.names) - len(tasks))
            for block in read_blocks(file, frozen, len(tasks)):
                bank.add_packed(block.packed, block.statistics)
                tasks += block.tasks
            with explain_errors(file.path), explain_unknown_settings():
                for chosen in (task.info.recipe for task in tasks if task.info.recipe is not None):
                    Recipe(**dict[str, Any](chosen))
            state.tasks.prepare_add(tasks, saved=True)()
        return state

    def _keep_file(self, file: ModelFile) -> None:
        """Keep a file up to date from now on; it is closed if the model is lost before the user can close it."""
        self.file = file
        self._closing = weakref.finalize(self, file.close)
        self._closing.atexit = False

    def to(self, device: torch.device) -> ModelState:
        """A copy on a device, without a file."""
        net, size = self.net, self.net.profile_size
        net = FrozenNet(net.module, net.seed, device, net.pretrained, net.weights, profile_size=size)
        other = ModelState(net, replace(self.settings, notes=copy.deepcopy(self.settings.notes)), self.created)
        other.bank, other.tasks, other.image_shape = self.bank.to(device), self.tasks.copy(), self.image_shape
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> ModelState:
        with self.lock.reading():
            return self.to(self.net.device)

    def __reduce__(self) -> tuple[Any, ...]:
        """As the bytes of a model file, plus the module if a file cannot describe it."""
        with self.lock.reading():
            own = None if self.header().architecture is not None else self.net.module
            load = partial(type(self).load, net=own, device=str(self.net.device))
            return model_from_bytes, (model_to_bytes(self.save), load)

    def header(self) -> Header:
        """Everything but the tasks, in the form of a file header."""
        settings = self.settings
        return build_header(
            self.net,
            recipe=asdict(settings.recipe),
            image_shape=self.image_shape,
            notes=settings.notes,
            created=self.created,
            inference=asdict(settings.inference),
            allocation=asdict(settings.new_task_rule),
        )

    def summary(self, kind: str) -> str:
        """The model in one line."""
        net, names = self.net, self.tasks.names
        weights = sum(shape.numel() for shape in net.shapes.values())
        size = len(names) * sum(-(-shape.numel() // 8) for shape in net.shapes.values())
        origin = "pretrained" if net.pretrained else f"seed {net.seed}"
        parts = [
            f"{type(net.module).__name__} of {weights:,} masked weights, {origin}",
            f"{len(names):,} task{'' if len(names) == 1 else 's'}" + (f": {_first_few(names)}" if names else ""),
            f"{size:,} bytes of masks",
            f"on {net.device}",
            f"in {self.file.path}" if self.file is not None else "not saved",
        ]
        return f"{kind}({'; '.join(parts)})"

    def add(
        self,
        tasks: Sequence[LearnedTask],
        packed: Tensor,
        statistics: Mapping[str, Tensor],
        image_shape: tuple[int, ...],
    ) -> None:
        """Add tasks that were checked, with masks as bytes [bytes, tasks] and statistics [tasks, …]."""
        for task in tasks:
            check_name(task.name)  # once more: no later commit could write the file
        table, masks = self.tasks.prepare_add(tasks), self.bank.prepare_add(packed, statistics)
        with self.lock.writing():
            masks()
            table()
            self.image_shape = image_shape

    def replace(self, name: str, mask: Mapping[str, Tensor]) -> None:
        """Replace the mask of a task, and its statistics if given."""
        change = self.bank.prepare_replace(self.tasks.index(name), mask)
        with self.lock.writing():
            change()
            self.tasks.mark_unsaved(name)

    def remove(self, name: str) -> None:
        """Remove a task, from the file first."""
        masks, tasks = self.bank.prepare_remove(self.tasks.index(name)), self.tasks.prepare_remove(name)
        with uninterrupted():
            file = self._own_file()
            if file is not None and name in file:
                file.remove(name, self.header())
            with self.lock.writing():
                masks()
                tasks()

    def commit(self) -> None:
        """Write all changes to the file; if that fails, tasks stay in memory and the next commit tries again."""
        file = self._own_file()
        if file is None:
            return
        marks, header = self.tasks.unsaved(), self.header()
        if not marks and header == file.header:
            return
        packed = (pack_task(self.tasks[name], self.bank, self.tasks.index(name), header) for name in marks)
        with uninterrupted():
            file.put(packed, header)
            self.tasks.mark_saved(marks)

    def lives_at(self, path: AnyPath | None) -> bool:
        """Whether `save(path)` means the model's file; a path of None does."""
        return path is None or (self.file is not None and self.file.is_at(path))

    def save(self, path: AnyPath | None = None) -> None:
        """Write everything to a new file, or commit to the model's file."""
        if path is not None and not self.lives_at(path):
            header = self.header()
            write_new(path, header, pack_tasks(self.tasks, self.bank, header))
        elif self.file is None:
            raise SupSupError('this model has no file; give a path: save("model.supsup")')
        else:
            self.commit()

    def close(self) -> None:
        """Close the file as it is."""
        if self.file is not None:
            with uninterrupted():
                self.file = None
                self._closing()

    def _own_file(self) -> ModelFile | None:
        """The file to write to, or an error in a forked process."""
        if self.file is not None:
            self.file.check_writable()
        return self.file


def state_of(model: Any) -> ModelState:
    """The state of a `SupSup` model: its frozen network, masks, task table, settings and locks.

    For extensions, benchmarks and tests. Read it under `state.lock.reading()` where another thread may learn. Change it
    through the operations of `ModelState` alone, while holding `state.changing`.
    """
    state: ModelState = model._state
    return state


_LONGEST_NAME = 1000  # characters of a task's name

InputGroups = list[tuple[Inputs | None, list[int]]]  # indices of tasks that normalise raw inputs in the same way


class TaskTable:
    """The tasks of one model; a task and its mask in the bank have the same index.

    Any thread may read at any time. A change is prepared (`prepare_add`, `prepare_remove`), then made in one step
    that replaces all rows.
    """

    def __init__(self, tasks: Iterable[LearnedTask] = ()) -> None:
        self._rows: tuple[list[LearnedTask], dict[str, int]] = ([], {})  # in order, and their indices by name
        self._unsaved: dict[str, object] = {}  # tasks that differ from the model's file: a mark of the last change
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

    def indices(self, among: Any) -> list[int] | None:
        """The indices of candidate tasks (None: of all), or an error as by `check_among`."""
        indices = self._rows[1]
        names = check_among(among, indices)
        return None if names is None else [indices[name] for name in names]

    def at(self, index: int) -> LearnedTask:
        """The task with an index."""
        return self._rows[0][index]

    def input_groups(self, members: Sequence[int] | None = None) -> InputGroups:
        """Tasks (all by default) grouped by how they normalise raw inputs, in the order of the first of each group."""
        rows, (cached_for, groups) = self._rows[0], self._groups
        if members is None and cached_for is rows:
            return groups
        found: dict[object, tuple[Inputs | None, list[int]]] = {}
        for index in range(len(rows)) if members is None else members:
            inputs = rows[index].info.inputs
            found.setdefault(inputs_key(inputs), (inputs, []))[1].append(index)
        groups = list(found.values())
        if members is None:
            self._groups = rows, groups
        return groups

    def prepare_add(self, new: Iterable[LearnedTask], *, saved: bool = False) -> Change:
        """Prepare to append tasks (`saved`: the model's file has them); an error if a name is taken."""
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

    def prepare_remove(self, name: str) -> Change:
        """Prepare to remove a task; the indices of later ones decrease by one."""
        index = self.index(name)
        tasks = [task for i, task in enumerate(self._rows[0]) if i != index]
        indices = {task.name: i for i, task in enumerate(tasks)}

        def change() -> None:
            self._rows = tasks, indices
            self._unsaved.pop(name, None)

        return change

    def unsaved(self) -> dict[str, object]:
        """The names of tasks that differ from the model's file, in order, each with a mark of its last change."""
        indices, marks = self._rows[1], self._unsaved.copy()
        return {name: marks[name] for name in sorted(marks, key=indices.__getitem__)}

    def mark_unsaved(self, name: str) -> None:
        """Note that a task differs from the model's file."""
        self._unsaved[self[name].name] = object()

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


class TasksOfModel:
    """What every kind of model tells of its tasks."""

    _tasks: TaskTable

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks learned, in order."""
        return self._tasks.names

    def classes(self, task: str) -> int:
        """The number of classes of a task."""
        return self._tasks[task].classes

    def task_info(self, task: str) -> TaskInfo:
        """What the model keeps of a task beside its mask: class names, how raw inputs are prepared."""
        return self._tasks[task].info

    def learned_at(self, task: str) -> str:
        """When a task was learned (UTC)."""
        return self._tasks[task].learned_at

    def __copy__(self) -> Self:
        return copy.deepcopy(self)


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


def check_classes(name: str, classes: object) -> None:
    """An error unless this is a valid number of classes."""
    if isinstance(classes, bool) or not isinstance(classes, int) or not 1 <= classes < MOST_CLASSES:
        raise SupSupError(f"task {quoted(name)} has {quoted(classes)} classes; give a whole number, at least 1")


def unknown_task(name: object, known: Sequence[str]) -> SupSupError:
    """The error for a task that a learner has not learned."""
    return SupSupError(
        f"unknown task {quoted(name)}; " + (f"known: {_first_few(known)}" if known else "none has been learned yet")
    )


def _first_few(tasks: Sequence[str]) -> str:
    return ", ".join(map(printable, tasks[:_NAMED])) + (", …" if len(tasks) > _NAMED else "")


def check_among(among: Any, known: Collection[str]) -> list[str] | None:
    """The candidate tasks as a list (None: all), or an error unless there is at least one and all are known."""
    if among is None:
        return None
    candidates = names(among, "among")
    if not candidates:
        raise SupSupError("among=[] leaves no task to choose from; name at least one, or leave among out")
    for name in candidates:
        if name not in known:
            raise unknown_task(name, list(known))
    return candidates
