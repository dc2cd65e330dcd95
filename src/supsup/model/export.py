"""Export one task's network as an ordinary one, with dense weights W ⊙ M, for use without supsup.

Where a task's profile has a say in answers, ONNX gives the logits of `predict`; safetensors have the network alone.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import secrets
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from supsup.file.paths import AnyPath, writable_path
from supsup.inference.profiles.features import filled, filter_count, picture_features, profile_size
from supsup.inference.profiles.profile import TaskProfile, profile_answers
from supsup.masks.frozen import FrozenNet
from supsup.model.state import state_of
from supsup.model.supsup import SupSup
from supsup.nets.architecture import architecture_of
from supsup.nets.execution import run_with_weights
from supsup.nets.trained import trained_features
from supsup.runtime.errors import SupSupError

_NEEDED_FOR_ONNX = ("onnx", "onnxscript", "onnxruntime")


def export(model: SupSup, task: str, path: AnyPath) -> None:
    """Write a task's network as .safetensors (state_dict names) or .onnx, and check that its outputs are the same."""
    target = writable_path(path)
    writers: dict[str, Callable[[SupSup, str, Path], None]] = {".safetensors": _safetensors, ".onnx": _onnx}
    if target.suffix not in writers:
        raise SupSupError(f"{path}: give a name ending in {' or '.join(writers)}")
    if target.exists() and not target.is_file():
        raise SupSupError(f"{target} is not an ordinary file; give another name")
    model.classes(task)  # an error for an unknown one, before anything is written
    part = target.with_name(f".{secrets.token_hex(4)}{target.suffix}")
    try:
        writers[target.suffix](model, task, part)
        part.replace(target)
    except (OSError, SafetensorError) as error:
        raise SupSupError(f"{target} could not be written: {error}; is the disk full?") from error
    finally:
        part.unlink(missing_ok=True)


@torch.no_grad()
def plain_network(model: SupSup, task: str) -> nn.Module:
    """A copy of the model's module on the CPU, with the masked weights of a task."""
    module = copy.deepcopy(model.module).cpu()
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    for name, value in model.subnetwork(task).items():
        tensors[name].copy_(value)
    return module.eval()


class _Answers(nn.Module):
    """The logits that `predict` gives inputs of a task: its network's, and what its profile says of their features."""

    def __init__(self, network: nn.Module, net: FrozenNet, profile: TaskProfile, classes: int) -> None:
        super().__init__()
        self._network, self._classes = network, classes
        self._weights, self._tensors = profile.answering
        self._frozen: Any = copy.deepcopy(net.module).cpu() if net.pretrained else None
        self._described = net.described
        self._filters, self._size = None if profile.of_vectors else filter_count(net), profile_size(net)

    def forward(self, x: Tensor) -> Tensor:
        features = x
        if self._described:
            features = self._frozen.describe(x)[:, : self._described]
        elif self._frozen is not None:
            features = trained_features(self._frozen, partial(self._frozen, x))
        elif self._filters is not None:
            features = picture_features(x, self._filters, self._size.mirrored)
        if self._frozen is not None:
            features = filled(features[:, -self._size.trained :], self._size.filled)
        return profile_answers(features, self._network(x)[:, : self._classes], self._weights, self._tensors)


def _answering(model: SupSup, task: str) -> nn.Module:
    """What answers as `predict` does: the task's network, with its profile where that has a say."""
    network, state = plain_network(model, task), state_of(model)
    profile = state.tasks[task].profile
    return _Answers(network, state.net, profile, model.classes(task)) if profile and profile.answers else network


def _safetensors(model: SupSup, task: str, path: Path) -> None:
    module = plain_network(model, task)
    architecture = architecture_of(module)
    about = _about(model, task) | {
        "architecture": json.dumps(architecture and {"name": architecture.name, "arguments": architecture.arguments})
    }
    save_file({name: value.contiguous() for name, value in module.state_dict().items()}, path, metadata=about)
    reread = copy.deepcopy(module)
    reread.load_state_dict(load_file(path))
    _check(model, task, reread)


def _about(model: SupSup, task: str) -> dict[str, str]:
    """The metadata of the file: the first `classes` outputs are the task's, and inputs are x · gain + offset."""
    info = model.task_info(task)
    about = {"task": task, "classes": str(model.classes(task)), "made_by": "supsup"}
    if info.rotated:
        about["self_labels"] = "rotations"
    if info.names is not None:
        about["names"] = json.dumps(info.names)
    if info.inputs is not None:
        inputs = info.inputs
        numbers = {"gain": inputs.gain.tolist(), "offset": inputs.offset.tolist()}
        about["inputs"] = json.dumps(numbers | {"channels_last": inputs.channels_last, "tokens": inputs.tokens})
    return about


def _onnx(model: SupSup, task: str, path: Path) -> None:
    missing = [name for name in _NEEDED_FOR_ONNX if importlib.util.find_spec(name) is None]
    if missing:
        raise SupSupError(f"writing ONNX needs {', '.join(missing)}: pip install 'supsup[onnx]'")
    import onnxruntime

    module, images = _answering(model, task), _images(model, task)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module,
            (images,),
            dynamo=True,
            verbose=False,
            input_names=["images"],
            output_names=["outputs"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )
    if program is None:
        raise SupSupError(f"torch could not write task {task!r} as ONNX")
    program.model.metadata_props.update(_about(model, task))
    program.save(str(path), external_data=False)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def run(x: Tensor) -> Tensor:
        (outputs,) = session.run(None, {"images": x.numpy()})
        return torch.from_numpy(outputs)

    _check(model, task, run, module if isinstance(module, _Answers) else None)


def _check(model: SupSup, task: str, network: Callable[[Tensor], Any], answers: nn.Module | None = None) -> None:
    images = _images(model, task, count=5)
    with torch.no_grad():
        if answers is None:
            weights, module = model.subnetwork(task), copy.deepcopy(model.module)
            expected = run_with_weights(module, weights, images.to(model.device)).cpu()
        else:
            expected = answers(images)
        exported = network(images)
    if not torch.allclose(exported, expected, rtol=1e-4, atol=1e-4):
        raise SupSupError(
            f"the exported network of task {task!r} gives other outputs than the model; nothing was written"
        )


def _images(model: SupSup, task: str, count: int = 2) -> Tensor:
    if model.image_shape is None:
        raise SupSupError("the model has learned nothing yet, so there is no task to export")
    inputs = model.task_info(task).inputs
    if inputs is not None and inputs.tokens:
        return torch.zeros(count, *model.image_shape, dtype=torch.int64)
    return torch.randn(count, *model.image_shape, generator=torch.Generator().manual_seed(0))
