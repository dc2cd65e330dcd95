"""What a `SupSup` model consists of, and the few operations that change it.

`SupSup` answers from it, the observer trains into it, and it alone writes to the file that a model may live in.
"""

from __future__ import annotations

import copy
import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from supsup.data.task import NO_INFO, TaskInfo
from supsup.file.header import (
    Header,
    build_header,
    check_network,
    explain_unknown_settings,
    image_shape_of,
    network_from_header,
)
from supsup.file.modelfile import ModelFile, model_from_bytes, model_to_bytes, write_new
from supsup.file.paths import AnyPath
from supsup.file.sqlite import explain_errors
from supsup.file.task_blocks import MaskFolder, map_blocks, read_blocks
from supsup.file.task_record import LearnedTask, pack_task, pack_tasks
from supsup.inference.new_task import NewTaskRule
from supsup.inference.profiles import TaskProfile
from supsup.inference.settings import Inference
from supsup.masks.bank import Bank
from supsup.masks.frozen import FrozenNet
from supsup.masks.switching import SwitchedNets
from supsup.model.task_table import TaskTable, check_classes, check_name
from supsup.runtime.clock import now
from supsup.runtime.devices import resolve
from supsup.runtime.errors import SupSupError, printable
from supsup.runtime.interrupts import uninterrupted
from supsup.runtime.locks import ReadersWriter, new_lock
from supsup.runtime.process import no_garbage_collection
from supsup.runtime.validation import choice, given
from supsup.training import AutoRecipe, Recipe, recipe_from_dict

T = TypeVar("T")
_NAMED = 5  # tasks that a summary lists
_ONE_AT_A_TIME = new_lock()  # models that learn on a GPU: graphs are captured and torch is watched for all threads


class OtherKind(SupSupError):
    """A file holds another kind of model than the one asked for."""


@dataclass
class ModelSettings:
    """What a user may change about a model at any time; the next commit writes it."""

    recipe: Recipe | AutoRecipe
    inference: Inference
    new_task_rule: NewTaskRule
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def stepwise(self) -> Recipe:
        """What `observe` trains with, which knows no task before it is there: the paper's where none is given."""
        return self.recipe.stepwise


class Setting(Generic[T]):
    """A field of a model's settings as an attribute of the model, checked when it is set."""

    def __init__(self, *kinds: type[Any]) -> None:
        self._kinds = kinds

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, model: Any, owner: type | None = None) -> T:
        value: T = getattr(model._state.settings, self._name)
        return value

    def __set__(self, model: Any, value: T) -> None:
        first, *others = self._kinds
        setattr(model._state.settings, self._name, given(value, first, self._name, *others))


