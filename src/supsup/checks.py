"""What a user hands in, checked before anything changes: images, labels, tasks."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from supsup.data import Part, Task
from supsup.errors import SupSupError
from supsup.frozen import FrozenNet

Array = Tensor | np.ndarray[Any, Any]


def images(x: Array, device: torch.device) -> Tensor:
    """Images as float32 on the device."""
    tensor = _tensor(x, "images")
    if not tensor.is_floating_point():
        raise SupSupError(
            f"images must be floating point and normalised as in training, got {tensor.dtype}; "
            "data.arrays(...) makes such tasks from any pixels, and Task.test.tensors() gives such images"
        )
    if tensor.ndim < 2 or len(tensor) == 0:
        raise SupSupError(f"images must be a batch [n, …] of at least one image; got shape {tuple(tensor.shape)}")
    bad = int((~tensor.isfinite()).flatten(1).any(1).sum())
    if bad:
        raise SupSupError(f"{bad} of {len(tensor)} images hold NaN or infinite pixels; remove or repair them")
    return tensor.to(device, torch.float32)


def labels(y: Array, count: int, device: torch.device) -> Tensor:
    """Labels as int64 on the device, one per image."""
    tensor = _tensor(y, "labels")
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise SupSupError(f"labels must be integers, got {tensor.dtype}")
    if tensor.shape != (count,):
        raise SupSupError(f"there are {count} images but labels of shape {tuple(tensor.shape)}; give one label each")
    return tensor.to(device, torch.int64)


def positions(places: Tensor, count: int) -> None:
    """An error unless these are positions [batches, images] among so many images."""
    shaped = places.ndim == 2 and places.numel() > 0
    if not shaped or not 0 <= int(places.min()) <= int(places.max()) < count:
        raise SupSupError(f"positions must be [batches, images] within the part's {count} images")


def label_range(y: Tensor, outputs: int, task: str) -> None:
    """Every label must have an output of its own."""
    low, high = int(y.min()), int(y.max())
    if low < 0:
        raise SupSupError(f"task {task!r} has the label {low}; labels count from 0")
    if high >= outputs:
        raise SupSupError(
            f"task {task!r} has labels up to {high} but the network has {outputs} outputs; "
            f"build it with outputs={high + 1} or more"
        )


def same_shape(shape: tuple[int, ...], learned: tuple[int, ...] | None) -> None:
    """All images of a model have one shape, that of the first learned."""
    if learned is not None and shape != learned:
        raise SupSupError(f"images have shape {shape}, but this model learned images of shape {learned}")


def outputs_for(net: FrozenNet, images: Tensor, learned: tuple[int, ...] | None) -> int:
    """How many outputs a network gives for such images, or an error if it does not take them."""
    shape = tuple(images.shape[1:])
    same_shape(shape, learned)
    try:
        outputs = net.run(images[:1], net.weights)
    except SupSupError:
        raise
    except Exception as error:  # the forward pass of a module of the user's own may raise anything
        raise SupSupError(f"the network does not take images of shape {shape}: {error}") from error
    if outputs.ndim != 2 or len(outputs) != 1:
        raise SupSupError(f"the network must give one vector of outputs per image; got {tuple(outputs.shape)}")
    return outputs.shape[1]


def task_to_learn(
    data: Any, name: str | None, taken: Container[str], learned: tuple[int, ...] | None, device: torch.device
) -> Task:
    """A task with images and a name that is not taken, from a `Task` or from a pair (images, labels)."""
    if isinstance(data, Task):
        task = data if name is None else replace(data, name=name)
    else:
        task = _task_of_pair(data, name, learned, device)
    if not task.name:
        raise SupSupError("a task needs a name that is not empty")
    if task.name in taken:
        raise SupSupError(f"task {task.name!r} has been learned already; use another name or forget it first")
    if len(task.train) == 0:
        raise SupSupError(f"task {task.name!r} is empty: its training part has no images")
    return task


def task_fits(task: Task, net: FrozenNet, learned: tuple[int, ...] | None) -> None:
    """The images of a task are finite and the network takes them, and every label has an output."""
    if task.train.images.is_floating_point() and not bool(task.train.images.sum().isfinite()):
        images(task.train.tensors(net.device)[0], net.device)
    first, _ = task.train.batch(torch.zeros(1, dtype=torch.int64))
    label_range(task.train.labels, outputs_for(net, first.to(net.device), learned), task.name)


def _task_of_pair(pair: Any, name: str | None, learned: tuple[int, ...] | None, device: torch.device) -> Task:
    if name is None:
        raise SupSupError('give the task a name: learn((images, labels), task="name")')
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise SupSupError(f"learn takes a Task or a pair (images, labels), not {type(pair).__name__}")
    x = images(pair[0], device)
    same_shape(tuple(x.shape[1:]), learned)
    y = labels(pair[1], len(x), device)
    part = Part(x, y, gain=torch.ones(1, device=device), offset=torch.zeros(1, device=device))
    return Task(name, part, part, int(y.max()) + 1)


def _tensor(values: Any, what: str) -> Tensor:
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SupSupError(f"{what} must be a tensor or an array of numbers: {error}") from error
