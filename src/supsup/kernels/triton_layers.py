"""Triton kernels of residual networks: normalisation, max-pooling (3×3, stride 2), and packing of weights.

Each launch serves many tasks. Packing moves all layers between the tensors of a module and one buffer in which weights
lie end to end. For each place of the buffer, `place` is the index of the weight within its tensor, −1 for padding; the
tensors of one layer are stored task after task.
"""

from __future__ import annotations

import triton
import triton.language as tl

from supsup.kernels.triton_convolution import _bordered


@triton.jit
def _moments(
    sums,
    mean,
    spread,
    running_mean,
    running_variance,
    parts,
    count,
    channels: tl.constexpr,
    epsilon: tl.constexpr,
    momentum: tl.constexpr,
    block_parts: tl.constexpr,
    block: tl.constexpr,
):
    """Mean and 1/√(variance + ε) of each channel from partial sums [t, parts, 2, channels]; running values follow."""
    task = tl.program_id(0)
    c = tl.program_id(1) * block + tl.arange(0, block)
    first = tl.zeros((block_parts, block), dtype=tl.float32)
    second = tl.zeros((block_parts, block), dtype=tl.float32)
    for start in range(0, parts, block_parts):
        p = start + tl.arange(0, block_parts)
        position = sums + ((task * parts + p[:, None]) * 2) * channels + c[None, :]
        inside = (p < parts)[:, None] & (c < channels)[None, :]
        first += tl.load(position, mask=inside, other=0.0)
        second += tl.load(position + channels, mask=inside, other=0.0)
    average = tl.sum(first, 0) / count
    variance = tl.maximum(tl.sum(second, 0) / count - average * average, 0.0)
    here = task * channels + c
    inside = c < channels
    tl.store(mean + here, average, mask=inside)
    tl.store(spread + here, 1.0 / tl.sqrt(variance + epsilon), mask=inside)
    old_mean = tl.load(running_mean + here, mask=inside, other=0.0)
    old_variance = tl.load(running_variance + here, mask=inside, other=0.0)
    tl.store(running_mean + here, (1.0 - momentum) * old_mean + momentum * average, mask=inside)
    unbiased = momentum * variance * count / (count - 1)
    tl.store(running_variance + here, (1.0 - momentum) * old_variance + unbiased, mask=inside)


