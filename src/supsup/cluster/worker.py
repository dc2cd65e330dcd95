"""What a worker does: it trains a group of tasks and returns a part, the bytes of a model file with these tasks alone.

Tensors that several tasks share are sent to workers once, all others with their group. A mask depends on seed, name and
data alone, so a group that was lost gives the same bits wherever it is trained again.
"""

from __future__ import annotations

import platform
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from supsup.data import Part, Task
from supsup.data.augmentation import Augmentation
from supsup.model.learning import PartTrainer
from supsup.runtime.errors import SupSupError
from supsup.runtime.locks import new_lock

SharedTensors = str | Mapping[str, NDArray[Any]]  # the path of a safetensors file, or arrays by name
_IN_A_ROW = 4  # tasks for each thread of a CPU, so that sending a group costs little
_OPENING = new_lock()
_opened: dict[str, tuple[PartTrainer, dict[str, Tensor]]] = {}  # the last run of this process, by its key
_FIELDS = ("images", "labels", "gain", "offset", "rows", "pixels")  # of a part


@dataclass(frozen=True)
class SentTask:
    """What training needs of a task; `tensors` are the fields of its part, by name where tasks share them."""

    name: str
    classes: int
    tensors: Mapping[str, str | NDArray[Any]] = field(repr=False)
    augmentation: Augmentation | None

    def task(self, shared: Mapping[str, Tensor]) -> Task:
        """The task again; its test images, which training does not need, are the training images."""
        fields: dict[str, Any] = {
            name: shared[sent] if isinstance(sent, str) else torch.tensor(sent) for name, sent in self.tensors.items()
        }
        part = Part(**fields, augmentation=self.augmentation)
        return Task(self.name, part, part, self.classes)


class SharedTasks:
    """The tasks of a stream on their way to workers, and by name the tensors that more than one task trains on."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            if not task.train.in_memory:
                raise SupSupError(
                    f"the images of task {task.name!r} are read from files, which workers may not have; "
                    "give image_folder stream=False, or learn without a cluster"
                )
        found = [tensor for task in tasks for tensor in _fields(task.train).values()]
        uses = Counter(map(id, found))
        common = {id(tensor): tensor for tensor in found if uses[id(tensor)] > 1}
        self._names = {key: f"shared-{number}" for number, key in enumerate(common)}
        self.tensors = {self._names[key]: _copied(tensor) for key, tensor in common.items()}

    def sent(self, task: Task) -> SentTask:
        """One of the tasks, as a worker gets it."""
        tensors = {
            name: self._names.get(id(tensor)) or _copied(tensor).numpy() for name, tensor in _fields(task.train).items()
        }
        return SentTask(task.name, task.classes, tensors, task.train.augmentation)


def _fields(part: Part) -> dict[str, Tensor]:
    return {name: value for name in _FIELDS if (value := getattr(part, name)) is not None}


def _copied(tensor: Tensor) -> Tensor:
    """On the CPU and contiguous: a map of pixels is one row of many."""
    return tensor.cpu().clone().contiguous()


@dataclass(frozen=True)
class WorkerSetup:
    """One call of `learn_many`, as workers need it: its key, and the blueprint, device and precision to train with."""

    key: str
    content: bytes = field(repr=False)
    module: nn.Module | None
    device: str
    precision: torch.dtype | None


@dataclass(frozen=True)
class GroupResult:
    """What a worker returns: a part, or the error that prevented it."""

    node: str
    part: bytes = field(default=b"", repr=False)
    error: str = ""


def learn_group(setup: WorkerSetup, shared: SharedTensors, group: Sequence[SentTask]) -> GroupResult:
    """Train every task of a group."""
    try:
        trainer, tensors = _open(setup, shared)
        tasks = [sent.task(tensors) for sent in group]
        return GroupResult(platform.node(), trainer.train(tasks, setup.precision))
    except SupSupError as error:
        return GroupResult(platform.node(), error=str(error))


def tasks_per_group(setup: WorkerSetup, shared: SharedTensors, group: Sequence[SentTask]) -> int:
    """How many tasks like the first of this group a group should have: more would only be lost together."""
    trainer, tensors = _open(setup, shared)
    at_once = trainer.tasks_at_once(group[0].task(tensors), setup.precision)
    return at_once * (_IN_A_ROW if setup.device == "cpu" else 1)


def _open(setup: WorkerSetup, shared: SharedTensors) -> tuple[PartTrainer, dict[str, Tensor]]:
    """The model and the shared tensors, opened once for each run."""
    with _OPENING:
        if setup.key not in _opened:
            _opened.clear()
            _opened[setup.key] = PartTrainer(setup.content, setup.module, setup.device), _tensors(shared)
        return _opened[setup.key]


def _tensors(shared: SharedTensors) -> dict[str, Tensor]:
    """Without copying: a file is mapped, and processes of a node share the memory of arrays."""
    if isinstance(shared, str):
        return load_file(shared)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the arrays are read-only, and nothing here writes to them
        return {name: torch.from_numpy(array) for name, array in shared.items()}
