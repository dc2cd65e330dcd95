"""Triton kernels between weights as modules have them and weights that lie end to end, for residual networks.

One launch moves all layers of all tasks. For each place among the weights that lie end to end, `place` has the number
of the weight within its own tensor, −1 where there is padding; a layer's tensors of all tasks follow each other.
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
