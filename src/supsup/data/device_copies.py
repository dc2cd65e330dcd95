"""Copies of tensors on other devices, made once each, so that thousands of tasks share one copy of their images."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

_copies: dict[tuple[int, torch.device], Tensor] = {}


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; a copy is kept for as long as the original lives, and must not be written to."""
    if tensor.device == device:
        return tensor
    key = (id(tensor), device)
    if key not in _copies:
        _copies[key] = tensor.to(device)
        weakref.finalize(tensor, _copies.pop, key, None)
    return _copies[key]
