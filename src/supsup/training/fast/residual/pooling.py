"""Max-pooling behind the stem for large images, forward and backward for many tasks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from supsup.kernels import triton_pooling as k
from supsup.training.fast.residual.layers import border_of

_BLOCK = 64  # channels in one program
_ROWS = 32


@dataclass(frozen=True)
class Pooled:
    """What came out, with its border, and for each number which of the nine pixels it was: [t, b, h, w, channels]."""

    out: Tensor
    chosen: Tensor


def pool(x: Tensor, out: Tensor, height: int, width: int) -> Pooled:
    """The largest of 3×3 pixels with stride 2; x ≥ 0, height × width, has a border of one zero."""
    tasks, batch, _, _, channels = x.shape
    out_height, out_width = -(-height // 2), -(-width // 2)
    chosen = torch.empty(tasks, batch, out_height, out_width, channels, dtype=torch.int8, device=x.device)
    rows = batch * out_height * out_width
    k._pool[(triton.cdiv(rows, _ROWS), tasks, triton.cdiv(channels, _BLOCK))](
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
        block_rows=_ROWS,
        block=_BLOCK,
    )
    return Pooled(out, chosen)


def pool_back(pooled: Pooled, slope: Tensor, height: int, width: int) -> Tensor:
    """The gradient at the inputs, height × width, from that at the outputs; neither has a border."""
    tasks, batch, out_height, out_width, channels = slope.shape
    below = slope.new_empty(tasks, batch, height, width, channels)
    rows = batch * height * width
    k._pool_back[(triton.cdiv(rows, _ROWS), tasks, triton.cdiv(channels, _BLOCK))](
        slope,
        pooled.chosen,
        below,
        rows,
        height=height,
        width=width,
        out_height=out_height,
        out_width=out_width,
        channels=channels,
        block_rows=_ROWS,
        block=_BLOCK,
    )
    return below
