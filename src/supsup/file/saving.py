"""From a model to what its file says of it: the header, and each task with its mask as bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from safetensors.torch import save as safetensors_bytes

from supsup.file.codec import Bytes
from supsup.file.format import Header, Stored
from supsup.nets.registry import architecture_of

STATISTICS = "statistics/"  # before the names of a task's own statistics, among the tensors stored with its mask

if TYPE_CHECKING:
    from supsup.learner import SupSup


def header_of(model: SupSup) -> Header:
    """Everything about a model but its masks."""
    from supsup import __version__

    architecture = None if model.net.pretrained else architecture_of(model.net.module)
    return Header(
        seed=model.seed,
        weights=model.net.checksum,
        shapes={name: list(shape) for name, shape in model.net.shapes.items()},
        architecture=asdict(architecture) if architecture is not None else None,
        recipe=asdict(model.recipe),
        inference=asdict(model.inference),
        allocation=asdict(model.allocation),
        image_shape=None if model.image_shape is None else list(model.image_shape),
        notes=model.notes,
        created=model.created,
        library=__version__,
        pretrained=model.net.pretrained,
    )


def stored(model: SupSup, task: str) -> Stored:
    """One task."""
    index = model.tasks.index(task)
    return _stored(model, index, task, model.bank.packed(index).cpu().numpy())


def everything(model: SupSup) -> Iterator[Stored]:
    """Every task, in order."""
    places = enumerate(model.tasks)
    for block in model.bank.blocks():
        for packed in block.T.contiguous().cpu().numpy():
            yield _stored(model, *next(places), packed)


def _stored(model: SupSup, index: int, task: str, packed: Bytes) -> Stored:
    tensors = {name: value.contiguous() for name, value in model.extras.get(task, {}).items()}
    tensors |= {STATISTICS + name: value.contiguous() for name, value in model.bank.statistics(index).items()}
    extras = safetensors_bytes(tensors) if tensors else b""
    return Stored(task, model.classes(task), packed, model.learned_at(task), extras)
