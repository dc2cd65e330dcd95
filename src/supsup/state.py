"""What a `SupSup` model consists of, and the few operations that change it.

`SupSup` answers from it, the observer trains into it, and it alone writes to the file that a model may live in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor, nn

from supsup.allocation import Allocation
from supsup.bank import Bank
from supsup.devices import resolve
from supsup.errors import SupSupError
from supsup.file import convert
from supsup.file.format import Header
from supsup.file.modelfile import ModelFile, write_new
from supsup.file.paths import AnyPath
from supsup.file.sqlite import explained
from supsup.frozen import FrozenNet
from supsup.inference import Inference
from supsup.switching import SwitchedNet
from supsup.tasks import LearnedTask, TaskTable, check_classes, check_name, now
from supsup.training.recipe import Recipe


@dataclass
class Settings:
    """What a user may change about a model at any time; the next commit writes it."""

    recipe: Recipe
    inference: Inference
    allocation: Allocation
    notes: dict[str, Any] = field(default_factory=dict)


class ModelState:
    """A frozen network, the bank of its masks and the table of their tasks, which have the same indices.

    file  where the model lives, if it does: `remove` and `commit` write to it
    """

    def __init__(self, net: FrozenNet, settings: Settings, created: str | None = None) -> None:
        self.net, self.settings = net, settings
        self.bank = Bank(net.shapes, net.device, net.statistics)
        self.tasks = TaskTable()
        self.image_shape: tuple[int, ...] | None = None
        self.created = created or now()
        self.file: ModelFile | None = None

    @classmethod
    def from_file(cls, file: ModelFile, net: nn.Module | None, device: str | torch.device) -> Self:
        """What lies in a file, every mask checked; `net` is needed where it was not built from `supsup.nets`."""
        header = file.header
        with explained(file.path):
            if header.kind != "SupSup":
                raise SupSupError(f"holds a {header.kind} model: open it with supsup.{header.kind}.load(path)")
            with convert.settings_of_a_file():
                recipe, inference = Recipe(**header.recipe), Inference(**header.inference)
                settings = Settings(recipe, inference, Allocation(**header.allocation), dict(header.notes))
                module = net if net is not None else convert.network_of(header)
                frozen = FrozenNet(module, header.seed, resolve(device), header.pretrained)
            convert.check_weights(frozen, header)
        state = cls(frozen, settings, header.created)
        state.image_shape = convert.image_shape_of(header)
        for block in convert.blocks(file, frozen):
            state.bank.add_packed(block.packed, block.statistics)
            for task in block.tasks:
                state.tasks.add(task, saved=True)
        return state

    def to(self, device: torch.device) -> ModelState:
        """A copy on a device that lives in no file."""
        net = FrozenNet(self.net.module, self.net.seed, device, self.net.pretrained)
        copy = ModelState(net, replace(self.settings, notes=dict(self.settings.notes)), self.created)
        copy.bank, copy.tasks, copy.image_shape = self.bank.to(device), self.tasks.copy(), self.image_shape
        return copy

    @cached_property
    def switched(self) -> SwitchedNet:
        """The network that answers, with the mask of the last answer still on."""
        return SwitchedNet(self.net, self.bank.spans)

    def header(self) -> Header:
        """Everything but the tasks, as a file takes it."""
        settings = self.settings
        return convert.header_of(
            self.net,
            asdict(settings.recipe),
            self.image_shape,
            settings.notes,
            self.created,
            inference=asdict(settings.inference),
            allocation=asdict(settings.allocation),
        )

    def add(
        self,
        classes: Mapping[str, int],
        packed: Tensor,
        statistics: Mapping[str, Tensor],
        image_shape: tuple[int, ...],
    ) -> None:
        """New tasks: their numbers of classes by name, masks as bytes [bytes, tasks] and statistics [tasks, …]."""
        for name, count in classes.items():
            check_name(name)
            check_classes(name, count, least=0)  # a task that is observed has none at first
            self.tasks.check_new(name)
        self.bank.add_packed(packed, statistics)
        learned_at = now()
        for name, count in classes.items():
            self.tasks.add(LearnedTask(name, count, learned_at))
        self.image_shape = image_shape

    def replace(self, name: str, mask: Mapping[str, Tensor]) -> None:
        """Another mask for a task, and other statistics if given."""
        self.bank.replace(self.tasks.index(name), mask)
        self.tasks.changed(name)

    def remove(self, name: str) -> None:
        """Take a task out, from the file first."""
        index = self.tasks.index(name)
        if self.file is not None and name in self.file:
            self.file.remove(name, self.header())
        self.bank.remove(index)
        self.tasks.remove(name)

    def commit(self) -> None:
        """Bring the file up to date; where that fails the tasks stay in memory and the next commit tries again."""
        if self.file is None:
            return
        unsaved = self.tasks.unsaved()
        packed = (convert.packed_task(task, self.bank, self.tasks.index(task.name)) for task in unsaved)
        self.file.put(packed, self.header())
        self.tasks.saved(unsaved)

    def save(self, path: AnyPath | None = None) -> None:
        """Write everything to a new file, or bring the file up to date that the model lives in."""
        if path is not None and (self.file is None or not self.file.is_at(path)):
            write_new(path, self.header(), convert.packed_tasks(self.tasks, self.bank))
        elif self.file is None:
            raise SupSupError('this model lives in no file; say where to save it: save("model.supsup")')
        else:
            self.commit()

    def close(self) -> None:
        """Let go of the file as it is."""
        if self.file is not None:
            self.file.close()
            self.file = None
