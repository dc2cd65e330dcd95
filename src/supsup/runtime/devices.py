"""Which device to work on, from a word a user would type."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import quoted


def resolve(device: str | torch.device = "auto") -> torch.device:
    """ "auto" is the GPU where there is one, else the CPU."""
    if isinstance(device, str) and device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        if not isinstance(device, str | torch.device):
            raise TypeError("neither text nor a torch.device")
        resolved = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise SupSupError(f"unknown device {quoted(device)}; use 'auto', 'cpu' or 'cuda'") from error
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise SupSupError(f"device {device!r} was asked for but torch sees no GPU; use device='cpu' or 'auto'")
    try:
        if torch.empty(0, device=resolved).is_meta:
            raise RuntimeError("tensors there have no values")
    except Exception as error:  # of whatever backend was asked for
        raise SupSupError(f"device {device!r} cannot be used ({error}); use 'auto', 'cpu' or 'cuda'") from error
    return resolved


# MERGED MODULE DOC: Copies of tensors on other devices, made once each, so that thousands of tasks share one copy of their images.
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
