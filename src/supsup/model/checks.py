"""Checks of the user's images, labels and tasks, before anything changes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from supsup.data import Task
from supsup.data.inputs import IDENTITY_KEY, Inputs, inputs_key, to_learned_shape
from supsup.data.rotations import check_can_rotate
from supsup.data.user_data import read_data, with_model_normalisation, with_pretrained_normalisation
from supsup.data.user_data import task as task_of
from supsup.masks.frozen import FrozenNet
from supsup.model.state import TaskTable, check_classes, check_name
from supsup.nets import ImageNetwork
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import given, listed, plain_tensor

Array = Tensor | np.ndarray[Any, Any] | Any  # any form that docs/own-data.md names


def check_images(x: Array, device: torch.device, leading: int = 1) -> Tensor:
    """Images [n, …] or, with two leading dimensions, batches of them [r, b, …], as float32 on the device."""
    tensor = plain_tensor(x, "images")
    if not tensor.is_floating_point():
        raise SupSupError(
            f"images must be floating point and normalised as in training, got {tensor.dtype}; "
            "data.arrays(...) makes such tasks from any pixels, and Task.test.tensors() gives such images"
        )
    if tensor.ndim <= leading or tensor.numel() == 0:
        layout = "[n, …] of" if leading == 1 else "[r, b, …] of at least one batch of"
        raise SupSupError(f"images must be a batch {layout} at least one image; got shape {tuple(tensor.shape)}")
    narrow = tensor.to(torch.float32)  # before the check: 1e300 becomes infinite here
    if not math.isfinite(narrow.sum().item()):  # fast; the sum of finite pixels may overflow, too
        bad = int((~narrow.isfinite()).flatten(0, leading - 1).flatten(1).any(1).sum())
        if bad:
            raise SupSupError(
                f"{bad} of {tensor.shape[:leading].numel()} images hold NaN or infinite pixels, or numbers that "
                "float32 cannot hold; remove or repair them"
            )
    return narrow.to(device)


def check_labels(y: Array, count: int, device: torch.device) -> Tensor:
    """Labels as int64 on the device, one per image."""
    tensor = plain_tensor(y, "labels")
    if tensor.is_floating_point() or tensor.dtype == torch.bool:
        raise SupSupError(f"labels must be integers, got {tensor.dtype}")
    if tensor.shape != (count,):
        raise SupSupError(f"there are {count} images but labels of shape {tuple(tensor.shape)}; give one label each")
    return tensor.to(device, torch.int64)


def check_positions(indices: Tensor, count: int) -> None:
    """An error unless these are indices [batches, images] below `count`."""
    shaped = indices.dtype == torch.int64 and indices.ndim == 2 and indices.numel() > 0
    if not shaped or not 0 <= int(indices.min()) <= int(indices.max()) < count:
        raise SupSupError(f"positions must be [batches, images] within the part's {count} images")


def check_label_range(y: Tensor, outputs: int, task: str) -> None:
    """An error unless every label has an output."""
    low, high = int(y.min()), int(y.max())
    if low < 0:
        raise SupSupError(f"task {task!r} has the label {low}; labels count from 0")
    if high >= outputs:
        raise SupSupError(
            f"task {task!r} has labels up to {high} but the network has {outputs} outputs; "
            f"build it with outputs={high + 1} or more"
        )


def check_shape(shape: tuple[int, ...], learned: tuple[int, ...] | None) -> None:
    """An error unless images have the shape of those learned before."""
    if learned is not None and shape != learned:
        raise SupSupError(f"images have shape {shape}, but this model learned images of shape {learned}")


def count_frozen_outputs(net: FrozenNet, images: Tensor, learned: tuple[int, ...] | None) -> int:
    """`count_outputs` of a frozen network; an error also for images of another shape than those learned."""
    check_shape(tuple(images.shape[1:]), learned)
    return count_outputs(partial(net.run, weights=net.weights), images)


def count_outputs(run: Callable[[Tensor], Any], images: Tensor) -> int:
    """The number of outputs of a network for these images, or an error if it does not take them."""
    try:
        outputs = run(images[:1])
    except SupSupError:
        raise
    except Exception as error:  # the forward pass of a user's module may raise anything
        shape = tuple(images.shape[1:])
        raise SupSupError(f"the network does not take images of shape {shape}: {error}") from error
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != 1:
        found = tuple(outputs.shape) if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
        raise SupSupError(f"the network must give one vector of outputs per image; got {found}")
    return int(outputs.shape[1])


def check_new_task(data: Any, name: str | None, taken: Container[str]) -> Task:
    """The task under its new name; an error if the name is taken or there are no images."""
    task = given(data, Task, "the task")
    task = task if name is None else replace(task, name=name)
    check_name(task.name)
    check_classes(task.name, task.classes)
    if task.name in taken:
        raise SupSupError(
            f"task {task.name!r} has been learned already; use another name (a SupSup model can also forget it)"
        )
    if len(task.train) == 0:
        raise SupSupError(f"task {task.name!r} is empty: its training part has no images")
    return task


@dataclass(frozen=True)
class InputRequirements:
    """What a model requires of the inputs of a new task.

    learned  shape and normalisation of the first task's images; None before the first task
    one_normalisation  all tasks are normalised as the first, whether that suits them or not
    rotated  images are learned in all rotations
    """

    net: FrozenNet
    learned: tuple[tuple[int, ...], Inputs | None] | None = None
    one_normalisation: bool = False
    rotated: bool = False

    @classmethod
    def of(cls, net: FrozenNet, shape: tuple[int, ...] | None, tasks: TaskTable, **settings: bool) -> Self:
        """Of a model with these tasks, which has learned images of this shape."""
        learned = None if shape is None else (shape, tasks.at(0).info.inputs if len(tasks) else None)
        return cls(net, learned, **settings)

    def takes(self, images: Tensor) -> bool:
        """Whether the network returns a vector of outputs for each of these images."""
        try:
            outputs = self.net.run(images.to(self.net.device), self.net.weights)
        except Exception:  # the forward pass of a user's module may raise anything
            return False
        return isinstance(outputs, Tensor) and outputs.ndim == 2 and len(outputs) == len(images)


def make_task(data: Any, name: str | None, model: InputRequirements, *, label: Any = None, **how: Any) -> Task:
    """A `Task` from a task or from data of any form, with the shape and normalisation that the model requires.

    how  `layout` and `normalise`, as `data.task` takes them
    """
    if isinstance(data, Task):
        return fit_to_model(data, model)
    if name is None:
        raise SupSupError('give the task a name: learn((images, labels), task="name")')
    check_name(name)
    read = read_data(data, label)
    embeds = any(isinstance(part, nn.Embedding | nn.EmbeddingBag) for part in model.net.module.modules())
    tokens = embeds and not read[0].is_floating_point()
    if tokens:  # if the network takes these integers, but not real numbers
        whole = read[0][:2].long()
        tokens = model.takes(whole) and not model.takes(whole.float())
    return fit_to_model(task_of(read, name, tokens=tokens, **how), model)


def fit_to_model(task: Task, model: InputRequirements) -> Task:
    """A task of raw inputs in the form that a model can learn: with a channel if needed, normalised like its others."""
    if task.inputs is None:
        return task
    module = model.net.module
    pixels = module.pixels if isinstance(module, ImageNetwork) else None
    if model.learned is not None:
        shape, inputs = model.learned
        images = to_learned_shape(task.train.images, shape, False)
        if images is not task.train.images:
            task = _with_channel(task)
        task = task if pixels is not None else with_model_normalisation(task, inputs, always=model.one_normalisation)
    elif len(task.train.shape) == 2 and not task.train.tokens:
        some = torch.arange(min(2, len(task.train)))
        if not model.takes(task.train.batch(some)[0]):
            wider = _with_channel(task)
            task = wider if model.takes(wider.train.batch(some)[0]) else task
    if pixels is not None:
        task = with_pretrained_normalisation(task, pixels)
    plain = task.inputs is not None and inputs_key(task.inputs) == IDENTITY_KEY and not task.inputs.channels_last
    return replace(task, inputs=None) if plain and task.train.images.is_floating_point() else task


def _with_channel(task: Task) -> Task:
    """Grey images with a channel dimension."""
    train, test = (replace(part, images=part.images[:, None]) for part in (task.train, task.test))
    if train.gain.numel() > 1:
        raise SupSupError(f"inputs of shape {list(task.train.shape)} are not what the model has learned before")
    return replace(task, train=train, test=test)


def check_stream(stream: Iterable[Task], taken: Container[str], model: InputRequirements) -> list[Task]:
    """The tasks of a stream, or an error if one cannot be learned; images that tasks share are checked once."""
    checked: set[tuple[int, ...]] = set()
    tasks: list[Task] = []
    for each in listed(stream, "the stream", "tasks"):
        task = fit_to_model(check_new_task(given(each, Task, "a task of the stream"), None, taken), model)
        if model.learned is None:
            model = replace(model, learned=(task.train.shape, task.inputs))
        assert model.learned is not None
        check_shape(task.train.shape, model.learned[0])
        key = (id(task.train.images), id(task.train.labels), id(task.train.rows))
        if key not in checked:
            check_task_fits(task, model)
        checked.add(key)
        tasks.append(task)
    if not tasks:
        raise SupSupError("the stream has no tasks; make it with tasks=1 or more")
    called = Counter(task.name for task in tasks)
    if len(called) < len(tasks):
        raise SupSupError(f"the stream names more than one task {called.most_common(1)[0][0]!r}; names must differ")
    return tasks


def check_task_fits(task: Task, model: InputRequirements) -> None:
    """An error unless the images are finite, fit the network and can be rotated, and every label has an output."""
    check_finite(task, model.net.device)
    first, _ = task.train.batch(torch.zeros(1, dtype=torch.int64))
    learned = None if model.learned is None else model.learned[0]
    outputs = count_frozen_outputs(model.net, first.to(model.net.device), learned)
    check_label_range(task.train.labels, outputs, task.name)
    if model.rotated:
        if model.net.described:
            raise SupSupError("self_labels rotates images, which a network with masks_from sees once; leave one out")
        check_can_rotate(task, outputs)


def check_finite(task: Task, device: torch.device) -> None:
    """An error if training images hold NaN or infinite pixels, before or after normalisation."""
    part = task.train
    if part.tokens:
        return
    ends = part.images.aminmax() if part.images.is_floating_point() else (0, 255)
    largest = max(abs(float(end)) for end in ends) * float(part.gain.abs().max()) + float(part.offset.abs().max())
    if not largest < torch.finfo(torch.float32).max:
        check_images(part.tensors(device)[0], device)
