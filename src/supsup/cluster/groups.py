"""Tasks on their way to a worker: tensors that several tasks share are sent once, all others with their group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of
from torch import Tensor

from supsup.data import Part, Task
from supsup.data.augmentation import Augmentation
from supsup.runtime.errors import SupSupError

_FIELDS = ("images", "labels", "gain", "offset", "rows", "pixels")  # of a part


@dataclass(frozen=True)
class SentTask:
    """What training needs of a task; `tensors` names the fields of its part in its group or among the shared ones."""

    name: str
    classes: int
    tensors: Mapping[str, str]
    augmentation: Augmentation | None


@dataclass(frozen=True)
class TaskGroup:
    """Tasks that one worker trains, with the tensors that only they have (safetensors bytes)."""

    sent: Sequence[SentTask]
    own: bytes = field(repr=False)

    def tasks(self, shared: Mapping[str, Tensor]) -> list[Task]:
        """The tasks again; their test images, which training does not need, are the training images."""
        tensors = {**shared, **tensors_of(self.own)}
        opened = []
        for task in self.sent:
            fields = {name: tensors[key] for name, key in task.tensors.items()}
            part = Part(**fields, augmentation=task.augmentation)  # type: ignore[arg-type]
            opened.append(Task(task.name, part, part, task.classes))
        return opened


class SharedTasks:
    """The tasks of a stream on their way to workers, and by name the tensors that more than one task trains on."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        _check_in_memory(tasks)
        found = [tensor for task in tasks for tensor in _fields(task.train).values()]
        uses = Counter(map(id, found))
        common = {id(tensor): tensor for tensor in found if uses[id(tensor)] > 1}
        self._names = {key: f"shared-{number}" for number, key in enumerate(common)}
        self.tensors = {self._names[key]: _copied(tensor) for key, tensor in common.items()}

    def group(self, tasks: Sequence[Task]) -> TaskGroup:
        """Some of the tasks, as a worker gets them."""
        own: dict[str, Tensor] = {}
        sent = []
        for task in tasks:
            names = {}
            for name, tensor in _fields(task.train).items():
                names[name] = self._names.get(id(tensor), f"own-{len(own)}")
                if names[name].startswith("own"):
                    own[names[name]] = _copied(tensor)
            sent.append(SentTask(task.name, task.classes, names, task.train.augmentation))
        return TaskGroup(sent, bytes_of(own))


def _fields(part: Part) -> dict[str, Tensor]:
    return {name: value for name in _FIELDS if (value := getattr(part, name)) is not None}


def _copied(tensor: Tensor) -> Tensor:
    """On the CPU and contiguous: a map of pixels is one row of many."""
    return tensor.cpu().clone().contiguous()


def _check_in_memory(tasks: Sequence[Task]) -> None:
    for task in tasks:
        if not task.train.in_memory:
            raise SupSupError(
                f"the images of task {task.name!r} are read from files, which workers may not have; "
                "give image_folder stream=False, or learn without a cluster"
            )
