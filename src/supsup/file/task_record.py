"""What a model file keeps of one task beside its mask."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from supsup.data.rotations import ROTATIONS
from supsup.data.task_info import NO_INFO, TaskInfo
from supsup.inference.profiles import TaskProfile
from supsup.runtime.errors import SupSupError, printable

STATISTICS = "statistics/"  # prefix of the normalisation statistics
EXAMPLES = "examples"  # name of an extra: a few small images of the task, uint8, to look at
PROFILE = "supsup/trace/"  # prefix of the tensors of the task's profile
MOST_CLASSES = 1 << 31
_WRITABLE = {
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
}  # fmt: skip


@dataclass
class LearnedTask:
    """A learned task, without its mask.

    learned_at  UTC, as `now` writes it
    extras      tensors that the user keeps with the task
    profile     statistics that identify the task's inputs, where the model keeps them
    """

    name: str
    classes: int
    learned_at: str
    extras: dict[str, Tensor] = field(default_factory=dict)
    info: TaskInfo = NO_INFO
    profile: TaskProfile | None = None

    @property
    def used_outputs(self) -> int:
        """How many outputs the task uses: one per class, or one per class and rotation."""
        return self.classes * ROTATIONS if self.info.rotated else self.classes


def check_extras(tensors: object) -> None:
    """An error unless these are tensors by name that can be saved with a task."""
    if not isinstance(tensors, dict):
        raise SupSupError(f"the extras of a task are a dict of tensors by name, not {type(tensors).__name__}")
    for name, value in tensors.items():
        if not isinstance(name, str) or not name or name == "__metadata__" or name.startswith((STATISTICS, PROFILE)):
            raise SupSupError(
                f"extras cannot have the name {printable(repr(name))}: it must be text, not empty, neither "
                f'"__metadata__" nor begin with "{STATISTICS}" or "{PROFILE}"'
            )
        if name != name.encode(errors="replace").decode():
            raise SupSupError(f"the name {printable(repr(name))} of an extra is not text that can be written")
        dense = isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta
        if not dense or value.dtype not in _WRITABLE:
            raise SupSupError(
                f"the extra {printable(repr(name))} must be a dense tensor of ordinary numbers, not "
                f"{getattr(value, 'dtype', type(value).__name__)}"
            )
