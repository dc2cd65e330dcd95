"""Which device to work on, from a word a user would type."""

from __future__ import annotations

import torch

from supsup.errors import SupSupError
from supsup.validation import shown


def resolve(device: str | torch.device = "auto") -> torch.device:
    """ "auto" is the GPU where there is one, else the CPU."""
    if isinstance(device, str) and device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        if not isinstance(device, str | torch.device):
            raise TypeError("neither text nor a torch.device")
        resolved = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise SupSupError(f"unknown device {shown(device)}; use 'auto', 'cpu' or 'cuda'") from error
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise SupSupError(f"device {device!r} was asked for but torch sees no GPU; use device='cpu' or 'auto'")
    try:
        if torch.empty(0, device=resolved).is_meta:
            raise RuntimeError("tensors there have no values")
    except Exception as error:  # of whatever backend was asked for
        raise SupSupError(f"device {device!r} cannot be used ({error}); use 'auto', 'cpu' or 'cuda'") from error
    return resolved
