"""From a model file back to a model: the network from its architecture and seed, or the user's own module, checked."""

from __future__ import annotations

import numpy as np
import safetensors
import torch
from safetensors.torch import load as tensors_of
from torch import Tensor, nn

from supsup.allocation import Allocation
from supsup.errors import Damaged, SupSupError
from supsup.file.codec import Bytes
from supsup.file.format import Header
from supsup.file.modelfile import AnyPath, ModelFile
from supsup.file.saving import STATISTICS
from supsup.file.sqlite import explained
from supsup.frozen import FrozenNet
from supsup.inference import Inference
from supsup.learner import SupSup
from supsup.nets.registry import Architecture
from supsup.training import Recipe

_AT_ONCE = 256  # masks handed to the bank together


def load(
    path: AnyPath, net: nn.Module | None = None, *, in_place: bool = False, device: str | torch.device = "auto"
) -> SupSup:
    """The model in a file, every mask checked.

    net       your own module, where the model was not built from `supsup.nets`
    in_place  stay with the file: each task is committed to it the moment it is learned or forgotten. One model at a
              time may do that; use it in a `with` block or call `close`.
    """
    file = ModelFile(path, write=in_place)
    try:
        with explained(file.path):
            if file.header.kind != "SupSup":
                raise SupSupError(
                    f"holds a {file.header.kind} model: open it with supsup.{file.header.kind}.load(path)"
                )
            model = _empty(file.header, net, device)
        _fill(model, file)
    except BaseException:
        file.close()
        raise
    if in_place:
        model._file = file
    else:
        file.close()
    return model


def _empty(header: Header, net: nn.Module | None, device: str | torch.device) -> SupSup:
    """A model with the network and settings of the header, and no masks."""
    try:
        recipe, inference = Recipe(**header.recipe), Inference(**header.inference)
        allocation = Allocation(**header.allocation)
        module = net if net is not None else built(header)
        model = SupSup(
            module,
            header.seed,
            pretrained=header.pretrained,
            recipe=recipe,
            inference=inference,
            allocation=allocation,
            device=device,
        )
    except TypeError as error:
        raise SupSupError(f"its settings are not known to this version ({error}): pip install -U supsup") from error
    check_weights(model.net, header)
    model.notes = dict(header.notes)
    model._shape = None if header.image_shape is None else tuple(header.image_shape)
    model.created = header.created
    return model


def built(header: Header) -> nn.Module:
    """The network that the header names, once its shapes are known to be those in the file."""
    if header.architecture is None:
        raise SupSupError("the model was built from a module of your own; give it: load(path, net=your_module)")
    architecture = Architecture(**header.architecture)
    with torch.device("meta"):  # shapes before memory: a header may claim anything
        sketch = architecture.build()
    _check_shapes({name: list(p.shape) for name, p in sketch.named_parameters() if name in header.shapes}, header)
    return architecture.build()


def _check_shapes(shapes: dict[str, list[int]], header: Header) -> None:
    for name in [*header.shapes, *shapes]:
        here, there = shapes.get(name, "missing"), header.shapes.get(name, "missing")
        if here != there:
            raise SupSupError(f"the network does not fit: weight {name!r} is {here}, but in the file {there}")
    if list(shapes) != list(header.shapes):
        raise SupSupError(f"the network does not fit: its weights come as {list(shapes)}, not {list(header.shapes)}")


def check_weights(net: FrozenNet, header: Header) -> None:
    """An error unless the frozen network is the one that the file was written with."""
    _check_shapes({name: list(shape) for name, shape in net.shapes.items()}, header)
    if net.checksum != header.weights:
        kept = [name for name, value in net.module.named_parameters() if name not in net.weights and value.any()]
        raise SupSupError(
            "the network does not fit: its masked weights have the right shapes, but their values or those of other "
            f"parameters and buffers differ (checksum {net.checksum}, in the file {header.weights})"
            + (f"; what the seed does not give must be as it was: {', '.join(kept[:5])}" if kept else "")
        )


def _fill(model: SupSup, file: ModelFile) -> None:
    waiting: list[Bytes] = []
    statistics: list[dict[str, Tensor]] = []

    def hand_over() -> None:
        rows = {name: torch.stack([task[name] for task in statistics]) for name in model.net.statistics}
        model.bank.add_packed(torch.from_numpy(np.stack(waiting)).T.to(model.device), rows)
        waiting.clear()
        statistics.clear()

    for task in file.tasks():
        with explained(file.path):
            extras = _tensors(task.name, task.extras, model.device) if task.extras else {}
            statistics.append(_statistics(model, task.name, extras))
        waiting.append(task.packed)
        if len(waiting) == _AT_ONCE:
            hand_over()
        model._classes[task.name] = task.classes
        model._learned_at[task.name] = task.created
        own = {name: value for name, value in extras.items() if not name.startswith(STATISTICS)}
        if own:
            model.extras[task.name] = own
    if waiting:
        hand_over()


def _statistics(model: SupSup, task: str, extras: dict[str, Tensor]) -> dict[str, Tensor]:
    """A task's own statistics among its tensors: those that the network needs, no more and no less."""
    found = {name.removeprefix(STATISTICS): value for name, value in extras.items() if name.startswith(STATISTICS)}
    for name in found.keys() | model.net.statistics.keys():
        here, there = model.net.statistics.get(name), found.get(name)
        if here is None or there is None or (here.shape, here.dtype) != (there.shape, there.dtype):
            shapes = ["missing" if value is None else list(value.shape) for value in (here, there)]
            raise SupSupError(
                f"the network does not fit: {name!r} of a normalisation layer is {shapes[0]}, "
                f"but in the file, for task {task!r}, {shapes[1]}"
            )
    return found


def _tensors(task: str, extras: bytes, device: torch.device) -> dict[str, Tensor]:
    try:
        return {name: value.to(device) for name, value in tensors_of(extras).items()}
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise Damaged(f"task {task!r} has extras that cannot be read ({error})") from error
