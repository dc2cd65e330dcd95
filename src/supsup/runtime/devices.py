"""The device from the user's word for it, and copies of tensors on devices."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import quoted


def resolve(device: str | torch.device = "auto") -> torch.device:
    """ "auto" is the GPU if there is one, else the CPU."""
    if isinstance(device, str) and device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        if not isinstance(device, str | torch.device):
            raise TypeError("neither text nor a torch.device")
        resolved = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise SupSupError(f"unknown device {quoted(device)}; use 'auto', 'cpu' or 'cuda'") from error
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise SupSupError(f"device {device!r} needs a GPU, and torch finds none; use device='cpu' or 'auto'")
    try:
        if torch.empty(0, device=resolved).is_meta:
            raise RuntimeError("tensors there have no values")
    except Exception as error:  # from any backend
        raise SupSupError(f"device {device!r} cannot be used ({error}); use 'auto', 'cpu' or 'cuda'") from error
    return resolved


_copies: dict[tuple[int, torch.device], Tensor] = {}  # one each, so that thousands of tasks share their images


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device, not to be changed; a copy is made once and kept as long as the original lives."""
    if tensor.device == device:
        return tensor
    key = (id(tensor), device)
    if key not in _copies:
        _copies[key] = tensor.to(device)
        weakref.finalize(tensor, _copies.pop, key, None)
    return _copies[key]
