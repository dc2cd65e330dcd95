"""Triton kernels for max-pooling over 3×3 pixels with stride 2, forward and backward, for many tasks in one launch."""

from __future__ import annotations

import triton
import triton.language as tl

from supsup.kernels.triton_convolution import _bordered


@triton.jit
def _pool(
    x,
    out,
    chosen,
    rows,
    height: tl.constexpr,
    width: tl.constexpr,
    out_height: tl.constexpr,
    out_width: tl.constexpr,
    channels: tl.constexpr,
    border: tl.constexpr,
    block_rows: tl.constexpr,
    block: tl.constexpr,
):
    """The largest of nine pixels and which of them it is, the first of several; x ≥ 0 has a border of one zero.

    rows, border  of the outputs
    """
    task = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    c = tl.program_id(2) * block + tl.arange(0, block)
    inside = (m < rows)[:, None] & (c < channels)[None, :]
    images = rows // (out_height * out_width)
    corner = (m // (out_height * out_width) * (height + 2) + (m // out_width) % out_height * 2) * (width + 2)
    corner = (corner + m % out_width * 2)[:, None] * channels + c[None, :]
    largest = tl.full((block_rows, block), -1.0, dtype=tl.float32)
    which = tl.zeros((block_rows, block), dtype=tl.int32)
    source = x + task * images * (height + 2) * (width + 2) * channels
    for tap in tl.static_range(9):
        there = corner + (tap // 3 * (width + 2) + tap % 3) * channels
        value = tl.load(source + there, mask=inside, other=0.0).to(tl.float32)
        which = tl.where(value > largest, tap, which)
        largest = tl.maximum(largest, value)
    tl.store(chosen + (task * rows + m[:, None]) * channels + c[None, :], which.to(tl.int8), mask=inside)
    bordered = images * (out_height + 2 * border) * (out_width + 2 * border)
    there = (task * bordered + _bordered(m, out_height, out_width, border)[:, None]) * channels + c[None, :]
    tl.store(out + there, largest.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _pool_back(
    slope,
    chosen,
    out,
    rows,
    height: tl.constexpr,
    width: tl.constexpr,
    out_height: tl.constexpr,
    out_width: tl.constexpr,
    channels: tl.constexpr,
    block_rows: tl.constexpr,
    block: tl.constexpr,
):
    """The gradient at the inputs: each gathers from the windows, four at most, that chose it; `rows` are inputs."""
    task = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    c = tl.program_id(2) * block + tl.arange(0, block)
    line = (m // width) % height + 1  # counted from the border
    column = m % width + 1
    images = rows // (height * width)
    image = task * images + m // (height * width)
    total = tl.zeros((block_rows, block), dtype=tl.float32)
    for number in tl.static_range(4):
        above = line // 2 - number // 2
        left = column // 2 - number % 2
        down = line - 2 * above
        right = column - 2 * left
        real = (m < rows) & (above >= 0) & (above < out_height) & (left >= 0) & (left < out_width)
        real = real & (down < 3) & (right < 3)
        window = ((image * out_height + above) * out_width + left)[:, None] * channels + c[None, :]
        inside = real[:, None] & (c < channels)[None, :]
        tap = tl.load(chosen + window, mask=inside, other=-1).to(tl.int32)
        value = tl.load(slope + window, mask=inside, other=0.0).to(tl.float32)
        total += tl.where(tap == (down * 3 + right)[:, None], value, 0.0)
    there = (task * rows + m[:, None]) * channels + c[None, :]
    tl.store(out + there, total.to(out.dtype.element_ty), mask=(m < rows)[:, None] & (c < channels)[None, :])
