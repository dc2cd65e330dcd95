"""A `HopSupSup` model in a model file: the header lists its tasks, the state is Ψ and μ of every layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from supsup.file.header import build_header, explain_unknown_settings, image_shape_of
from supsup.file.modelfile import ModelFile, write_new
from supsup.file.paths import AnyPath
from supsup.file.task_record import LearnedTask, info_from_text, info_to_text, tensors_to_bytes
from supsup.hopfield.recovery import Recovery
from supsup.hopfield.units import UnitRecipe
from supsup.masks.frozen import FrozenNet
from supsup.model.state import TaskTable
from supsup.runtime.errors import Damaged, SupSupError

KIND = "HopSupSup"
Layers = Mapping[str, Sequence[Tensor]]  # a tensor for each hidden layer, under "psi" and "mean"


@dataclass(frozen=True)
class HopContents:
    """A model without its network and its memory."""

    rule: str
    recipe: UnitRecipe
    recovery: Recovery
    tasks: TaskTable
    image_shape: tuple[int, ...] | None
    notes: dict[str, Any]
    created: str


def write_hop_file(path: AnyPath, net: FrozenNet, contents: HopContents, memory: Layers) -> None:
    """Write a whole file, complete or not at all."""
    if not all(bool(tensor.isfinite().all()) for layers in memory.values() for tensor in layers):
        raise SupSupError("the memory holds numbers that are not finite, so something went wrong before; load it again")
    tasks = list(contents.tasks)
    details = {
        "rule": contents.rule,
        "recovery": asdict(contents.recovery),
        "tasks": [[task.name, task.classes, task.learned_at] for task in tasks],
    }
    info = {task.name: text for task in tasks if (text := info_to_text(task.info, task.classes))}
    details |= {"facts": info} if info else {}  # the key of earlier versions
    about = (contents.image_shape, contents.notes, contents.created)
    header = build_header(net, asdict(contents.recipe), *about, kind=KIND, details=details)
    named = {f"{name}.{layer}": tensor for name, layers in memory.items() for layer, tensor in enumerate(layers)}
    write_new(path, header, state=tensors_to_bytes(named))


def read_hop_contents(file: ModelFile) -> HopContents:
    """All but the memory of the model in a file; an error if the file holds another kind of model."""
    header = file.header
    if header.kind != KIND:
        raise SupSupError("holds a SupSup model, not a HopSupSup one: open it with supsup.load(path)")
    widths = [shape[0] for shape in header.shapes.values()][:-1]
    if 4 * sum(width * width + width for width in widths) > file.state_size():  # before memory is allocated
        raise Damaged(f"the memory of a network of widths {widths} is not in the file")
    with explain_unknown_settings():
        texts = header.details.get("facts", {})
        return HopContents(
            rule=str(header.details["rule"]),
            recipe=UnitRecipe(**header.recipe),
            recovery=Recovery(**header.details["recovery"]),
            tasks=TaskTable(
                LearnedTask(name, count, when, info=info_from_text(texts.get(name), count, header.image_shape))
                for name, count, when in header.details["tasks"]
            ),
            image_shape=image_shape_of(header),
            notes=dict(header.notes),
            created=header.created,
        )


def fill_memory(memory: Layers, stored: Mapping[str, Tensor], path: AnyPath) -> None:
    """Copy the tensors of a file into a memory; an error names one that does not fit."""
    for name, layers in memory.items():
        for layer, tensor in enumerate(layers):
            there, wrong = stored.get(f"{name}.{layer}"), ""
            if there is None:
                wrong = "is missing"
            elif (there.shape, there.dtype) != (tensor.shape, tensor.dtype):
                wrong = f"is {there.dtype} {list(there.shape)}, not {tensor.dtype} {list(tensor.shape)}"
            elif not bool(there.isfinite().all()):
                wrong = "holds numbers that are not finite"
            if there is None or wrong:
                raise Damaged(f"{path}: {name} of hidden layer {layer} {wrong}; restore the file from a backup")
            tensor.copy_(there)
