"""What a task has of its own beside its mask, as text: names of its classes, what becomes of raw inputs, its recipe.

The text lies in the metadata of the safetensors bytes that hold the task's extras, under the task's checksum. A task
without such facts has none, as in files of earlier versions. Nothing here is believed: types and sizes are held to
limits.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import torch
from torch import Tensor

from supsup.data.inputs import Inputs
from supsup.data.labels import Label, Names, check_names
from supsup.data.task_info import NO_INFO, TaskInfo
from supsup.file import limits
from supsup.runtime.errors import Damaged, SupSupError

KEY = "task"
_ROTATIONS = "rotations"


def to_text(info: TaskInfo, classes: int) -> str:
    """As a file holds it; nothing for a task without facts."""
    values: dict[str, Any] = {}
    if info.names is not None and len(info.names) == classes:
        values["names"] = info.names
    if info.inputs is not None:
        inputs = info.inputs
        values["inputs"] = {
            "gain": _bytes(inputs.gain),
            "offset": _bytes(inputs.offset),
            "channels_last": inputs.channels_last,
            "tokens": inputs.tokens,
        }
    if info.recipe is not None:
        values["recipe"] = dict(info.recipe)
    if info.rotated:
        values["self_labels"] = _ROTATIONS
    if info.normalisation is not None:
        values["normalisation"] = [_bytes(info.normalisation.gain), _bytes(info.normalisation.offset)]
    text = json.dumps(values, separators=(",", ":"), ensure_ascii=False) if values else ""
    if len(text) > limits.LONGEST_INFO:
        raise SupSupError(f"what belongs to the task takes {len(text):,} characters; give its classes shorter names")
    return text


def from_text(text: str | None, classes: int, image_shape: list[int] | None) -> TaskInfo:
    """The facts again, or an error unless a task of so many classes and such images can have them."""
    if text is None:
        return NO_INFO
    if len(text) > limits.LONGEST_INFO:
        raise Damaged(f"what belongs to it has {len(text):,} characters; {limits.LONGEST_INFO:,} at most are read")
    try:
        values = json.loads(text)
        limits.check_depth(values)
        if not isinstance(values, dict):
            raise TypeError("no mapping")
        names, inputs, recipe = values.get("names"), values.get("inputs"), values.get("recipe")
        if recipe is not None:
            limits.check_settings(_mapping(recipe), "recipe")
        return TaskInfo(
            None if names is None else _names(names, classes),
            None if inputs is None else _inputs(_mapping(inputs), image_shape),
            recipe,
            _turned(values.get("self_labels"), image_shape),
            _normalisation(values.get("normalisation"), image_shape),
        )
    except (TypeError, ValueError, KeyError, RecursionError, OverflowError) as error:
        raise Damaged(f"what belongs to it cannot be read ({error})") from error


def _names(values: Any, classes: int) -> Names:
    if not isinstance(values, list) or len(values) != classes:
        raise ValueError(f"no names for {classes:,} classes")
    return check_names([_label(value) for value in values], "names")


def _label(value: Any) -> Label:
    """A name as it was: lists were tuples."""
    return tuple(map(_label, value)) if isinstance(value, list) else value


def _inputs(values: dict[str, Any], image_shape: list[int] | None) -> Inputs:
    gain, offset = _scale(values["gain"], values["offset"], image_shape)
    return Inputs(gain, offset, values["channels_last"], values["tokens"])


def _normalisation(values: Any, image_shape: list[int] | None) -> Inputs | None:
    if values is None:
        return None
    if not isinstance(values, list) or len(values) != 2:
        raise TypeError("its normalisation is not a pair")
    return Inputs(*_scale(values[0], values[1], image_shape))


def _scale(gain: Any, offset: Any, image_shape: list[int] | None) -> tuple[Tensor, Tensor]:
    gain, offset = _numbers(gain), _numbers(offset)
    if gain.ndim and (not image_shape or gain.numel() != image_shape[0]):
        raise ValueError("its normalisation is not for images of this shape")
    return gain, offset


def _turned(value: Any, image_shape: list[int] | None) -> bool:
    if value is None:
        return False
    if value != _ROTATIONS or not image_shape or len(image_shape) < 2 or image_shape[-1] != image_shape[-2]:
        raise ValueError("its self-labels are not for images of this shape")
    return True


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("no mapping")
    return value


def _bytes(numbers: Tensor) -> str | list[str]:
    """float32 numbers; a list around those of several channels."""
    text = base64.b64encode(numbers.cpu().numpy().astype("<f4").tobytes()).decode()
    return [text] if numbers.ndim else text


def _numbers(value: Any) -> Tensor:
    several = isinstance(value, list) and len(value) == 1
    text = value[0] if several else value
    if not isinstance(text, str):
        raise TypeError("its normalisation is no text")
    array = np.frombuffer(base64.b64decode(text, validate=True), "<f4").astype(np.float32)
    if not several and len(array) != 1:
        raise ValueError("its normalisation has not one number")
    return torch.from_numpy(array if several else array.reshape(()).copy())
