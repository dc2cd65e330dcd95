"""What a user hands in, checked before anything changes: images, labels, tasks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from supsup.data import Part, Task
from supsup.data.inputs import IDENTITY_KEY, Inputs, PixelStatistics, inputs_key, to_learned_shape
from supsup.data.rotations import check_can_rotate
from supsup.data.user_data import (
    build_task,
    input_tensor,
    read_data,
    with_model_normalisation,
    with_pretrained_normalisation,
)
from supsup.masks.frozen import FrozenNet
from supsup.model.task_table import check_classes, check_name
from supsup.nets import ImageNetwork
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import given, listed, names, plain_tensor

Array = Tensor | np.ndarray[Any, Any] | Any  # any form that docs/own-data.md names
T = TypeVar("T")


def images(x: Array, device: torch.device) -> Tensor:
    """Images [n, …] as float32 on the device."""
    return _images(x, device, "[n, …] of at least one image", 1)


def batches(x: Array, device: torch.device) -> Tensor:
    """Batches of images [r, b, …] as float32 on the device."""
    return _images(x, device, "[r, b, …] of at least one batch of at least one image", 2)


def _images(x: Array, device: torch.device, layout: str, leading: int) -> Tensor:
    """Images as float32 on the device, behind so many leading dimensions."""
    tensor = plain_tensor(x, "images")
    if not tensor.is_floating_point():
        raise SupSupError(
            f"images must be floating point and normalised as in training, got {tensor.dtype}; "
            "data.arrays(...) makes such tasks from any pixels, and Task.test.tensors() gives such images"
        )
    if tensor.ndim <= leading or tensor.numel() == 0:
        raise SupSupError(f"images must be a batch {layout}; got shape {tuple(tensor.shape)}")
    narrow = tensor.to(torch.float32)  # before they are looked at: 1e300 becomes infinite here
    if not math.isfinite(narrow.sum().item()):  # quick; the sum of good pixels may overflow as well
        bad = int((~narrow.isfinite()).flatten(0, leading - 1).flatten(1).any(1).sum())
        if bad:
            raise SupSupError(
                f"{bad} of {tensor.shape[:leading].numel()} images hold NaN or infinite pixels, or numbers that "
                "float32 cannot hold; remove or repair them"
            )
    return narrow.to(device)


def raw_batches(x: Any) -> Tensor:
    """Batches of raw images [r, b, …] on the CPU."""
    found = input_tensor(x)
    if found.ndim < 3:
        raise SupSupError(f"images must be batches [r, b, …] of at least one image; got shape {list(found.shape)}")
    return found


def labels(y: Array, count: int, device: torch.device) -> Tensor:
    """Labels as int64 on the device, one per image."""
    tensor = plain_tensor(y, "labels")
    if tensor.is_floating_point() or tensor.dtype == torch.bool:
        raise SupSupError(f"labels must be integers, got {tensor.dtype}")
    if tensor.shape != (count,):
        raise SupSupError(f"there are {count} images but labels of shape {tuple(tensor.shape)}; give one label each")
    return tensor.to(device, torch.int64)


def positions(indices: Tensor, count: int) -> None:
    """An error unless these are indices [batches, images] of so many images."""
    shaped = indices.dtype == torch.int64 and indices.ndim == 2 and indices.numel() > 0
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
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != 1:
        found = tuple(outputs.shape) if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
        raise SupSupError(f"the network must give one vector of outputs per image; got {found}")
    return int(outputs.shape[1])


def among_tasks(among: Any) -> list[str] | None:
    """The names that come into question, from any iterable of them; None for all."""
    return None if among is None else names(among, "among")


def setting(value: Any, kind: type[T], name: str) -> T:
    """A setting of a model: what was given, the default where nothing was, an error for anything else."""
    return kind() if value is None else given(value, kind, name)


def task_to_learn(data: Any, name: str | None, taken: Container[str]) -> Task:
    """A task with images and a name that is not taken."""
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
class Expectations:
    """What has to be known of a model to make a task for it of raw data.

    run      its network on images as it sees them; None: any shape and number will do
    module   that network
    learned  the shape of images, and what becomes of raw ones, in the first task learned; None before it
    one_normalisation  all tasks have that of the first, whether it suits them or not
    turned   images are learned in all rotations
    """

    run: Callable[[Tensor], Any] | None
    module: nn.Module
    device: torch.device
    learned: tuple[tuple[int, ...], Inputs | None] | None = None
    one_normalisation: bool = False
    rotated: bool = False


def task_of(
    data: Any, name: str | None, model: Expectations, *, label: Any = None, layout: Any = None, normalise: Any = True
) -> Task:
    """A `Task` as it is, or one made of any other data in terms of what the model has learned before."""
    if isinstance(data, Task):
        return suited(data, model)
    if name is None:
        raise SupSupError('give the task a name: learn((images, labels), task="name")')
    check_name(name)
    read = read_data(data, label)
    tokens = wants_tokens(read.inputs, model)
    return suited(build_task(read, name, None, layout, normalise, tokens), model)


def suited(task: Task, model: Expectations) -> Task:
    """A task of raw inputs as a model can learn it: with a channel where it needs one, normalised as its others."""
    if task.inputs is None:
        return task
    wanted = model.module.pixels if isinstance(model.module, ImageNetwork) else None
    pixels = None if wanted is None else PixelStatistics(*wanted)
    if model.learned is not None:
        shape, inputs = model.learned
        images = to_learned_shape(task.train.images, shape, False)
        if images is not task.train.images:
            task = _with_channel(task)
        task = task if pixels is not None else with_model_normalisation(task, inputs, always=model.one_normalisation)
    elif len(task.train.shape) == 2 and model.run is not None and not task.train.tokens:
        wider = _with_channel(task)
        if not _takes(model, task.train) and _takes(model, wider.train):
            task = wider
    if pixels is not None:
        task = with_pretrained_normalisation(task, pixels)
    plain = task.inputs is not None and inputs_key(task.inputs) == IDENTITY_KEY and not task.inputs.channels_last
    return replace(task, inputs=None) if plain and task.train.images.is_floating_point() else task


def wants_tokens(inputs: Tensor, model: Expectations) -> bool:
    """Whether whole numbers go to the network as they are: it has an embedding, takes them, and no real numbers."""
    embeds = any(isinstance(part, nn.Embedding | nn.EmbeddingBag) for part in model.module.modules())
    if inputs.is_floating_point() or not embeds or model.run is None:
        return False
    whole = inputs[:2].long().to(model.device)
    return _runs(model.run, whole) and not _runs(model.run, whole.float())


def _with_channel(task: Task) -> Task:
    """Grey images with the channel that they have."""
    parts = (replace(part, images=part.images[:, None]) for part in (task.train, task.test))
    train, test = parts
    if train.gain.numel() > 1:
        raise SupSupError(f"inputs of shape {list(task.train.shape)} are not what the model has learned before")
    return replace(task, train=train, test=test)


def _takes(model: Expectations, part: Part) -> bool:
    assert model.run is not None
    images, _ = part.batch(torch.arange(min(2, len(part))))
    return _runs(model.run, images.to(model.device))


def _runs(run: Callable[[Tensor], Any], images: Tensor) -> bool:
    """Whether a network gives a vector of outputs for each of these images."""
    try:
        outputs = run(images)
    except Exception:  # the forward pass of a module of the user's own may raise anything
        return False
    return isinstance(outputs, Tensor) and outputs.ndim == 2 and len(outputs) == len(images)


def stream_to_learn(stream: Iterable[Task], taken: Container[str], net: FrozenNet, model: Expectations) -> list[Task]:
    """The tasks of a stream, at least one, all of which can be learned; images that tasks share are checked once."""
    checked: set[tuple[int, ...]] = set()
    tasks: list[Task] = []
    for each in listed(stream, "the stream", "tasks"):
        task = suited(task_to_learn(given(each, Task, "a task of the stream"), None, taken), model)
        if model.learned is None:
            model = replace(model, learned=(task.train.shape, task.inputs))
        assert model.learned is not None
        same_shape(task.train.shape, model.learned[0])
        key = (id(task.train.images), id(task.train.labels), id(task.train.rows))
        if key not in checked:
            task_fits(task, net, model.learned[0], model.rotated)
        checked.add(key)
        tasks.append(task)
    if not tasks:
        raise SupSupError("the stream has no tasks; make it with tasks=1 or more")
    called = Counter(task.name for task in tasks)
    if len(called) < len(tasks):
        raise SupSupError(f"the stream names more than one task {called.most_common(1)[0][0]!r}; names must differ")
    return tasks


def task_fits(task: Task, net: FrozenNet, learned: tuple[int, ...] | None, rotated: bool = False) -> None:
    """The images of a task are finite, the network takes them and they can be turned; every label has an output."""
    finite(task, net.device)
    first, _ = task.train.batch(torch.zeros(1, dtype=torch.int64))
    outputs = outputs_for(net, first.to(net.device), learned)
    label_range(task.train.labels, outputs, task.name)
    if rotated:
        check_can_rotate(task, outputs)


def finite(task: Task, device: torch.device) -> None:
    """An error if images that a task is trained on hold NaN or infinite pixels, as they are or once normalised."""
    part = task.train
    if part.tokens:
        return
    ends = part.images.aminmax() if part.images.is_floating_point() else (0, 255)
    largest = max(abs(float(end)) for end in ends) * float(part.gain.abs().max()) + float(part.offset.abs().max())
    if not largest < torch.finfo(torch.float32).max:
        images(part.tensors(device)[0], device)
