"""Triton kernels for training residual networks of many tasks at once: each works on all tasks in one launch.

Images and activations are [t, b, height, width, channels], channels padded with zeros to a multiple of 4. Weights of
one layer are [taps, in, out] for each task, padded alike; a 3×3 convolution has nine taps, a 1×1 one has one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

EXACT = {torch.float32: "ieee", torch.bfloat16: "tf32"}


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
    block: tl.constexpr,
):
    """One program writes one image: cropped from its black surroundings, mirrored, normalised."""
    place = tl.program_id(0)
    task = tl.program_id(1).to(tl.int64)
    at = task * drawn + tl.load(step).to(tl.int64) * batch + place
    row = tl.load(rows + at).to(tl.int64)
    draw = tl.load(draws + at)
    tl.store(y + task * batch + place, tl.load(labels + at))
    n = tl.arange(0, block)
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
    tl.store(x + (task * batch + place) * height * width * padded + n, value, mask=line < height)


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
    backwards: tl.constexpr,
    adds: tl.constexpr,
    sums_up: tl.constexpr,
    precision: tl.constexpr,
    block_rows: tl.constexpr,
    block_out: tl.constexpr,
    block_in: tl.constexpr,
):
    """A tile of pixels × channels of a convolution, or of the gradient at the input of one of stride 1.

    The taps of one line lie side by side in memory, so they are one inner dimension of size · in_channels. Backwards
    "in" is the gradient at the outputs of the convolution and "out" that at its inputs, and the weights lie transposed
    and the other way round. `rows` are the output pixels of all images of one task.
    """
    task = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    n = tl.program_id(1) * block_out + tl.arange(0, block_out)
    pad: tl.constexpr = size // 2
    line_length: tl.constexpr = size * in_channels
    chunks: tl.constexpr = (line_length + block_in - 1) // block_in
    image = m // (out_width * out_height)
    above = (m // out_width) % out_height * stride - pad
    left = m % out_width * stride - pad
    corner = ((image * in_height + above) * in_width + left) * in_channels
    batch = rows // (out_height * out_width)
    images = x + task * batch * in_height * in_width * in_channels
    kernel = w + task * weights + first
    total = tl.zeros((block_rows, block_out), dtype=tl.float32)
    for i in range(size * chunks):
        line = i // chunks
        j = (i % chunks) * block_in + tl.arange(0, block_in)
        tap = j // in_channels
        here = (above + line >= 0) & (above + line < in_height) & (m < rows)
        column = left[:, None] + tap[None, :]
        shown = here[:, None] & (column >= 0) & (column < in_width) & (j < line_length)[None, :]
        a = tl.load(images + (corner + line * in_width * in_channels)[:, None] + j[None, :], mask=shown, other=0.0)
        if backwards:
            number = (size - 1 - line) * size + size - 1 - tap
            weight = (number * out_channels * in_channels + j % in_channels)[:, None] + n[None, :] * in_channels
        else:
            weight = (line * line_length + j)[:, None] * out_channels + n[None, :]
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
    slopes = d + task * batch * in_height * in_width * in_channels
    kernel = w + task * weights + first
    if size == 3:
        taps = (1 + odd_line) * (1 + odd_column)
    else:
        taps = (1 - odd_line) * (1 - odd_column)
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
        above = (line + size // 2 - down) // 2
        left = (column + size // 2 - right) // 2
        here = real & (above < in_height) & (left < in_width)
        place = ((image * in_height + above) * in_width + left) * in_channels
        a = tl.load(slopes + place[:, None] + k[None, :], mask=here[:, None] & (k < in_channels)[None, :], other=0.0)
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
    tap = j // in_channels
    line = tile // (tiles_out * tiles_in)
    batch = rows // (out_height * out_width)
    images = x + task * batch * in_height * in_width * in_channels
    slopes = d + task * rows * out_channels
    total = tl.zeros((block_in, block_out), dtype=tl.float32)
    stop = min((split + 1) * share, rows)
    for start in range(split * share, stop, block_rows):
        m = start + tl.arange(0, block_rows)
        image = m // (out_width * out_height)
        above = (m // out_width) % out_height * stride - pad + line
        left = m % out_width * stride - pad
        corner = ((image * in_height + above) * in_width + left) * in_channels
        column = left[:, None] + tap[None, :]
        here = (above >= 0) & (above < in_height) & (m < stop)
        shown = here[:, None] & (column >= 0) & (column < in_width) & (j < line_length)[None, :]
        a = tl.load(images + corner[:, None] + j[None, :], mask=shown, other=0.0)
        slope = tl.load(
            slopes + m[:, None] * out_channels + n[None, :],
            mask=(m < stop)[:, None] & (n < out_channels)[None, :],
            other=0.0,
        )
        total = tl.dot(tl.trans(a), slope, total, input_precision=precision)
    there = out + task * gradients + first + split * weights + line * line_length * out_channels
    tl.store(
        there + j[:, None] * out_channels + n[None, :],
        total,
        mask=(j < line_length)[:, None] & (n < out_channels)[None, :],
    )


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
        place = sums + ((task * parts + p[:, None]) * 2) * channels + c[None, :]
        inside = (p < parts)[:, None] & (c < channels)[None, :]
        first += tl.load(place, mask=inside, other=0.0)
        second += tl.load(place + channels, mask=inside, other=0.0)
    average = tl.sum(first, 0) / count
    variance = tl.maximum(tl.sum(second, 0) / count - average * average, 0.0)
    here = task * channels + c
    inside = c < channels
    tl.store(mean + here, average, mask=inside)
    tl.store(spread + here, 1.0 / tl.sqrt(variance + 1e-5), mask=inside)
    old_mean = tl.load(running_mean + here, mask=inside, other=0.0)
    old_variance = tl.load(running_variance + here, mask=inside, other=0.0)
    tl.store(running_mean + here, 0.9 * old_mean + 0.1 * average, mask=inside)
    tl.store(running_variance + here, 0.9 * old_variance + 0.1 * variance * count / (count - 1), mask=inside)


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
    channels: tl.constexpr,
    kind: tl.constexpr,
    block_rows: tl.constexpr,
    block: tl.constexpr,
):
    """relu of normalised z, plus nothing (kind 0), another activation (1) or another normalised z (2)."""
    task = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    c = tl.arange(0, block)
    real = c < channels
    inside = (m < rows)[:, None] & real[None, :]
    here = (task * rows + m[:, None]) * channels + c[None, :]
    average = tl.load(mean + task * channels + c, mask=real, other=0.0)
    scale = tl.load(spread + task * channels + c, mask=real, other=0.0)
    value = (tl.load(z + here, mask=inside, other=0.0).to(tl.float32) - average[None, :]) * scale[None, :]
    if kind > 0:
        more = tl.load(other + here, mask=inside, other=0.0).to(tl.float32)
        if kind == 2:
            average = tl.load(other_mean + task * channels + c, mask=real, other=0.0)
            scale = tl.load(other_spread + task * channels + c, mask=real, other=0.0)
            more = (more - average[None, :]) * scale[None, :]
        value += more
    tl.store(out + here, tl.maximum(value, 0.0).to(out.dtype.element_ty), mask=inside)


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
    channels: tl.constexpr,
    gated: tl.constexpr,
    two: tl.constexpr,
    block_rows: tl.constexpr,
    block: tl.constexpr,
):
    """Go back through the relu (in place), and sum the slope, and slope × normalised z, over a share of the pixels.

    gated  the relu's output is given and decides; else the sign of normalised z does
    two    also sum slope × another normalised z, of the shortcut
    """
    task = tl.program_id(1).to(tl.int64)
    c = tl.arange(0, block)
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
            s = tl.where(tl.load(gate + here, mask=inside, other=0.0) > 0, s, 0.0)
        else:
            s = tl.where(normal > 0, s, 0.0)
        tl.store(slope + here, s.to(slope.dtype.element_ty), mask=inside)
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
    parts: tl.constexpr,
    channels: tl.constexpr,
    block_rows: tl.constexpr,
    block: tl.constexpr,
):
    """The gradient at z, from that at normalised z and the sums over all pixels."""
    task = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    c = tl.arange(0, block)
    real = c < channels
    inside = (m < rows)[:, None] & real[None, :]
    here = (task * rows + m[:, None]) * channels + c[None, :]
    s = tl.load(slope + here, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(z + here, mask=inside, other=0.0).to(tl.float32)
    average = tl.load(mean + task * channels + c, mask=real, other=0.0)
    scale = tl.load(spread + task * channels + c, mask=real, other=0.0)
    p = tl.arange(0, parts)
    partial = sums + ((task * parts + p[:, None]) * 3) * channels + c[None, :]
    plain = tl.sum(tl.load(partial, mask=real[None, :], other=0.0), 0) / rows
    product = tl.sum(tl.load(partial + which * channels, mask=real[None, :], other=0.0), 0) / rows
    normal = (value - average[None, :]) * scale[None, :]
    back = (s - plain[None, :] - normal * product[None, :]) * scale[None, :]
    tl.store(out + here, back.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _update(
    weight,
    scores,
    first,
    second,
    gradients,
    layer_of,
    place_of,
    gradient_start,
    splits,
    sizes,
    factors,
    step,
    decay,
    total_weights,
    total_gradients,
    signed: tl.constexpr,
    block: tl.constexpr,
):
    """One step of Adam on a block of one task's scores; the gradient is summed over the shares it was made in."""
    task = tl.program_id(1).to(tl.int64)
    number = tl.program_id(0)
    layer = tl.load(layer_of + number)
    n = tl.load(place_of + number) + tl.arange(0, block)  # within the layer
    size = tl.load(sizes + layer)
    inside = n < size
    g = tl.zeros((block,), dtype=tl.float32)
    start = gradients + task * total_gradients + tl.load(gradient_start + layer)
    for split in range(tl.load(splits + layer)):
        g += tl.load(start + split * size + n, mask=inside, other=0.0)
    here = number * block + tl.arange(0, block)
    w = tl.load(weight + here)
    here = task * total_weights + here
    s = tl.load(scores + here)
    g = g * w
    if signed:
        g = tl.where(s >= 0, g, -g)
    g += decay * s
    u = tl.load(first + here)
    v = tl.load(second + here)
    u = u + 0.1 * (g - u)
    v = 0.999 * v + 0.001 * g * g
    now = tl.load(step)
    s -= tl.load(factors + 2 * now) * u / (tl.sqrt(v) * tl.load(factors + 2 * now + 1) + 1e-8)
    tl.store(first + here, u)
    tl.store(second + here, v)
    tl.store(scores + here, tl.where(w == 0, 0.0, s))


