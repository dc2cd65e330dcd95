"""Batch normalisation without learned parameters with its relu, and max-pooling: forward and backward, many tasks."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from supsup.kernels import triton_residual as k
from supsup.training.fast.residual.layers import border_of

_TILE = 4096  # values in one program
_CHANNELS = 512  # in one program at most: more do not fit into registers
_POOLING = {"block_rows": 32, "block": 64}  # rows and channels in one program of the pooling


class Normal(NamedTuple):
    """What was convolved, [t, b, height, width, channels], and the moments it is normalised by, [t, channels]."""

    z: Tensor
    mean: Tensor
    spread: Tensor

    @property
    def rows(self) -> int:
        return self.z[0].numel() // self.z.shape[-1]


class RunningMoments(NamedTuple):
    """Running moments of one layer for all tasks, [t, channels], padded, and the layer's ε and momentum."""

    mean: Tensor
    variance: Tensor
    epsilon: float
    momentum: float


def moments(z: Tensor, sums: Tensor, running: RunningMoments) -> Normal:
    """Moments from the partial sums [t, parts, 2, channels] that a convolution made; the running ones follow them."""
    tasks, parts, _, channels = sums.shape
    normal = Normal(z, *(torch.empty(tasks, channels, device=z.device) for _ in range(2)))
    k._moments[(tasks, triton.cdiv(channels, 8))](
        sums,
        *normal[1:],
        *running[:2],
        parts,
        normal.rows,
        channels=channels,
        epsilon=running.epsilon,
        momentum=running.momentum,
        block_parts=min(512, max(1, triton.next_power_of_2(parts))),
        block=8,
    )
    return normal


def relu(normal: Normal, out: Tensor, shortcut: Tensor | Normal | None = None) -> Tensor:
    """relu(normalised z + shortcut), which is an activation with the border of `out`, or is normalised too."""
    z, channels = normal.z, normal.z.shape[-1]
    kind = 0 if shortcut is None else 2 if isinstance(shortcut, Normal) else 1
    other = shortcut if isinstance(shortcut, Normal) else normal
    tile = _tile(channels)
    k._normalise[(triton.cdiv(normal.rows, tile["block_rows"]), len(z), triton.cdiv(channels, tile["block"]))](
        *normal,
        shortcut if isinstance(shortcut, Tensor) else other.z,
        *other[1:],
        out,
        normal.rows,
        **_sides(z),
        border=border_of(out, z.shape[2]),
        kind=kind,
        **tile,
    )
    return out


def slope_sums(slope: Tensor, normal: Normal, gate: Tensor | None = None, shortcut: Normal | None = None) -> Tensor:
    """Sum the slope at a relu's output as normalisation's backward pass needs: [t, 3, channels].

    gate  the relu's output, where more than the normalised z went into it; the slope then becomes that at its input
    """
    channels, rows = slope.shape[-1], normal.rows
    parts = max(1, min(256, rows // 64))
    tile = _tile(channels)
    share = triton.cdiv(triton.cdiv(rows, parts), tile["block_rows"]) * tile["block_rows"]
    sums = torch.empty(len(slope), parts, 3, channels, device=slope.device)
    other = shortcut or normal
    k._slope_sums[(parts, len(slope), triton.cdiv(channels, tile["block"]))](
        slope,
        slope if gate is None else gate,
        *normal,
        *other,
        sums,
        rows,
        share,
        **_sides(slope),
        border=0 if gate is None else border_of(gate, slope.shape[2]),
        gated=gate is not None,
        two=shortcut is not None,
        **tile,
    )
    return sums.sum(1)


def normalise_backward(slope: Tensor, normal: Normal, sums: Tensor, out: Tensor, gated: bool, which: int = 1) -> Tensor:
    """The gradient at z, with the border of `out`, from the slope that `slope_sums` left.

    gated  a gate was given there
    which  2 for the sums of the shortcut
    """
    channels = slope.shape[-1]
    tile = _tile(channels)
    grid = (triton.cdiv(normal.rows, tile["block_rows"]), len(slope), triton.cdiv(channels, tile["block"]))
    k._normalise_back[grid](
        slope,
        *normal,
        sums,
        out,
        normal.rows,
        which,
        gated=gated,
        **_sides(slope),
        border=border_of(out, slope.shape[2]),
        **tile,
    )
    return out


def _sides(images: Tensor) -> dict[str, int]:
    """The size of images [t, b, height, width, channels], as kernels take it."""
    return dict(zip(("height", "width", "channels"), images.shape[2:]))


def _tile(channels: int) -> dict[str, int]:
    block = min(_CHANNELS, triton.next_power_of_2(channels))
    return {"block_rows": max(8, _TILE // block), "block": block}


class Pooled(NamedTuple):
    """What came out, with its border, and for each number which of the nine pixels it was: [t, b, h, w, channels]."""

    out: Tensor
    chosen: Tensor


def pool(x: Tensor, out: Tensor, height: int, width: int) -> Pooled:
    """The largest of 3×3 pixels with stride 2; x ≥ 0, height × width, has a border of one zero."""
    tasks, batch, _, _, channels = x.shape
    out_height, out_width = -(-height // 2), -(-width // 2)
    chosen = torch.empty(tasks, batch, out_height, out_width, channels, dtype=torch.int8, device=x.device)
    rows = batch * out_height * out_width
    k._pool[(triton.cdiv(rows, _POOLING["block_rows"]), tasks, triton.cdiv(channels, _POOLING["block"]))](
        x,
        out,
        chosen,
        rows,
        height=height,
        width=width,
        out_height=out_height,
        out_width=out_width,
        channels=channels,
        border=border_of(out, out_height),
        **_POOLING,
    )
    return Pooled(out, chosen)


def pool_back(pooled: Pooled, slope: Tensor, height: int, width: int) -> Tensor:
    """The gradient at the inputs, height × width, from that at the outputs; neither has a border."""
    tasks, batch, out_height, out_width, channels = slope.shape
    below = slope.new_empty(tasks, batch, height, width, channels)
    rows = batch * height * width
    k._pool_back[(triton.cdiv(rows, _POOLING["block_rows"]), tasks, triton.cdiv(channels, _POOLING["block"]))](
        slope,
        pooled.chosen,
        below,
        rows,
        height=height,
        width=width,
        out_height=out_height,
        out_width=out_width,
        channels=channels,
        **_POOLING,
    )
    return below
