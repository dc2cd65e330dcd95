"""Tasks on their way to a worker: tensors that several tasks share go out once, a group brings what is its own."""

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
    """What training needs of a task; `tensors` are the names of its part's fields in a group or among the shared."""

    name: str
    classes: int
    tensors: Mapping[str, str]
    augmentation: Augmentation | None


@dataclass(frozen=True)
class Group:
    """Tasks that one worker trains, with the tensors that only they have (safetensors bytes)."""

    tasks: Sequence[SentTask]
    own: bytes = field(repr=False)

    def opened(self, shared: Mapping[str, Tensor]) -> list[Task]:
        """The tasks again; each has its training images to test on too, which nobody looks at."""
        tensors = {**shared, **tensors_of(self.own)}
        opened = []
        for task in self.tasks:
            fields = {name: tensors[key] for name, key in task.tensors.items()}
            part = Part(**fields, augmentation=task.augmentation)  # type: ignore[arg-type]
            opened.append(Task(task.name, part, part, task.classes))
        return opened


class Shared:
    """The tensors that more than one task of a stream trains on, by name."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        _check_in_memory(tasks)
        found = [tensor for task in tasks for tensor in _fields(task.train).values()]
        uses = Counter(map(id, found))
        common = {id(tensor): tensor for tensor in found if uses[id(tensor)] > 1}
        self._names = {key: f"shared-{number}" for number, key in enumerate(common)}
        self.tensors = {self._names[key]: _plain(tensor) for key, tensor in common.items()}

    def group(self, tasks: Sequence[Task]) -> Group:
        """Some of the tasks as they go out."""
        own: dict[str, Tensor] = {}
        sent = []
        for task in tasks:
            names = {}
            for name, tensor in _fields(task.train).items():
                names[name] = self._names.get(id(tensor), f"own-{len(own)}")
                if names[name].startswith("own"):
                    own[names[name]] = _plain(tensor)
            sent.append(SentTask(task.name, task.classes, names, task.train.augmentation))
        return Group(sent, bytes_of(own))


def _fields(part: Part) -> dict[str, Tensor]:
    return {name: value for name in _FIELDS if (value := getattr(part, name)) is not None}


def _plain(tensor: Tensor) -> Tensor:
    """On the CPU, with memory of its own: a map of pixels is one row of many."""
    return tensor.cpu().clone().contiguous()


def _check_in_memory(tasks: Sequence[Task]) -> None:
    for task in tasks:
        if not task.train.in_memory:
            raise SupSupError(
                f"the images of task {task.name!r} stay in their files, which workers may not see; "
                "give image_folder stream=False, or learn without a cluster"
            )