@triton.jit
def _found(counts, here, wanted, passes: tl.constexpr):
    """The bits that `passes` counts have found of the value that is the wanted-th largest, and how many more to go.

    Each pass counted 64 values of 6 bits in the first and 32 of 5 bits in later ones.
    """
    found = wanted * 0
    for number in tl.static_range(passes):
        values: tl.constexpr = 64 if number == 0 else 32
        d = tl.arange(0, values)
        count = tl.load(counts + here * 384 + number * 64 + d)
        at_least = tl.sum(count, 0) - tl.cumsum(count, 0) + count
        digit = tl.sum((at_least >= wanted).to(tl.int32), 0) - 1
        wanted -= tl.sum(tl.where(d > digit, count, 0), 0)
        found = found * values + digit
    return found


@triton.jit
def _count(
    scores,
    keep,
    counts,
    chunk_layer,
    chunk_start,
    chunk_stop,
    total_weights,
    layers,
    number: tl.constexpr,
    block: tl.constexpr,
):
    """Pass `number` of six: count, among scores with the bits found so far, how often each value of the next occurs."""
    task = tl.program_id(1).to(tl.int64)
    layer = tl.load(chunk_layer + tl.program_id(0))
    here = task * layers + layer
    n = tl.load(chunk_start + tl.program_id(0)) + tl.arange(0, block)
    inside = n < tl.load(chunk_stop + tl.program_id(0))
    s = tl.load(scores + task * total_weights + n, mask=inside, other=0.0)
    key = tl.abs(s).to(tl.int32, bitcast=True)
    values: tl.constexpr = 64 if number == 0 else 32
    shift: tl.constexpr = 25 - 5 * number
    if number > 0:
        found = _found(counts, here, tl.load(keep + here), number)
        inside = inside & ((key >> (shift + 5)) == found)
    digit = tl.where(inside, (key >> shift) & (values - 1), 0)
    counted = tl.histogram(digit, values)
    d = tl.arange(0, values)
    counted = tl.where(d == 0, counted - block + tl.sum(inside.to(tl.int32), 0), counted)
    tl.atomic_add(counts + here * 384 + number * 64 + d, counted, mask=counted > 0)


@triton.jit
def _mask(
    weight,
    scores,
    masked,
    keep,
    counts,
    layer_of,
    total_weights,
    layers,
    signed: tl.constexpr,
    block: tl.constexpr,
):
    """The masked weights: those whose score is, in size, at least the keep-th largest; else those at least 0."""
    task = tl.program_id(1).to(tl.int64)
    number = tl.program_id(0)
    n = number * block + tl.arange(0, block)
    w = tl.load(weight + n)
    s = tl.load(scores + task * total_weights + n)
    if signed:
        here = task * layers + tl.load(layer_of + number)
        least = _found(counts, here, tl.load(keep + here), 6)
        chosen = tl.abs(s).to(tl.int32, bitcast=True) >= least
    else:
        chosen = s >= 0
    tl.store(masked + task * total_weights + n, tl.where(chosen, w, 0.0).to(masked.dtype.element_ty))


def power(width: int, most: int) -> int:
    """The smallest power of two from 16 on that holds a width, or the most there may be."""
    return min(most, max(16, triton.next_power_of_2(width)))


def exact(x: Tensor) -> str:
    """How Triton multiplies: float32 exactly, lower precision as it is."""
    return EXACT[x.dtype]
