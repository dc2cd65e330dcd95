"""What a model consists of ⇄ what lies in its file: settings and the header, tasks with their masks and records.

Both kinds of model use it; nothing here knows either of them.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import safetensors
import torch
from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of
from torch import Tensor, nn

from supsup.data.task_info import TaskInfo
from supsup.file import limits
from supsup.file import task_info as info
from supsup.file.card import holds_tensors, text_of, with_text
from supsup.file.codec import Bytes
from supsup.file.format import Header, PackedTask, TaskRecord
from supsup.file.mask_blocks import MappedBlock, MaskFolder
from supsup.file.modelfile import ModelFile
from supsup.file.sqlite import explained
from supsup.file.task_record import PROFILE, STATISTICS, LearnedTask, check_extras
from supsup.inference.profiles import TaskProfile
from supsup.masks.bank import Bank
from supsup.masks.frozen import RUNNING, FrozenNet
from supsup.nets.imagenet import has_published_weights
from supsup.nets.registry import Architecture, architecture_of
from supsup.runtime.errors import Damaged, SupSupError, printable

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

    check_notes(notes)
    again = not net.pretrained or has_published_weights(net.module)
    architecture = architecture_of(net.module) if again else None
    return Header(
        seed=_plain(net.seed),
        weights=net.checksum,
        shapes={name: list(shape) for name, shape in net.shapes.items()},
        architecture=asdict(architecture) if architecture is not None else None,
        recipe=_plain(recipe),
        inference=_plain(inference or {}),
        allocation=_plain(allocation or {}),
        image_shape=None if image_shape is None else _plain(image_shape),
        notes=_plain(notes),
        created=created,
        library=__version__,
        pretrained=net.pretrained,
        kind=kind,
        details=_plain(details or {}),
    )


def check_notes(notes: Any) -> None:
    """An error unless these are notes that can be saved and loaded again: JSON values by name."""
    if not isinstance(notes, dict):
        raise SupSupError(f'notes are a dict of JSON values, not {type(notes).__name__}: model.notes["name"] = value')
    try:
        limits.check_depth(notes)
        plain = _plain(notes)
        same = json.loads(json.dumps(plain, allow_nan=False)) == plain
    except (TypeError, ValueError, RecursionError) as error:
        raise SupSupError(f"the model's notes must be JSON values ({printable(error)})") from error
    if not same:
        raise SupSupError("the model's notes must be JSON values, and their names text")


@contextmanager
def settings_of_a_file() -> Iterator[None]:
    """While settings are made from a header: those that this version does not take are explained."""
    try:
        yield
    except SupSupError:
        raise
    except (TypeError, KeyError, AttributeError, ValueError, OverflowError) as error:
        raise SupSupError(
            f"its settings are not known to this version ({printable(error)}): pip install -U supsup"
        ) from error


def network_of(header: Header) -> nn.Module:
    """The network that the header names, once its shapes are known to be those in the file."""
    if header.architecture is None:
        raise SupSupError("the model was built from a module of your own; give it: load(path, net=your_module)")
    return _built(Architecture(**header.architecture), header)


def header_of_card(about: Mapping[str, Any], net: nn.Module | None, task: TaskRecord) -> Header:
    """A header in place of one that is lost, from what a task's record says of its network; settings are the defaults.

    net  the user's own module, where the network was not built from `supsup.nets`
    """
    own_head = any(name.startswith(STATISTICS) and not name.endswith(RUNNING) for name in extras_of(task))
    with settings_of_a_file():
        if net is None and about["architecture"] is None:
            raise SupSupError(
                "the model was built from a module of your own; give it: repair(path, out, net=your_module)"
            )
        module = net if net is not None else _built(Architecture(**about["architecture"]))
        seed, pretrained = operator.index(about["seed"]), bool(about["pretrained"])
        frozen = FrozenNet(module, seed, torch.device("cpu"), pretrained, own_head=own_head)
        if frozen.checksum != about["weights"]:
            raise SupSupError("the network does not fit: its weights are not those of the tasks in the file")
        notes = {"repaired": "the header was lost: recipe, inference, allocation and notes are not what they were"}
        header = header_of(frozen, {}, about["image_shape"], notes, task.created)
    limits.check_shapes(header.shapes, header.image_shape)
    return header


def _built(architecture: Architecture, header: Header | None = None) -> nn.Module:
    """The network, once its size is known to be one that a file may ask for, and its shapes those of the header."""
    most = limits.MOST_PARAMETERS if header is None else 100 + 10 * len(header.shapes)
    sketch = architecture.sketch(most)  # shapes before memory: a file may claim anything
    if header is not None:
        _check_shapes({name: list(p.shape) for name, p in sketch.named_parameters() if name in header.shapes}, header)
    values = sum(value.numel() for value in [*sketch.parameters(), *sketch.buffers()])
    limits.check_bytes(limits.PER_WEIGHT * values, "the network in the file")
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


def packed_tasks(tasks: Iterable[LearnedTask], bank: Bank) -> Iterator[PackedTask]:
    """Every task, in order."""
    masks = (packed for block in bank.blocks() for packed in block.T.contiguous().cpu().numpy())
    for index, (task, packed) in enumerate(zip(tasks, masks, strict=True)):
        yield _packed(task, bank, index, packed)


def mapped_blocks(file: ModelFile, net: FrozenNet, folder: MaskFolder) -> Iterator[tuple[Block, MappedBlock]]:
    """The tasks whose masks are read from the disk as they are needed: as many as there are whole blocks of."""
    records = file.records_without_masks()
    for number, mapped in enumerate(folder.blocks(file, records)):
        some = records[number * folder.width : (number + 1) * folder.width]
        none = np.empty(0, np.uint8)
        yield _block([PackedTask(r.name, r.classes, none, r.created, r.extras) for r in some], file, net), mapped


def blocks(file: ModelFile, net: FrozenNet, first: int = 0) -> Iterator[Block]:
    """Every task of a file from an index on, checked, on the network's device; trust none before the last has come."""
    waiting: list[PackedTask] = []
    for task in file.tasks() if not first else file.tasks_from(file.position(first)):
        waiting.append(task)
        if len(waiting) == _BLOCK:
            yield _block(waiting, file, net)
            waiting = []
    if waiting:
        yield _block(waiting, file, net)


