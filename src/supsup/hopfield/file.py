"""A `HopSupSup` model in a model file: the header names its tasks, the state is Ψ and μ of every layer."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import safetensors
import torch
from safetensors.torch import load as tensors_of
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

from supsup.errors import Damaged, SupSupError
from supsup.file.format import Header
from supsup.file.loading import built, check_weights
from supsup.file.modelfile import AnyPath, ModelFile, write_new
from supsup.file.sqlite import explained
from supsup.hopfield.learner import HopSupSup
from supsup.hopfield.recovery import Recovery
from supsup.hopfield.units import UnitRecipe
from supsup.nets.hop_mlp import HopMLP
from supsup.nets.registry import architecture_of

KIND = "HopSupSup"


def save(model: HopSupSup, path: AnyPath) -> None:
    """Write the model to a file, whole or not at all."""
    state = {f"{name}.{layer}": tensor for name, layers in _parts(model) for layer, tensor in enumerate(layers)}
    tensors = safetensors_bytes({name: tensor.cpu().contiguous() for name, tensor in state.items()})
    write_new(path, _header(model), state=tensors)


def load(path: AnyPath, net: HopMLP | None = None, device: str | torch.device = "auto") -> HopSupSup:
    """The model in a file, every tensor checked."""
    with ModelFile(path) as file, explained(file.path):
        if file.header.kind != KIND:
            raise SupSupError("holds a SupSup model, not a HopSupSup one: open it with supsup.load(path)")
        model = _empty(file.header, net, device)
        try:
            state = tensors_of(file.state())
        except (safetensors.SafetensorError, KeyError, ValueError) as error:
            raise Damaged(f"the model's state cannot be read ({error})") from error
    for name, layers in _parts(model):
        for layer, tensor in enumerate(layers):
            _fill(tensor, state.get(f"{name}.{layer}"), f"{path}: {name} of hidden layer {layer}")
    return model


def _parts(model: HopSupSup) -> list[tuple[str, list[Tensor]]]:
    return [("psi", model.psi), ("mean", model.mean)]


def _fill(tensor: Tensor, stored: Tensor | None, what: str) -> None:
    if stored is None or stored.shape != tensor.shape or stored.dtype != tensor.dtype:
        found = "missing" if stored is None else f"{stored.dtype} {list(stored.shape)}"
        raise Damaged(f"{what} is {found}, not {tensor.dtype} {list(tensor.shape)}; restore the file from a backup")
    tensor.copy_(stored)


def _header(model: HopSupSup) -> Header:
    from supsup import __version__

    architecture = architecture_of(model.net.module)
    return Header(
        seed=model.seed,
        weights=model.net.checksum,
        shapes={name: list(shape) for name, shape in model.net.shapes.items()},
        architecture=asdict(architecture) if architecture is not None else None,
        recipe=asdict(model.recipe),
        inference={},
        allocation={},
        image_shape=None if model.image_shape is None else list(model.image_shape),
        notes=model.notes,
        created=model.created,
        library=__version__,
        kind=KIND,
        details={
            "rule": model.rule,
            "recovery": asdict(model.recovery),
            "tasks": [[name, model.classes(name), model.learned_at(name)] for name in model.tasks],
        },
    )


def _empty(header: Header, net: HopMLP | None, device: str | torch.device) -> HopSupSup:
    """A model with the network, settings and task names of the header, and nothing in its memory."""
    module: Any = net if net is not None else built(header)
    try:
        details = header.details
        recipe, recovery = UnitRecipe(**header.recipe), Recovery(**details["recovery"])
        model = HopSupSup(module, header.seed, rule=details["rule"], recipe=recipe, recovery=recovery, device=device)
        model._classes = {str(name): int(classes) for name, classes, _ in details["tasks"]}
        model._learned_at = {str(name): str(when) for name, _, when in details["tasks"]}
    except (TypeError, KeyError) as error:
        raise SupSupError(f"its settings are not known to this version ({error}): pip install -U supsup") from error
    check_weights(model.net, header)
    model._shape = None if header.image_shape is None else tuple(header.image_shape)
    model.notes, model.created = dict(header.notes), header.created
    return model