@triton.jit
def _normalise(
    z,
    mean,
    spread,
    other,
    other_mean,
    other_spread,
    out,
    rows,
    height: tl.constexpr,
    width: tl.constexpr,
    channels: tl.constexpr,
    border: tl.constexpr,
    kind: tl.constexpr,
    block_rows: tl.constexpr,
    block: tl.constexpr,
):
    """relu of normalised z, plus nothing (kind 0), another activation (1) or another normalised z (2)."""
    task = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    c = tl.program_id(2) * block + tl.arange(0, block)
    real = c < channels
    inside = (m < rows)[:, None] & real[None, :]
    here = (task * rows + m[:, None]) * channels + c[None, :]
    bordered = rows // (height * width) * (height + 2 * border) * (width + 2 * border)
    there = (task * bordered + _bordered(m, height, width, border)[:, None]) * channels + c[None, :]
    average = tl.load(mean + task * channels + c, mask=real, other=0.0)
    scale = tl.load(spread + task * channels + c, mask=real, other=0.0)
    value = (tl.load(z + here, mask=inside, other=0.0).to(tl.float32) - average[None, :]) * scale[None, :]
    if kind == 1:
        value += tl.load(other + there, mask=inside, other=0.0).to(tl.float32)
    if kind == 2:
        average = tl.load(other_mean + task * channels + c, mask=real, other=0.0)
        scale = tl.load(other_spread + task * channels + c, mask=real, other=0.0)
        value += (tl.load(other + here, mask=inside, other=0.0).to(tl.float32) - average[None, :]) * scale[None, :]
    tl.store(out + there, tl.maximum(value, 0.0).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _slope_sums(
    slope,
    gate,
    z,
    mean,
    spread,
    other,
    other_mean,
    other_spread,
    sums,
    rows,
    share,
    height: tl.constexpr,
    width: tl.constexpr,
    channels: tl.constexpr,
    border: tl.constexpr,
    gated: tl.constexpr,
    two: tl.constexpr,
    block_rows: tl.constexpr,
    block: tl.constexpr,
):
    """Go back through the relu and sum the slope, and slope × normalised z, over a share of the pixels.

    gated  the relu's output is given and decides, and the slope is changed in place; else the sign of normalised z does
    two    also sum slope × another normalised z, of the shortcut
    """
    task = tl.program_id(1).to(tl.int64)
    c = tl.program_id(2) * block + tl.arange(0, block)
    real = c < channels
    average = tl.load(mean + task * channels + c, mask=real, other=0.0)
    scale = tl.load(spread + task * channels + c, mask=real, other=0.0)
    if two:
        other_average = tl.load(other_mean + task * channels + c, mask=real, other=0.0)
        other_scale = tl.load(other_spread + task * channels + c, mask=real, other=0.0)
    plain = tl.zeros((block_rows, block), dtype=tl.float32)
    product = tl.zeros((block_rows, block), dtype=tl.float32)
    other_product = tl.zeros((block_rows, block), dtype=tl.float32)
    stop = min((tl.program_id(0) + 1) * share, rows)
    for start in range(tl.program_id(0) * share, stop, block_rows):
        m = start + tl.arange(0, block_rows)
        inside = (m < stop)[:, None] & real[None, :]
        here = (task * rows + m[:, None]) * channels + c[None, :]
        s = tl.load(slope + here, mask=inside, other=0.0).to(tl.float32)
        normal = (tl.load(z + here, mask=inside, other=0.0).to(tl.float32) - average[None, :]) * scale[None, :]
        if gated:
            bordered = rows // (height * width) * (height + 2 * border) * (width + 2 * border)
            there = (task * bordered + _bordered(m, height, width, border)[:, None]) * channels + c[None, :]
            s = tl.where(tl.load(gate + there, mask=inside, other=0.0) > 0, s, 0.0)
            tl.store(slope + here, s.to(slope.dtype.element_ty), mask=inside)
        else:
            s = tl.where(normal > 0, s, 0.0)
        plain += s
        product += tl.where(inside, s * normal, 0.0)
        if two:
            shortcut = tl.load(other + here, mask=inside, other=0.0).to(tl.float32)
            other_product += tl.where(inside, s * (shortcut - other_average[None, :]) * other_scale[None, :], 0.0)
    partial = sums + ((task * tl.num_programs(0) + tl.program_id(0)) * 3) * channels + c
    tl.store(partial, tl.sum(plain, 0), mask=real)
    tl.store(partial + channels, tl.sum(product, 0), mask=real)
    tl.store(partial + 2 * channels, tl.sum(other_product, 0), mask=real)


@triton.jit
def _normalise_back(
    slope,
    z,
    mean,
    spread,
    sums,
    out,
    rows,
    which,
    gated: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    channels: tl.constexpr,
    border: tl.constexpr,
    block_rows: tl.constexpr,
    block: tl.constexpr,
):
    """The gradient at z, from that at normalised z (unless gated: after the relu) and the sums over all pixels."""
    task = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    c = tl.program_id(2) * block + tl.arange(0, block)
    real = c < channels
    inside = (m < rows)[:, None] & real[None, :]
    here = (task * rows + m[:, None]) * channels + c[None, :]
    s = tl.load(slope + here, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(z + here, mask=inside, other=0.0).to(tl.float32)
    average = tl.load(mean + task * channels + c, mask=real, other=0.0)
    scale = tl.load(spread + task * channels + c, mask=real, other=0.0)
    plain = tl.load(sums + task * 3 * channels + c, mask=real, other=0.0) / rows
    product = tl.load(sums + (task * 3 + which) * channels + c, mask=real, other=0.0) / rows
    normal = (value - average[None, :]) * scale[None, :]
    if not gated:
        s = tl.where(normal > 0, s, 0.0)
    back = (s - plain[None, :] - normal * product[None, :]) * scale[None, :]
    bordered = rows // (height * width) * (height + 2 * border) * (width + 2 * border)
    there = (task * bordered + _bordered(m, height, width, border)[:, None]) * channels + c[None, :]
    tl.store(out + there, back.to(out.dtype.element_ty), mask=inside)


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


@triton.jit
def _pack(values, out, place, layer_of, start, stride, total, block: tl.constexpr):
    """A block of one task's weights, rounded to the precision of `out`.

    start, stride  of each layer in `values`; the stride from task to task is 0 where all tasks share the weights
    """
    task = tl.program_id(1).to(tl.int64)
    number = tl.program_id(0)
    layer = tl.load(layer_of + number)
    here = number * block + tl.arange(0, block)
    at = tl.load(place + here)
    source = values + tl.load(start + layer) + task * tl.load(stride + layer)
    value = tl.load(source + at, mask=at >= 0, other=0.0)
    tl.store(out + task * total + here, value.to(out.dtype.element_ty))


@triton.jit
def _unpack(
    gradients,
    out,
    place,
    layer_of,
    offset_of,
    gradient_start,
    splits,
    sizes,
    start,
    stride,
    total_gradients,
    block: tl.constexpr,
):
    """A block of one task's gradients, summed over the shares they were made in, to where the weights came from."""
    task = tl.program_id(1).to(tl.int64)
    number = tl.program_id(0)
    layer = tl.load(layer_of + number)
    n = tl.load(offset_of + number) + tl.arange(0, block)  # within the layer
    size = tl.load(sizes + layer)
    g = tl.zeros((block,), dtype=tl.float32)
    shares = gradients + task * total_gradients + tl.load(gradient_start + layer)
    for split in range(tl.load(splits + layer)):
        g += tl.load(shares + split * size + n, mask=n < size, other=0.0)
    at = tl.load(place + number * block + tl.arange(0, block))
    there = out + tl.load(start + layer) + task * tl.load(stride + layer)
    tl.store(there + at, g, mask=at >= 0)