def to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors by name, as a file holds them."""
    try:
        return bytes_of({name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()})
    except (safetensors.SafetensorError, RuntimeError, KeyError, ValueError, AttributeError, TypeError) as error:
        raise SupSupError(f"these tensors cannot be written: {printable(error)}") from error


def from_bytes(content: bytes, what: str) -> dict[str, Tensor]:
    """Tensors by name again; `what` they are is for the error if they cannot be read."""
    try:
        return tensors_of(content)
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise Damaged(f"{what} cannot be read ({error})") from error


def extras_of(task: TaskRecord | PackedTask) -> dict[str, Tensor]:
    """The tensors that lie with a task's mask, its statistics among them."""
    tensors = holds_tensors(task.extras)
    return from_bytes(task.extras, f"task {printable(repr(task.name))} has extras that") if tensors else {}


def info_of(task: TaskRecord | PackedTask, header: Header) -> TaskInfo:
    """What the task has of its own beside its mask."""
    try:
        return info.from_text(text_of(task.extras, info.KEY), task.classes, header.image_shape)
    except SupSupError as error:
        raise Damaged(f"task {printable(repr(task.name))} is damaged: {printable(error)}") from error


def impossible(name: str, statistics: Tensor) -> Tensor:
    """Which numbers no training gives: all are finite, and variances are not negative."""
    return ~(statistics.isfinite() & (statistics >= 0)) if name.endswith("running_var") else ~statistics.isfinite()


