"""What a model consists of ⇄ what lies in its file: settings and the header, tasks with their masks and records.

Both kinds of model use it; nothing here knows either of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import safetensors
import torch
from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of
from torch import Tensor, nn

from supsup.bank import Bank
from supsup.concurrency.interrupts import uninterrupted
from supsup.errors import Damaged, SupSupError
from supsup.file.codec import Bytes
from supsup.file.format import Header, PackedTask
from supsup.file.modelfile import ModelFile
from supsup.file.sqlite import explained
from supsup.frozen import FrozenNet
from supsup.nets.registry import Architecture, architecture_of
from supsup.tasks import LearnedTask, TaskTable

_STATISTICS = "statistics/"  # before the names of a task's statistics, among the tensors stored with its mask
_BLOCK = 256  # tasks that are read together


@dataclass(frozen=True)
class Block:
    """Some tasks of a file, their masks as bytes [bytes, tasks] and their statistics [tasks, …] by name."""

    tasks: list[LearnedTask]
    packed: Tensor
    statistics: dict[str, Tensor]


def header_of(
    net: FrozenNet,
    recipe: dict[str, Any],
    image_shape: tuple[int, ...] | None,
    notes: dict[str, Any],
    created: str,
    *,
    inference: dict[str, Any] | None = None,
    allocation: dict[str, Any] | None = None,
    kind: str = "SupSup",
    details: dict[str, Any] | None = None,
) -> Header:
    """The header of a model on a frozen network; its settings are JSON values by name."""
    from supsup import __version__

    architecture = None if net.pretrained else architecture_of(net.module)
    return Header(
        seed=net.seed,
        weights=net.checksum,
        shapes={name: list(shape) for name, shape in net.shapes.items()},
        architecture=asdict(architecture) if architecture is not None else None,
        recipe=recipe,
        inference=inference or {},
        allocation=allocation or {},
        image_shape=None if image_shape is None else list(image_shape),
        notes=notes,
        created=created,
        library=__version__,
        pretrained=net.pretrained,
        kind=kind,
        details=details or {},
    )


@contextmanager
def settings_of_a_file() -> Iterator[None]:
    """While settings are made from a header: those that this version does not take are explained."""
    try:
        yield
    except (TypeError, KeyError) as error:
        raise SupSupError(f"its settings are not known to this version ({error}): pip install -U supsup") from error


def network_of(header: Header) -> nn.Module:
    """The network that the header names, once its shapes are known to be those in the file."""
    if header.architecture is None:
        raise SupSupError("the model was built from a module of your own; give it: load(path, net=your_module)")
    architecture = Architecture(**header.architecture)
    with uninterrupted(), torch.device("meta"):  # shapes before memory: a header may claim anything
        sketch = architecture.build()
    _check_shapes({name: list(p.shape) for name, p in sketch.named_parameters() if name in header.shapes}, header)
    return architecture.build()


def image_shape_of(header: Header) -> tuple[int, ...] | None:
    """The shape of the images learned, None if there were none."""
    return None if header.image_shape is None else tuple(header.image_shape)


def check_weights(net: FrozenNet, header: Header) -> None:
    """An error unless the frozen network is the one that the file was written with."""
    _check_shapes({name: list(shape) for name, shape in net.shapes.items()}, header)
    if net.checksum != header.weights:
        others = [name for name, value in net.module.named_parameters() if name not in net.weights and value.any()]
        raise SupSupError(
            "the network does not fit: its masked weights have the right shapes, but their values or those of other "
            f"parameters and buffers differ (checksum {net.checksum}, in the file {header.weights})"
            + (f"; what the seed does not give must be as it was: {', '.join(others[:5])}" if others else "")
        )


def packed_task(task: LearnedTask, bank: Bank, index: int) -> PackedTask:
    """One task, with its mask from the bank, as a file takes it."""
    return _packed(task, bank, index, bank.packed(index).cpu().numpy())


def packed_tasks(tasks: TaskTable, bank: Bank) -> Iterator[PackedTask]:
    """Every task, in order."""
    index = 0
    for block in bank.blocks():
        for packed in block.T.contiguous().cpu().numpy():
            yield _packed(tasks.at(index), bank, index, packed)
            index += 1


def blocks(file: ModelFile, net: FrozenNet) -> Iterator[Block]:
    """Every task of a file, checked, on the network's device; none is to be trusted before the last has come."""
    waiting: list[PackedTask] = []
    for task in file.tasks():
        waiting.append(task)
        if len(waiting) == _BLOCK:
            yield _block(waiting, file, net)
            waiting = []
    if waiting:
        yield _block(waiting, file, net)


def to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors by name, as a file holds them."""
    return bytes_of({name: value.cpu().contiguous() for name, value in tensors.items()})


def from_bytes(content: bytes, what: str) -> dict[str, Tensor]:
    """Tensors by name again; `what` they are is for the error if they cannot be read."""
    try:
        return tensors_of(content)
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise Damaged(f"{what} cannot be read ({error})") from error


def _packed(task: LearnedTask, bank: Bank, index: int, packed: Bytes) -> PackedTask:
    statistics = {_STATISTICS + name: value for name, value in bank.statistics(index).items()}
    tensors = task.extras | statistics
    extras = to_bytes(tensors) if tensors else b""
    return PackedTask(task.name, task.classes, packed, task.learned_at, extras)


def _block(packed: list[PackedTask], file: ModelFile, net: FrozenNet) -> Block:
    tasks: list[LearnedTask] = []
    statistics: list[dict[str, Tensor]] = []
    for task in packed:
        with explained(file.path):
            tensors = from_bytes(task.extras, f"task {task.name!r} has extras that") if task.extras else {}
            tensors = {name: value.to(net.device) for name, value in tensors.items()}
            statistics.append(_statistics(net, task.name, tensors))
        extras = {name: value for name, value in tensors.items() if not name.startswith(_STATISTICS)}
        tasks.append(LearnedTask(task.name, task.classes, task.created, extras))
    columns = torch.from_numpy(np.stack([task.packed for task in packed])).T.to(net.device)
    return Block(tasks, columns, {name: torch.stack([each[name] for each in statistics]) for name in net.statistics})


def _statistics(net: FrozenNet, task: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A task's statistics among its tensors: those that the network needs, no more and no less."""
    stored = {n.removeprefix(_STATISTICS): value for n, value in tensors.items() if n.startswith(_STATISTICS)}
    for name in stored.keys() | net.statistics.keys():
        here, there = net.statistics.get(name), stored.get(name)
        if here is None or there is None or (here.shape, here.dtype) != (there.shape, there.dtype):
            shapes = ["missing" if value is None else list(value.shape) for value in (here, there)]
            raise SupSupError(
                f"the network does not fit: {name!r} of a normalisation layer is {shapes[0]}, "
                f"but in the file, for task {task!r}, {shapes[1]}"
            )
    return stored


def _check_shapes(shapes: dict[str, list[int]], header: Header) -> None:
    for name in [*header.shapes, *shapes]:
        here, there = shapes.get(name, "missing"), header.shapes.get(name, "missing")
        if here != there:
            raise SupSupError(f"the network does not fit: weight {name!r} is {here}, but in the file {there}")
    if list(shapes) != list(header.shapes):
        raise SupSupError(f"the network does not fit: its weights come as {list(shapes)}, not {list(header.shapes)}")
