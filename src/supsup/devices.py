"""Which device to work on, from a word a user would type."""

from __future__ import annotations

import torch

from supsup.errors import SupSupError


def resolve(device: str | torch.device = "auto") -> torch.device:
    """ "auto" is the GPU where there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise SupSupError(f"unknown device {device!r}; use 'auto', 'cpu' or 'cuda'") from error
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise SupSupError(f"device {device!r} was asked for but torch sees no GPU; use device='cpu' or 'auto'")
    return resolved
