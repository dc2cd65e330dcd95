"""Triton kernels for all weights of a residual network: packing, the optimiser's step, and the selection of weights.

Weights lie end to end in one buffer, padded, with their scores and moments. For each place of the buffer, `place` is
the index of the weight within its tensor, −1 for padding. The tensors of one layer are stored task after task.
"""

from __future__ import annotations

import triton
import triton.language as tl


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
def _summed(gradients, layer, number, offset_of, gradient_start, splits, sizes, block: tl.constexpr):
    """A block of one task's gradients, summed over the shares they were made in; 0 beyond the layer."""
    n = tl.load(offset_of + number) + tl.arange(0, block)  # within the layer
    size = tl.load(sizes + layer)
    total = tl.zeros((block,), dtype=tl.float32)
    shares = gradients + tl.load(gradient_start + layer)
    for split in range(tl.load(splits + layer)):
        total += tl.load(shares + split * size + n, mask=n < size, other=0.0)
    return total


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
    """A block of one task's gradients to where the weights came from."""
    task = tl.program_id(1).to(tl.int64)
    number = tl.program_id(0)
    layer = tl.load(layer_of + number)
    own = gradients + task * total_gradients
    g = _summed(own, layer, number, offset_of, gradient_start, splits, sizes, block)
    at = tl.load(place + number * block + tl.arange(0, block))
    there = out + tl.load(start + layer) + task * tl.load(stride + layer)
    tl.store(there + at, g, mask=at >= 0)


@triton.jit
def _update_flat(
    weight,
    scores,
    first,
    second,
    gradients,
    layer_of,
    offset_of,
    gradient_start,
    splits,
    sizes,
    factors,
    step,
    decay,
    momentum,
    total_weights,
    total_gradients,
    optimiser: tl.constexpr,
    has_first: tl.constexpr,
    signed: tl.constexpr,
    first_decay: tl.constexpr,
    second_decay: tl.constexpr,
    epsilon: tl.constexpr,
    block: tl.constexpr,
):
    """One step on a block of one task's scores.

    factors    for each step its rate and, for Adam, by what the root of the second moment is multiplied
    has_first  SGD has momentum
    """
    task = tl.program_id(1).to(tl.int64)
    number = tl.program_id(0)
    layer = tl.load(layer_of + number)
    own = gradients + task * total_gradients
    g = _summed(own, layer, number, offset_of, gradient_start, splits, sizes, block)
    here = number * block + tl.arange(0, block)
    w = tl.load(weight + here)
    here = task * total_weights + here
    s = tl.load(scores + here)
    g = g * w
    if signed:
        g = tl.where(s >= 0, g, -g)
    g += decay * s
    now = tl.load(step)
    rate = tl.load(factors + 2 * now)
    if optimiser == "adam":
        u = tl.load(first + here)
        v = tl.load(second + here)
        u = u + (1.0 - first_decay) * (g - u)
        v = second_decay * v + (1.0 - second_decay) * g * g
        s -= rate * u / (tl.sqrt(v) * tl.load(factors + 2 * now + 1) + epsilon)
        tl.store(first + here, u)
        tl.store(second + here, v)
    elif optimiser == "rmsprop":
        v = second_decay * tl.load(second + here) + (1.0 - second_decay) * g * g
        s -= rate * g / (tl.sqrt(v) + epsilon)
        tl.store(second + here, v)
    else:
        if has_first:
            g += momentum * tl.load(first + here)
            tl.store(first + here, g)
        s -= rate * g
    tl.store(scores + here, tl.where(w == 0, 0.0, s))


@triton.jit
def _found(counts, here, wanted, passes: tl.constexpr):
    """The bits that `passes` counts have found of the value that is the wanted-th largest: 6, then 5 in each."""
    found = wanted * 0
    d = tl.arange(0, 64)
    for number in tl.static_range(passes):
        count = tl.load(counts + here * 384 + number * 64 + d)
        at_least = tl.sum(count, 0) - tl.cumsum(count, 0) + count
        digit = tl.sum((at_least >= wanted).to(tl.int32), 0) - 1
        wanted -= tl.sum(tl.where(d > digit, count, 0), 0)
        found = found * 32 + digit
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
def _least(keep, counts, least, layers):
    """The smallest score, in size, that is kept, as its bits; one program for each layer and task."""
    here = tl.program_id(1) * layers + tl.program_id(0)
    tl.store(least + here, _found(counts, here, tl.load(keep + here), 6))


@triton.jit
def _mask(weight, scores, masked, least, layer_of, total_weights, layers, signed: tl.constexpr, block: tl.constexpr):
    """The masked weights: those whose score is at least the least in size, or those whose score is at least 0."""
    task = tl.program_id(1).to(tl.int64)
    number = tl.program_id(0)
    n = number * block + tl.arange(0, block)
    w = tl.load(weight + n)
    s = tl.load(scores + task * total_weights + n)
    if signed:
        key = tl.abs(s).to(tl.int32, bitcast=True)
        chosen = key >= tl.load(least + task * layers + tl.load(layer_of + number))
    else:
        chosen = s >= 0
    tl.store(masked + task * total_weights + n, tl.where(chosen, w, 0.0).to(masked.dtype.element_ty))