def _packed(task: LearnedTask, bank: Bank, index: int, packed: Bytes) -> PackedTask:
    check_extras(task.extras)
    statistics = {STATISTICS + name: value for name, value in bank.statistics(index).items()}
    if statistics and not bool(bank.flat_statistics(index).isfinite().all()):
        raise SupSupError(
            f"the statistics of task {task.name!r} are not finite, so its training went wrong; "
            "forget it, and learn it again with a smaller learning rate"
        )
    profile = {} if task.profile is None else {PROFILE + name: value for name, value in task.profile.tensors().items()}
    tensors = task.extras | statistics | profile
    extras = to_bytes(tensors) if tensors else b""
    own = info.to_text(task.info, task.classes)
    extras = with_text(extras, info.KEY, own) if own else extras
    return PackedTask(task.name, task.classes, packed, task.learned_at, extras)


def _block(packed: list[PackedTask], file: ModelFile, net: FrozenNet) -> Block:
    tasks: list[LearnedTask] = []
    statistics: list[dict[str, Tensor]] = []
    with explained(file.path):
        plain: dict[tuple[bytes, int], TaskInfo] = {}  # of tasks without tensors, of which many are alike
        for task in packed:
            if (task.extras, task.classes) in plain:
                own = plain[task.extras, task.classes]
                tasks.append(LearnedTask(task.name, task.classes, task.created, {}, own))
                continue
            tensors = {name: value.to(net.device) for name, value in extras_of(task).items()}
            statistics.append(_statistics(net, task.name, tensors))
            own, profile = info_of(task, file.header), _trace(task, tensors)
            if not tensors:
                plain[task.extras, task.classes] = own
            extras = {name: value for name, value in tensors.items() if not name.startswith((STATISTICS, PROFILE))}
            tasks.append(LearnedTask(task.name, task.classes, task.created, extras, own, profile))
    columns = torch.from_numpy(np.stack([task.packed for task in packed])).T.to(net.device)
    stacked = {name: torch.stack([each[name] for each in statistics]) for name in net.statistics}
    with explained(file.path):
        for name, values in stacked.items():
            wrong = impossible(name, values)
            if bool(wrong.any()):
                first = tasks[int(wrong.flatten(1).any(1).nonzero()[0])]
                raise Damaged(f"task {first.name!r} has statistics that no training gives ({name})")
    return Block(tasks, columns, stacked)


def _statistics(net: FrozenNet, task: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A task's statistics among its tensors: those that the network needs, no more and no less."""
    stored = {n.removeprefix(STATISTICS): value for n, value in tensors.items() if n.startswith(STATISTICS)}
    for name in stored.keys() | net.statistics.keys():
        here, there = net.statistics.get(name), stored.get(name)
        if here is None or there is None or (here.shape, here.dtype) != (there.shape, there.dtype):
            shapes = ["missing" if value is None else list(value.shape) for value in (here, there)]
            raise SupSupError(
                f"the network does not fit: {name!r}, which each task has of its own, is {shapes[0]}, "
                f"but in the file, for task {task!r}, {shapes[1]}"
            )
    return stored


def _trace(task: PackedTask, tensors: Mapping[str, Tensor]) -> TaskProfile | None:
    """What a task is found by, among its tensors."""
    stored = {name.removeprefix(PROFILE): value for name, value in tensors.items() if name.startswith(PROFILE)}
    if not stored:
        return None
    try:
        return TaskProfile.from_tensors(stored, task.classes)
    except SupSupError as error:
        raise Damaged(f"task {printable(repr(task.name))} is damaged: {printable(error)}") from error


def _check_shapes(shapes: dict[str, list[int]], header: Header) -> None:
    for name in [*header.shapes, *shapes]:
        here, there = shapes.get(name, "missing"), header.shapes.get(name, "missing")
        if here != there:
            raise SupSupError(f"the network does not fit: weight {name!r} is {here}, but in the file {there}")
    if list(shapes) != list(header.shapes):
        raise SupSupError(f"the network does not fit: its weights come as {list(shapes)}, not {list(header.shapes)}")


def _plain(value: Any) -> Any:
    """JSON values in place of tuples and of numpy's numbers."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value.item() if isinstance(value, np.generic) else value
