"""Triton kernels for training residual networks of many tasks at once: each works on all tasks in one launch.

Images and activations are [t, b, height, width, channels], channels padded to a multiple of 8 with zeros. Weights of one
layer are [taps, in, out] for each task, padded alike; a 3×3 convolution has nine taps, a 1×1 one has one.
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
    """A tile of pixels × channels of a convolution, or of the gradient at a convolution's input.

    Backwards "in" is the gradient at the outputs of the convolution and "out" that at its inputs, whose weights lie
    transposed. `rows` are the output pixels of all images of one task.
    """
    task = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    n = tl.program_id(1) * block_out + tl.arange(0, block_out)
    column = m % out_width
    line = (m // out_width) % out_height
    image = m // (out_width * out_height)
    chunks: tl.constexpr = (in_channels + block_in - 1) // block_in
    pad: tl.constexpr = size // 2
    batch = rows // (out_height * out_width)
    images = x + task * batch * in_height * in_width * in_channels
    kernel = w + task * weights + first
    total = tl.zeros((block_rows, block_out), dtype=tl.float32)
    for i in range(size * size * chunks):
        tap = i // chunks
        k = (i % chunks) * block_in + tl.arange(0, block_in)
        if backwards:
            above, left = line + pad - tap // size, column + pad - tap % size
            here = (above >= 0) & (left >= 0) & (above % stride == 0) & (left % stride == 0) & (m < rows)
            above, left = above // stride, left // stride
            here = here & (above < in_height) & (left < in_width)
            weight = kernel + (tap * out_channels + n[None, :]) * in_channels + k[:, None]
        else:
            above, left = line * stride + tap // size - pad, column * stride + tap % size - pad
            here = (above >= 0) & (above < in_height) & (left >= 0) & (left < in_width) & (m < rows)
            weight = kernel + (tap * in_channels + k[:, None]) * out_channels + n[None, :]
        place = ((image * in_height + above) * in_width + left) * in_channels
        a = tl.load(images + place[:, None] + k[None, :], mask=here[:, None] & (k < in_channels)[None, :], other=0.0)
        b = tl.load(weight, mask=(k < in_channels)[:, None] & (n < out_channels)[None, :], other=0.0)
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
    taps: tl.constexpr,
    block_in: tl.constexpr,
    block_out: tl.constexpr,
    block_rows: tl.constexpr,
):
    """The gradient of a tile of weights over one share of a task's output pixels.

    A tile holds the `taps` taps beginning with one: 4 are taken for the three of a line, the last one of them empty.
    """
    task = tl.program_id(2).to(tl.int64)
    split = tl.program_id(1)
    tiles_out: tl.constexpr = (out_channels + block_out - 1) // block_out
    tiles_in: tl.constexpr = (in_channels + block_in - 1) // block_in
    tile = tl.program_id(0)
    n = (tile % tiles_out) * block_out + tl.arange(0, block_out)
    j = tl.arange(0, taps * block_in)
    k = ((tile // tiles_out) % tiles_in) * block_in + j % block_in
    group = tile // (tiles_out * tiles_in)
    used: tl.constexpr = 3 if taps == 4 else taps
    tap = group * used + j // block_in
    real = (j // block_in < used) & (k < in_channels)
    pad: tl.constexpr = size // 2
    batch = rows // (out_height * out_width)
    images = x + task * batch * in_height * in_width * in_channels
    slopes = d + task * rows * out_channels
    total = tl.zeros((taps * block_in, block_out), dtype=tl.float32)
    stop = min((split + 1) * share, rows)
    for start in range(split * share, stop, block_rows):
        m = start + tl.arange(0, block_rows)
        column = m % out_width
        line = (m // out_width) % out_height
        image = m // (out_width * out_height)
        above = line[:, None] * stride + (tap // size - pad)[None, :]
        left = column[:, None] * stride + (tap % size - pad)[None, :]
        here = (above >= 0) & (above < in_height) & (left >= 0) & (left < in_width) & (m < stop)[:, None]
        place = ((image[:, None] * in_height + above) * in_width + left) * in_channels + k[None, :]
        a = tl.load(images + place, mask=here & real[None, :], other=0.0)
        slope = tl.load(
            slopes + m[:, None] * out_channels + n[None, :],
            mask=(m < stop)[:, None] & (n < out_channels)[None, :],
            other=0.0,
        )
        total = tl.dot(tl.trans(a), slope, total, input_precision=precision)
    there = out + task * gradients + first + split * weights
    tl.store(
        there + (tap * in_channels + k)[:, None] * out_channels + n[None, :],
        total,
        mask=real[:, None] & (n < out_channels)[None, :],
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
def _histogram(
    scores,
    found,
    counts,
    chunk_layer,
    chunk_start,
    chunk_stop,
    total_weights,
    layers,
    shift: tl.constexpr,
    bits: tl.constexpr,
    block: tl.constexpr,
):
    """Count, among scores whose higher bits are those found so far, how often each value of the next bits occurs."""
    task = tl.program_id(1).to(tl.int64)
    number = tl.program_id(0)
    layer = tl.load(chunk_layer + number)
    n = tl.load(chunk_start + number) + tl.arange(0, block)
    inside = n < tl.load(chunk_stop + number)
    s = tl.load(scores + task * total_weights + n, mask=inside, other=0.0)
    key = tl.abs(s).to(tl.int32, bitcast=True)
    inside = inside & ((key >> (shift + bits)) == tl.load(found + task * layers + layer))
    values: tl.constexpr = 1 << bits
    digit = tl.where(inside, (key >> shift) & (values - 1), 0)
    counted = tl.histogram(digit, values)
    d = tl.arange(0, values)
    counted = tl.where(d == 0, counted - block + tl.sum(inside.to(tl.int32), 0), counted)
    tl.atomic_add(counts + (task * layers + layer) * 2048 + d, counted, mask=counted > 0)


@triton.jit
def _narrow(found, left, counts, layers, bits: tl.constexpr):
    """Add the next bits of the value that is the `left`-th largest, and clear the counts."""
    task = tl.program_id(1)
    here = task * layers + tl.program_id(0)
    values: tl.constexpr = 1 << bits
    d = tl.arange(0, values)
    place = counts + here.to(tl.int64) * 2048 + d
    count = tl.load(place)
    tl.store(place, tl.zeros((values,), dtype=tl.int32))
    at_least = tl.sum(count, 0) - tl.cumsum(count, 0) + count
    wanted = tl.load(left + here)
    digit = tl.sum((at_least >= wanted).to(tl.int32), 0) - 1
    above = tl.sum(tl.where(d > digit, count, 0), 0)
    tl.store(left + here, wanted - above)
    tl.store(found + here, (tl.load(found + here) << bits) | digit)


@triton.jit
def _mask(
    weight,
    scores,
    masked,
    found,
    layer_of,
    total_weights,
    layers,
    signed: tl.constexpr,
    block: tl.constexpr,
):
    """The masked weights: those whose score is, in size, at least the value found; else those at least 0."""
    task = tl.program_id(1).to(tl.int64)
    number = tl.program_id(0)
    here = number * block + tl.arange(0, block)
    w = tl.load(weight + here)
    s = tl.load(scores + task * total_weights + here)
    if signed:
        least = tl.load(found + task * layers + tl.load(layer_of + number))
        keep = tl.abs(s).to(tl.int32, bitcast=True) >= least
    else:
        keep = s >= 0
    tl.store(masked + task * total_weights + here, tl.where(keep, w, 0.0).to(masked.dtype.element_ty))


def power(width: int, most: int) -> int:
    """The smallest power of two from 16 on that holds a width, or the most there may be."""
    return min(most, max(16, triton.next_power_of_2(width)))


def exact(x: Tensor) -> str:
    """How Triton multiplies: float32 exactly, lower precision as it is."""
    return EXACT[x.dtype]
