"""What a user hands in, checked before anything changes: images, labels, tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from supsup.data import Part, Task
from supsup.errors import SupSupError
from supsup.frozen import FrozenNet
from supsup.tasks import check_classes, check_name

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


def positions(indices: Tensor, count: int) -> None:
    """An error unless these are indices [batches, images] of so many images."""
    shaped = indices.ndim == 2 and indices.numel() > 0
    if not shaped or not 0 <= int(indices.min()) <= int(indices.max()) < count:
        raise SupSupError(f"positions must be [batches, images] within the part's {count} images")


def label_range(y: Tensor, outputs: int, task: str) -> None:
    """An error unless every label has an output."""
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
    """How many outputs a frozen network gives for such images, or an error if it does not take them."""
    same_shape(tuple(images.shape[1:]), learned)
    return outputs_of(partial(net.run, weights=net.weights), images)


def outputs_of(run: Callable[[Tensor], Any], images: Tensor) -> int:
    """How many outputs a network gives for such images, or an error if it does not take them."""
    try:
        outputs = run(images[:1])
    except SupSupError:
        raise
    except Exception as error:  # the forward pass of a module of the user's own may raise anything
        shape = tuple(images.shape[1:])
        raise SupSupError(f"the network does not take images of shape {shape}: {error}") from error
    if outputs.ndim != 2 or len(outputs) != 1:
        raise SupSupError(f"the network must give one vector of outputs per image; got {tuple(outputs.shape)}")
    return int(outputs.shape[1])


def task_to_learn(
    data: Any, name: str | None, taken: Container[str], learned: tuple[int, ...] | None, device: torch.device
) -> Task:
    """A task with images and a name that is not taken, from a `Task` or from a pair (images, labels)."""
    if isinstance(data, Task):
        task = data if name is None else replace(data, name=name)
    else:
        task = _task_of_pair(data, name, learned, device)
    check_name(task.name)
    check_classes(task.name, task.classes)
    if task.name in taken:
        raise SupSupError(
            f"task {task.name!r} has been learned already; use another name (a SupSup model can also forget it)"
        )
    if len(task.train) == 0:
        raise SupSupError(f"task {task.name!r} is empty: its training part has no images")
    return task


def stream_to_learn(
    stream: Iterable[Task], taken: Container[str], net: FrozenNet, learned: tuple[int, ...] | None
) -> list[Task]:
    """The tasks of a stream, at least one, all of which can be learned; images that tasks share are checked once."""
    checked: set[tuple[int, ...]] = set()
    tasks: list[Task] = []
    for each in stream:
        task = task_to_learn(each, None, taken, learned, net.device)
        learned = learned or task.train.shape
        same_shape(task.train.shape, learned)
        key = (id(task.train.images), id(task.train.labels), id(task.train.rows))
        if key not in checked:
            task_fits(task, net, learned)
        checked.add(key)
        tasks.append(task)
    if not tasks:
        raise SupSupError("the stream has no tasks; make it with tasks=1 or more")
    names = Counter(task.name for task in tasks)
    if len(names) < len(tasks):
        raise SupSupError(f"the stream names more than one task {names.most_common(1)[0][0]!r}; names must differ")
    return tasks


def task_fits(task: Task, net: FrozenNet, learned: tuple[int, ...] | None) -> None:
    """The images of a task are finite and the network takes them, and every label has an output."""
    finite(task, net.device)
    first, _ = task.train.batch(torch.zeros(1, dtype=torch.int64))
    label_range(task.train.labels, outputs_for(net, first.to(net.device), learned), task.name)


def finite(task: Task, device: torch.device) -> None:
    """An error if images that a task is trained on hold NaN or infinite pixels."""
    if task.train.images.is_floating_point() and not bool(task.train.images.sum().isfinite()):
        images(task.train.tensors(device)[0], device)


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