class ModelState:
    """A frozen network, the bank of its masks and the table of their tasks, which have the same indices.

    file      where the model lives, if it does: `remove` and `commit` write to it
    lock      who answers reads under it what the four operations change; each of them happens whole or not at all
    changing  held by the thread that learns, observes, forgets or commits, from its checks to its end; training itself
              keeps nobody from reading
    """

    def __init__(self, net: FrozenNet, settings: ModelSettings, created: str | None = None) -> None:
        self.net, self.settings = net, settings
        self.bank = Bank(net.shapes, net.device, net.statistics)
        self.tasks = TaskTable()
        self.image_shape: tuple[int, ...] | None = None
        self.created = created or now()
        self.lock = ReadersWriter()
        self.changing = _ONE_AT_A_TIME if net.device.type == "cuda" else new_lock()
        self.switched = SwitchedNets(net, self.bank.spans)  # the networks that answer
        self._file: ModelFile | None = None
        self._process = 0  # which opened the file

    @property
    def file(self) -> ModelFile | None:
        return self._file

    @file.setter
    def file(self, file: ModelFile | None) -> None:
        self._file, self._process = file, os.getpid()
        if file is not None:  # who was interrupted before the model was in a variable cannot close it
            self._closing = weakref.finalize(self, _let_go, file)
            self._closing.atexit = False

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
        """The model in a file; with `in_place` it goes on living there."""
        choice("memory", "disk")(masks, "masks")
        file = None
        try:
            with uninterrupted():
                file = ModelFile(path, write=in_place)
            state = cls.from_file(file, net, device, masks)
            with uninterrupted():
                if in_place:
                    state.file = file
                else:
                    file.close()
            return state
        except BaseException:
            with uninterrupted():
                if file is not None:
                    file.close()
            raise

    @classmethod
    def from_file(
        cls, file: ModelFile, net: nn.Module | None, device: str | torch.device, masks: str = "memory"
    ) -> Self:
        """What lies in a file, every mask checked; `net` is needed where it was not built from `supsup.nets`."""
        header = file.header
        with explain_errors(file.path):
            if header.kind != "SupSup":
                raise OtherKind(f"holds a {header.kind} model, not a SupSup one: open it with supsup.load(path)")
            with explain_unknown_settings():
                recipe = recipe_from_dict(header.recipe)
                inference, new_task_rule = Inference(**header.inference), NewTaskRule(**header.allocation)
                settings = ModelSettings(recipe, inference, new_task_rule, dict(header.notes))
                module = net if net is not None else network_from_header(header)
                frozen = FrozenNet(module, header.seed, resolve(device), header.pretrained, header.shapes)
            check_network(frozen, header)
        state = cls(frozen, settings, header.created)
        state.image_shape = image_shape_of(header)
        with no_garbage_collection():  # all that is made here stays
            if masks == "disk":
                state._map_masks(file)
            state.bank.reserve(len(file.names) - len(state.tasks))
            tasks: list[LearnedTask] = []  # added at once: the table is copied whenever it grows
            for block in read_blocks(file, frozen, len(state.tasks)):
                with explain_errors(file.path), explain_unknown_settings():
                    _check_recipes(block.tasks)
                state.bank.add_packed(block.packed, block.statistics)
                tasks += block.tasks
            state.tasks.prepare_add(tasks, saved=True)()
        return state

    def _map_masks(self, file: ModelFile) -> None:
        """The masks of a file as far as whole blocks of them can be read from the disk."""
        if self.net.device.type != "cpu":
            raise SupSupError('masks on the disk are searched by the CPU: load(path, masks="disk", device="cpu")')
        folder = MaskFolder(file.path, self.bank.length)
        tasks: list[LearnedTask] = []
        for block, mapped in map_blocks(file, self.net, folder):
            with explain_errors(file.path), explain_unknown_settings():
                _check_recipes(block.tasks)
            self.bank.map_block(mapped.packed, mapped.kept, block.statistics)
            tasks += block.tasks
        self.tasks.prepare_add(tasks, saved=True)()

    def to(self, device: torch.device) -> ModelState:
        """A copy on a device that lives in no file."""
        net = FrozenNet(self.net.module, self.net.seed, device, self.net.pretrained, self.net.weights)
        other = ModelState(net, replace(self.settings, notes=copy.deepcopy(self.settings.notes)), self.created)
        other.bank, other.tasks, other.image_shape = self.bank.to(device), self.tasks.copy(), self.image_shape
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> ModelState:
        with self.lock.reading():
            return self.to(self.net.device)

    def __reduce__(self) -> tuple[Any, ...]:
        """By the bytes of a file, and by the module itself where a file does not say how to build it."""
        with self.lock.reading():
            own = None if self.header().architecture is not None else self.net.module
            return _from_content, (model_to_bytes(self.save), own, str(self.net.device))

    def header(self) -> Header:
        """Everything but the tasks, as a file takes it."""
        settings = self.settings
        return build_header(
            self.net,
            settings.recipe.to_dict(),
            self.image_shape,
            settings.notes,
            self.created,
            inference=asdict(settings.inference),
            allocation=asdict(settings.new_task_rule),
        )

    def summary(self, kind: str) -> str:
        """What the model holds, in a line."""
        net, names = self.net, self.tasks.names
        weights = sum(shape.numel() for shape in net.shapes.values())
        some = ", ".join(map(printable, names[:_NAMED])) + (", …" if len(names) > _NAMED else "")
        size = len(names) * sum(-(-shape.numel() // 8) for shape in net.shapes.values())
        origin = "pretrained" if net.pretrained else f"seed {net.seed}"
        replaced = [
            f"{type(net.module).__name__} of {weights:,} masked weights, {origin}",
            f"{len(names):,} task{'' if len(names) == 1 else 's'}" + (f": {some}" if names else ""),
            f"{size:,} bytes of masks",
            f"on {net.device}",
            f"in {self._file.path}" if self._file is not None else "in no file",
        ]
        return f"{kind}({'; '.join(replaced)})"

    def add(
        self,
        classes: Mapping[str, int],
        packed: Tensor,
        statistics: Mapping[str, Tensor],
        image_shape: tuple[int, ...],
        info: Mapping[str, TaskInfo] | None = None,
        profiles: Mapping[str, TaskProfile] | None = None,
    ) -> None:
        """New tasks: their numbers of classes by name, masks as bytes [bytes, tasks] and statistics [tasks, …].

        facts   what a task has of its own beside its mask, by name, for those that have some
        traces  what tasks are found by, for those that leave some
        """
        for name, count in classes.items():
            check_name(name)
            check_classes(name, count, least=0)  # a task that is observed has none at first
        learned_at = now()
        own, left = info or {}, profiles or {}
        tasks = self.tasks.prepare_add(
            LearnedTask(name, count, learned_at, info=own.get(name, NO_INFO), profile=left.get(name))
            for name, count in classes.items()
        )
        masks = self.bank.prepare_add(packed, statistics)
        with self.lock.writing():
            masks()
            tasks()
            self.image_shape = image_shape

    def replace(self, name: str, mask: Mapping[str, Tensor]) -> None:
        """Another mask for a task, and other statistics if given."""
        change = self.bank.prepare_replace(self.tasks.index(name), mask)
        with self.lock.writing():
            change()
            self.tasks.changed(name)

    def remove(self, name: str) -> None:
        """Take a task out, from the file first."""
        masks, tasks = self.bank.prepare_remove(self.tasks.index(name)), self.tasks.prepare_remove(name)
        with uninterrupted():
            file = self._own_file()
            if file is not None and name in file:
                file.remove(name, self.header())
            with self.lock.writing():
                masks()
                tasks()

    def commit(self) -> None:
        """Bring the file up to date; where that fails the tasks stay in memory and the next commit tries again."""
        file = self._own_file()
        if file is None:
            return
        marks, header = self.tasks.marks(), self.header()
        if not marks and header == file.header:
            return
        packed = (pack_task(self.tasks[name], self.bank, self.tasks.index(name)) for name in marks)
        with uninterrupted():
            file.put(packed, header)
            self.tasks.saved(marks)

    def lives_at(self, path: AnyPath | None) -> bool:
        """Whether a model saved to this path (None: to no path in particular) is saved to its own file."""
        return path is None or (self._file is not None and self._file.is_at(path))

    def save(self, path: AnyPath | None = None) -> None:
        """Write everything to a new file, or bring the file up to date that the model lives in."""
        if path is not None and not self.lives_at(path):
            write_new(path, self.header(), pack_tasks(self.tasks, self.bank))
        elif self._file is None:
            raise SupSupError('this model lives in no file; say where to save it: save("model.supsup")')
        else:
            self.commit()

    def close(self) -> None:
        """Let go of the file as it is."""
        file = self._file
        if file is not None:
            with uninterrupted():
                self._file = None
                self._closing.detach()
                _let_go(file)

    @property
    def is_foreign(self) -> bool:
        """Whether the file was opened by a process from which this one was forked."""
        return self._process != os.getpid()

    def _own_file(self) -> ModelFile | None:
        """The file to write to, an error in a process that was forked after the file was opened."""
        if self._file is not None and self.is_foreign:
            raise SupSupError(
                f"{self._file.path} was opened by the process that this one was forked from, and only that one may "
                "write to it; close() the model here to go on without the file, or save it to another one"
            )
        return self._file


def state_of(model: Any) -> ModelState:
    """The state of a `SupSup` model: its frozen network, masks, task table, settings and locks.

    For extensions, benchmarks and tests. Read it under `state.lock.reading()` where another thread may learn. Change it
    through the operations of `ModelState` alone, while holding `state.changing`.
    """
    state: ModelState = model._state
    return state


def _let_go(file: ModelFile) -> None:
    with uninterrupted():
        file.close()


def _check_recipes(tasks: Sequence[LearnedTask]) -> None:
    """An error unless what was chosen for tasks are recipes of ours."""
    for task in tasks:
        chosen: Any = task.info.recipe
        if chosen is not None:
            Recipe.from_dict(chosen)


def _from_content(content: bytes, net: nn.Module | None, device: str) -> ModelState:
    """A state from what `ModelState.__reduce__` has made of it."""
    return model_from_bytes(content, lambda path: ModelState.load(path, net, device))
