"""A `HopSupSup` model in a model file: the header names its tasks, the state is Ψ and μ of every layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from supsup.file.header import Header, build_header, explain_unknown_settings, image_shape_of
from supsup.file.modelfile import ModelFile, write_new
from supsup.file.paths import AnyPath
from supsup.file.task_record import LearnedTask, info_from_text, info_to_text, tensors_from_bytes, tensors_to_bytes
from supsup.hopfield.recovery import Recovery
from supsup.hopfield.units import UnitRecipe
from supsup.masks.frozen import FrozenNet
from supsup.model.task_table import TaskTable
from supsup.runtime.errors import Damaged, SupSupError

KIND = "HopSupSup"
Layers = Mapping[str, Sequence[Tensor]]  # a tensor for each hidden layer, under "psi" and "mean"


@dataclass(frozen=True)
class Contents:
    """A model but for its network and its memory."""

    rule: str
    recipe: UnitRecipe
    recovery: Recovery
    tasks: TaskTable
    image_shape: tuple[int, ...] | None
    notes: dict[str, Any]
    created: str


def write(path: AnyPath, net: FrozenNet, contents: Contents, memory: Layers) -> None:
    """A whole file at once, complete or not at all."""
    details = {
        "rule": contents.rule,
        "recovery": asdict(contents.recovery),
        "tasks": [[task.name, task.classes, task.learned_at] for task in contents.tasks],
    }
    own = {task.name: info_to_text(task.info, task.classes) for task in contents.tasks}
    if any(own.values()):
        details["facts"] = {name: text for name, text in own.items() if text}
    header = build_header(
        net,
        asdict(contents.recipe),
        contents.image_shape,
        contents.notes,
        contents.created,
        kind=KIND,
        details=details,
    )
    if not all(bool(tensor.isfinite().all()) for layers in memory.values() for tensor in layers):
        raise SupSupError("the memory holds numbers that are not finite, so something went wrong before; load it again")
    named = {f"{name}.{layer}": tensor for name, layers in memory.items() for layer, tensor in enumerate(layers)}
    write_new(path, header, state=tensors_to_bytes(named))


def read(file: ModelFile) -> Contents:
    """What a file says of its model, or an error if that is of another kind."""
    header = file.header
    if header.kind != KIND:
        raise SupSupError("holds a SupSup model, not a HopSupSup one: open it with supsup.load(path)")
    with explain_unknown_settings():
        _check_size(header, file.state_size())
        details = header.details
        return Contents(
            rule=str(details["rule"]),
            recipe=UnitRecipe(**header.recipe),
            recovery=Recovery(**details["recovery"]),
            tasks=TaskTable(_learned(header, *task) for task in details["tasks"]),
            image_shape=image_shape_of(header),
            notes=dict(header.notes),
            created=header.created,
        )


def _learned(header: Header, name: str, classes: int, learned_at: str) -> LearnedTask:
    """A task as the header names it, with what belongs to it."""
    text = header.details.get("facts", {}).get(name)
    return LearnedTask(name, classes, learned_at, info=info_from_text(text, classes, header.image_shape))


def _check_size(header: Header, stored: int) -> None:
    """An error unless the file holds as many bytes as the memory of its network takes, before that is allocated."""
    widths = [shape[0] for shape in header.shapes.values()][:-1]
    if 4 * sum(width * width + width for width in widths) > stored:
        raise Damaged(f"the memory of a network of widths {widths} is not in the file")


def read_memory(file: ModelFile) -> dict[str, Tensor]:
    """The tensors of the memory as they lie in a file; `fill` checks their shapes."""
    return tensors_from_bytes(file.state(), "the model's state")


def fill(memory: Layers, stored: Mapping[str, Tensor], path: AnyPath) -> None:
    """Copy the tensors of a file into a memory, or an error that names the one that does not fit."""
    for name, layers in memory.items():
        for layer, tensor in enumerate(layers):
            there = stored.get(f"{name}.{layer}")
            if there is None or there.shape != tensor.shape or there.dtype != tensor.dtype:
                instead = "missing" if there is None else f"{there.dtype} {list(there.shape)}"
                raise Damaged(
                    f"{path}: {name} of hidden layer {layer} is {instead}, not {tensor.dtype} {list(tensor.shape)}; "
                    "restore the file from a backup"
                )
            if not bool(there.isfinite().all()):
                raise Damaged(
                    f"{path}: {name} of hidden layer {layer} holds numbers that are not finite; "
                    "restore the file from a backup"
                )
            tensor.copy_(there)
