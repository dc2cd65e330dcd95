"""Rotating images as a rearrangement of their pixels, so that a rotated task costs no more than a permuted one."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def rotation_map(height: int, width: int, degrees: float) -> Tensor:
    """For each pixel of an image turned anticlockwise, the pixel it shows, or −1 outside; int64 [height · width]."""
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    middle_row, middle_column = (height - 1) / 2, (width - 1) / 2
    y = torch.arange(height, dtype=torch.float64)[:, None] - middle_row
    x = torch.arange(width, dtype=torch.float64) - middle_column
    row = _nearest(x * sine + y * cosine + middle_row)
    column = _nearest(x * cosine - y * sine + middle_column)
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    return torch.where(inside, row * width + column, -1).flatten()


def _nearest(coordinate: Tensor) -> Tensor:
    """The nearest whole number; the 1e-9 decides ties alike on machines whose sines differ in the last bit."""
    return torch.floor(coordinate + (0.5 + 1e-9)).long()
