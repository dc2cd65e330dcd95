"""Triton kernels of residual networks: batches, convolutions, normalisation and max-pooling (3×3, stride 2).

Each launch serves many tasks. Images and activations are [t, b, height, width, channels], channels padded with zeros to
a multiple of 4; what a convolution reads has a border of zeros besides (at least half as wide as its taps), so that it
need not ask where an image ends. Weights of one layer are [taps, in, out] for each task, padded alike; a 3×3
convolution has nine taps, a 1×1 one has one.
"""

from __future__ import annotations

import triton
import triton.language as tl


def power(width: int, most: int) -> int:
    """The smallest power of two from 16 on that holds a width, or the most there may be."""
    return min(most, max(16, int(triton.next_power_of_2(width))))


@triton.jit
def _bordered(m, height: tl.constexpr, width: tl.constexpr, border: tl.constexpr):
    """Where pixel m of images without borders lies in images with them."""
    if border == 0:
        there = m
    else:
        line = m // (height * width) * (height + 2 * border) + (m // width) % height + border
        there = line * (width + 2 * border) + m % width + border
    return there


@triton.jit
def _gather(
    images,
    rows,
    labels,
    draws,
    gain,
    offset,
    step,
    x,
    y,
    drawn,
    batch,
    padding,
    height: tl.constexpr,
    width: tl.constexpr,
    channels: tl.constexpr,
    padded: tl.constexpr,
    border: tl.constexpr,
    cropped: tl.constexpr,
    block: tl.constexpr,
):
    """One program writes a block of one image: cropped from its black surroundings, mirrored, normalised."""
    position = tl.program_id(0)
    task = tl.program_id(1).to(tl.int64)
    at = task * drawn + tl.load(step).to(tl.int64) * batch + position
    row = tl.load(rows + at).to(tl.int64)
    draw = tl.load(draws + at) * cropped
    tl.store(y + task * batch + position, tl.load(labels + at))
    n = tl.program_id(2) * block + tl.arange(0, block)
    c = n % padded
    column = (n // padded) % width
    line = n // (padded * width)
    column_shown = tl.where((draw >> 16) > 0, width - 1 - column, column) + ((draw >> 8) & 255) - padding
    line_shown = line + (draw & 255) - padding
    real = (c < channels) & (line < height)
    inside = (line_shown >= 0) & (line_shown < height) & (column_shown >= 0) & (column_shown < width)
    pixel = tl.load(
        images + ((row * channels + c) * height + line_shown) * width + column_shown, mask=real & inside, other=0
    ).to(tl.float32)
    g = tl.load(gain + c, mask=c < channels, other=0.0)
    o = tl.load(offset + c, mask=c < channels, other=0.0)
    value = tl.where(c < channels, pixel * g + o, 0.0).to(x.dtype.element_ty)
    pixel = (line + border) * (width + 2 * border) + column + border
    image = x + (task * batch + position) * (height + 2 * border) * (width + 2 * border) * padded
    tl.store(image + pixel * padded + c, value, mask=line < height)


@triton.jit
def _convolve(
    x,
    w,
    out,
    extra,
    sums,
    weights,
    first,
    rows,
    in_height: tl.constexpr,
    in_width: tl.constexpr,
    in_channels: tl.constexpr,
    out_height: tl.constexpr,
    out_width: tl.constexpr,
    out_channels: tl.constexpr,
    size: tl.constexpr,
    stride: tl.constexpr,
    border: tl.constexpr,
    backwards: tl.constexpr,
    adds: tl.constexpr,
    sums_up: tl.constexpr,
    even: tl.constexpr,
    precision: tl.constexpr,
    block_rows: tl.constexpr,
    block_out: tl.constexpr,
    block_in: tl.constexpr,
):
    """A tile of pixels × channels of a convolution, or of the gradient at the input of one of stride 1.

    The taps of one line lie side by side in memory, so they are one inner dimension of size · in_channels. Backwards
    "in" is the gradient at the outputs of the convolution and "out" that at its inputs, and the weights lie transposed
    and the other way round. `rows` are the output pixels of all images of one task, even if whole tiles hold them.
    """
    task = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    n = tl.program_id(1) * block_out + tl.arange(0, block_out)
    pad: tl.constexpr = size // 2
    line_length: tl.constexpr = size * in_channels
    chunks: tl.constexpr = (line_length + block_in - 1) // block_in
    pixel = m if even else tl.minimum(m, rows - 1)
    image = pixel // (out_width * out_height)
    above = (pixel // out_width) % out_height * stride - pad + border
    left = pixel % out_width * stride - pad + border
    corner = ((image * (in_height + 2 * border) + above) * (in_width + 2 * border) + left) * in_channels
    batch = rows // (out_height * out_width)
    images = x + task * batch * (in_height + 2 * border) * (in_width + 2 * border) * in_channels
    kernel = w + task * weights + first
    total = tl.zeros((block_rows, block_out), dtype=tl.float32)
    for i in range(size * chunks):
        line = i // chunks
        j = (i % chunks) * block_in + tl.arange(0, block_in)
        position = (corner + line * (in_width + 2 * border) * in_channels)[:, None] + j[None, :]
        if backwards:
            number = (size - 1 - line) * size + size - 1 - j // in_channels
            weight = (number * out_channels * in_channels + j % in_channels)[:, None] + n[None, :] * in_channels
        else:
            weight = (line * line_length + j)[:, None] * out_channels + n[None, :]
        if line_length % block_in == 0:
            a = tl.load(images + position)
        else:
            a = tl.load(images + position, mask=(j < line_length)[None, :], other=0.0)
        b = tl.load(kernel + weight, mask=(j < line_length)[:, None] & (n < out_channels)[None, :], other=0.0)
        total = tl.dot(a, b, total, input_precision=precision)
    inside = (m < rows)[:, None] & (n < out_channels)[None, :]
    there = (task * rows + m[:, None]) * out_channels + n[None, :]
    if adds:
        total += tl.load(extra + there, mask=inside, other=0.0).to(tl.float32)
    rounded = total.to(out.dtype.element_ty)
    tl.store(out + there, rounded, mask=inside)
    if sums_up:
        value = tl.where(inside, rounded.to(tl.float32), 0.0)
        partial = sums + ((task * tl.num_programs(0) + tl.program_id(0)) * 2) * out_channels + n
        tl.store(partial, tl.sum(value, 0), mask=n < out_channels)
        tl.store(partial + out_channels, tl.sum(value * value, 0), mask=n < out_channels)


@triton.jit
def _convolve_back_halved(
    d,
    w,
    out,
    extra,
    weights,
    first,
    rows,
    in_height: tl.constexpr,
    in_width: tl.constexpr,
    in_channels: tl.constexpr,
    out_height: tl.constexpr,
    out_width: tl.constexpr,
    out_channels: tl.constexpr,
    size: tl.constexpr,
    border: tl.constexpr,
    adds: tl.constexpr,
    precision: tl.constexpr,
    block_rows: tl.constexpr,
    block_out: tl.constexpr,
    block_in: tl.constexpr,
):
    """The gradient at the input ("out") of a convolution of stride 2, for pixels of one parity of line and column.

    A pixel of an even line was seen through the middle line of taps only, one of an odd line through the two others;
    likewise columns. `rows` are the pixels of one parity in all images of one task.
    """
    task = (tl.program_id(2) // 4).to(tl.int64)
    odd_line = (tl.program_id(2) // 2) % 2
    odd_column = tl.program_id(2) % 2
    m = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    n = tl.program_id(1) * block_out + tl.arange(0, block_out)
    wide: tl.constexpr = (out_width + 1) // 2
    high: tl.constexpr = (out_height + 1) // 2
    column = m % wide * 2 + odd_column
    line = (m // wide) % high * 2 + odd_line
    image = m // (wide * high)
    real = (m < rows) & (column < out_width) & (line < out_height)
    chunks: tl.constexpr = (in_channels + block_in - 1) // block_in
    batch = rows // (wide * high)
    slopes = d + task * batch * (in_height + 2 * border) * (in_width + 2 * border) * in_channels
    kernel = w + task * weights + first
    taps = (1 + odd_line) * (1 + odd_column) if size == 3 else (1 - odd_line) * (1 - odd_column)
    total = tl.zeros((block_rows, block_out), dtype=tl.float32)
    for i in range(taps * chunks):
        tap = i // chunks
        k = (i % chunks) * block_in + tl.arange(0, block_in)
        if size == 3:
            down = tl.where(odd_line == 1, tap // (1 + odd_column) * 2, 1)
            right = tl.where(odd_column == 1, tap % (1 + odd_column) * 2, 1)
        else:
            down = tap * 0
            right = tap * 0
        above = (line + size // 2 - down) // 2 + border
        left = (column + size // 2 - right) // 2 + border
        position = ((image * (in_height + 2 * border) + above) * (in_width + 2 * border) + left) * in_channels
        a = tl.load(slopes + position[:, None] + k[None, :], mask=real[:, None] & (k < in_channels)[None, :], other=0.0)
        weight = ((down * size + right) * out_channels + n[None, :]) * in_channels + k[:, None]
        b = tl.load(kernel + weight, mask=(k < in_channels)[:, None] & (n < out_channels)[None, :], other=0.0)
        total = tl.dot(a, b, total, input_precision=precision)
    inside = real[:, None] & (n < out_channels)[None, :]
    pixel = (task * batch + image) * out_height * out_width + line * out_width + column
    there = pixel[:, None] * out_channels + n[None, :]
    if adds:
        total += tl.load(extra + there, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + there, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _weight_gradient(
    x,
    d,
    out,
    gradients,
    first,
    weights,
    rows,
    share,
    in_height: tl.constexpr,
    in_width: tl.constexpr,
    in_channels: tl.constexpr,
    out_height: tl.constexpr,
    out_width: tl.constexpr,
    out_channels: tl.constexpr,
    size: tl.constexpr,
    stride: tl.constexpr,
    border: tl.constexpr,
    slope_border: tl.constexpr,
    even: tl.constexpr,
    precision: tl.constexpr,
    block_in: tl.constexpr,
    block_out: tl.constexpr,
    block_rows: tl.constexpr,
):
    """The gradient of a tile of the weights of one line of taps, over one share of a task's output pixels."""
    task = tl.program_id(2).to(tl.int64)
    split = tl.program_id(1)
    pad: tl.constexpr = size // 2
    line_length: tl.constexpr = size * in_channels
    tiles_out: tl.constexpr = (out_channels + block_out - 1) // block_out
    tiles_in: tl.constexpr = (line_length + block_in - 1) // block_in
    tile = tl.program_id(0)
    n = (tile % tiles_out) * block_out + tl.arange(0, block_out)
    j = ((tile // tiles_out) % tiles_in) * block_in + tl.arange(0, block_in)
    line = tile // (tiles_out * tiles_in)
    batch = rows // (out_height * out_width)
    images = x + task * batch * (in_height + 2 * border) * (in_width + 2 * border) * in_channels
    slopes = d + task * batch * (out_height + 2 * slope_border) * (out_width + 2 * slope_border) * out_channels
    total = tl.zeros((block_in, block_out), dtype=tl.float32)
    stop = min((split + 1) * share, rows)
    for start in range(split * share, stop, block_rows):
        m = start + tl.arange(0, block_rows)
        pixel = m if even else tl.minimum(m, rows - 1)
        image = pixel // (out_width * out_height)
        above = (pixel // out_width) % out_height * stride - pad + border + line
        left = pixel % out_width * stride - pad + border
        corner = ((image * (in_height + 2 * border) + above) * (in_width + 2 * border) + left) * in_channels
        middle = _bordered(pixel, out_height, out_width, slope_border) * out_channels
        if line_length % block_in == 0:
            a = tl.load(images + corner[:, None] + j[None, :])
        else:
            a = tl.load(images + corner[:, None] + j[None, :], mask=(j < line_length)[None, :], other=0.0)
        if even:
            slope = tl.load(slopes + middle[:, None] + n[None, :], mask=(n < out_channels)[None, :], other=0.0)
        else:
            inside = (m < stop)[:, None] & (n < out_channels)[None, :]
            slope = tl.load(slopes + middle[:, None] + n[None, :], mask=inside, other=0.0)
        total = tl.dot(tl.trans(a), slope, total, input_precision=precision)
    there = out + task * gradients + first + split * weights + line * line_length * out_channels
    tl.store(
        there + j[:, None] * out_channels + n[None, :],
        total,
        mask=(j < line_length)[:, None] & (n < out_channels)[None, :],
    )


@triton.jit
def _places(task, m, c, rows, height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, border: tl.constexpr):
    """Where channels c of pixels m of a task, which has so many rows of pixels, lie in images with borders."""
    bordered = rows // (height * width) * (height + 2 * border) * (width + 2 * border)
    return (task * bordered + _bordered(m, height, width, border)[:, None]) * channels + c[None, :]


@triton.jit
def _normal(z, here, inside, mean, spread, channel, real):
    """Numbers of z, normalised by the moments of their channels; and the scale."""
    average = tl.load(mean + channel, mask=real, other=0.0)
    scale = tl.load(spread + channel, mask=real, other=0.0)[None, :]
    return (tl.load(z + here, mask=inside, other=0.0).to(tl.float32) - average[None, :]) * scale, scale


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
    there = _places(task, m, c, rows, height, width, channels, border)
    value, _ = _normal(z, here, inside, mean, spread, task * channels + c, real)
    if kind == 1:
        value += tl.load(other + there, mask=inside, other=0.0).to(tl.float32)
    if kind == 2:
        shortcut, _ = _normal(other, here, inside, other_mean, other_spread, task * channels + c, real)
        value += shortcut
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
            there = _places(task, m, c, rows, height, width, channels, border)
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
    normal, scale = _normal(z, here, inside, mean, spread, task * channels + c, real)
    plain = tl.load(sums + task * 3 * channels + c, mask=real, other=0.0) / rows
    product = tl.load(sums + (task * 3 + which) * channels + c, mask=real, other=0.0) / rows
    if not gated:
        s = tl.where(normal > 0, s, 0.0)
    back = (s - plain[None, :] - normal * product[None, :]) * scale
    there = _places(task, m, c, rows, height, width, channels, border)
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
    there = _places(task, m, c, rows, out_height, out_width, channels, border)
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
