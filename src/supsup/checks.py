"""What a user hands in, checked before anything changes: images, labels, tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from supsup.errors import SupSupError

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


def _tensor(values: Any, what: str) -> Tensor:
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SupSupError(f"{what} must be a tensor or an array of numbers: {error}") from error
