"""Batch normalisation without learned parameters, and the relu after it, forward and backward for many tasks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from supsup.training.residual import kernels as k

_TILE = 4096  # values in one program


@dataclass
class Normal:
    """What was convolved, [t, b, height, width, channels], and the moments it is normalised by, [t, channels]."""

    z: Tensor
    mean: Tensor
    spread: Tensor

    @property
    def rows(self) -> int:
        return self.z[0].numel() // self.z.shape[-1]


@dataclass
class Running:
    """Running moments of one layer for all tasks, [t, channels], padded."""

    mean: Tensor
    variance: Tensor


def moments(z: Tensor, sums: Tensor, running: Running) -> Normal:
    """Moments from the partial sums [t, parts, 2, channels] that a convolution made; the running ones follow them."""
    tasks, parts, _, channels = sums.shape
    normal = Normal(z, *(torch.empty(tasks, channels, device=z.device) for _ in range(2)))
    k._moments[(tasks, triton.cdiv(channels, 8))](
        sums,
        normal.mean,
        normal.spread,
        running.mean,
        running.variance,
        parts,
        normal.rows,
        channels=channels,
        block_parts=min(512, max(1, triton.next_power_of_2(parts))),
        block=8,
    )
    return normal


def relu(normal: Normal, shortcut: Tensor | Normal | None = None) -> Tensor:
    """relu(normalised z + shortcut), which is an activation, or is normalised too."""
    z, channels = normal.z, normal.z.shape[-1]
    out = torch.empty_like(z)
    kind = 0 if shortcut is None else 2 if isinstance(shortcut, Normal) else 1
    other = shortcut if isinstance(shortcut, Normal) else normal
    tile = _tile(channels)
    k._normalise[(triton.cdiv(normal.rows, tile["block_rows"]), len(z))](
        z,
        normal.mean,
        normal.spread,
        shortcut if isinstance(shortcut, Tensor) else other.z,
        other.mean,
        other.spread,
        out,
        normal.rows,
        channels=channels,
        kind=kind,
        **tile,
    )
    return out


def slope_sums(slope: Tensor, normal: Normal, gate: Tensor | None = None, shortcut: Normal | None = None) -> Tensor:
    """Take the slope back through the relu, in place, and sum it as normalisation's backward pass needs: [t, p, 3, c].

    gate  the relu's output, where more than the normalised z went into it
    """
    channels, rows = slope.shape[-1], normal.rows
    parts = max(1, min(64, triton.next_power_of_2(rows) // 512))
    tile = _tile(channels)
    share = triton.cdiv(triton.cdiv(rows, parts), tile["block_rows"]) * tile["block_rows"]
    sums = torch.empty(len(slope), parts, 3, channels, device=slope.device)
    other = shortcut or normal
    k._slope_sums[(parts, len(slope))](
        slope,
        slope if gate is None else gate,
        normal.z,
        normal.mean,
        normal.spread,
        other.z,
        other.mean,
        other.spread,
        sums,
        rows,
        share,
        channels=channels,
        gated=gate is not None,
        two=shortcut is not None,
        **tile,
    )
    return sums


def backward(slope: Tensor, normal: Normal, sums: Tensor, which: int = 1) -> Tensor:
    """The gradient at z from that at normalised z; which = 2 for the shortcut's sums."""
    channels = slope.shape[-1]
    out = torch.empty_like(normal.z)
    tile = _tile(channels, 2 * _TILE)
    k._normalise_back[(triton.cdiv(normal.rows, tile["block_rows"]), len(slope))](
        slope,
        normal.z,
        normal.mean,
        normal.spread,
        sums,
        out,
        normal.rows,
        which,
        parts=sums.shape[1],
        channels=channels,
        **tile,
    )
    return out


def _tile(channels: int, values: int = _TILE) -> dict[str, int]:
    block = triton.next_power_of_2(channels)
    return {"block_rows": max(8, values // block), "block": block}
