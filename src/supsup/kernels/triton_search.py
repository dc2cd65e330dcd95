"""Exact search and the query of one image on a GPU; `inference/search.py` and `inference/gradient.py` use them.

The query is a forward and a backward pass of one image through linear layers and ReLU at a mean of masks, one launch
for each step. For one image launches cost most, and torch would need three times as many.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

_UNPACKED = 1 << 28  # bits that may be unpacked at once
_SPLITS = 256  # parts of the bytes for a lone query, so that every multiprocessor has work
_BYTES, _TASKS = 4, 512  # the tile of a lone query
_OUT, _IN = 8, 256  # the tile of a query made from its factors
_FORWARD_OUT, _FORWARD_IN = 4, 256  # the tile of a forward step
_BACK_OUT, _BACK_IN = 128, 16  # the tile of a backward step


@triton.jit
def _few(query, block, partial, size, tasks, stride, share, bytes_: tl.constexpr, block_tasks: tl.constexpr):
    """The sum over one share of the bytes for some tasks and one query.

    A tile is much wider than it is high, so that a thread uses each number of the query for several tasks, and is
    summed over its bytes only at the end. Bits select between the number and 0, which costs less than converting them.
    """
    t = tl.program_id(0) * block_tasks + tl.arange(0, block_tasks)
    split = tl.program_id(1)
    row = tl.program_id(2)
    total = tl.zeros((bytes_, block_tasks), dtype=tl.float32)
    stop = min((split + 1) * share, size)
    for start in range(split * share, stop, bytes_):
        b = start + tl.arange(0, bytes_)
        offset = b[:, None].to(tl.int64) * stride + t[None, :]
        packed = tl.load(block + offset, mask=(b < stop)[:, None] & (t < tasks)[None, :], other=0).to(tl.int32)
        for bit in tl.static_range(8):
            q = tl.load(query + row * size * 8 + b * 8 + bit, mask=b < stop, other=0.0)
            total += tl.where((packed & (1 << bit)) != 0, q[:, None], 0.0)
    tl.store(partial + (row * tl.num_programs(1) + split) * tasks + t, tl.sum(total, 0), mask=t < tasks)


def add_inner_few(query: Tensor, block: Tensor, out: Tensor) -> None:
    """For a few queries: every byte is read once for each."""
    size, tasks = block.shape
    share = _BYTES * max(4, triton.cdiv(size, _BYTES * _SPLITS))
    splits = triton.cdiv(size, share)
    partial = torch.empty(len(query), splits, tasks, device=query.device)
    _few[(triton.cdiv(tasks, _TASKS), splits, len(query))](
        query.contiguous(), block, partial, size, tasks, block.stride(0), share, bytes_=_BYTES, block_tasks=_TASKS
    )
    out += partial.sum(1)


@triton.jit
def _unpack(block, bits, size, tasks, padded, stride, bytes_: tl.constexpr, block_tasks: tl.constexpr):
    b = tl.program_id(1) * bytes_ + tl.arange(0, bytes_)
    t = tl.program_id(0) * block_tasks + tl.arange(0, block_tasks)
    inside = (b < size)[:, None] & (t < tasks)[None, :]
    packed = tl.load(block + b[:, None].to(tl.int64) * stride + t[None, :], mask=inside, other=0)
    written = (b < size)[:, None] & (t < padded)[None, :]
    for bit in tl.static_range(8):
        offset = (b[:, None].to(tl.int64) * 8 + bit) * padded + t[None, :]
        tl.store(bits + offset, ((packed >> bit) & 1).to(bits.dtype.element_ty), mask=written)


def unpack(block: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes [b, tasks] to numbers [8b, tasks or more], padded with columns of 0 for matrix products."""
    size, tasks = block.shape
    padded = triton.cdiv(tasks, 64) * 64
    bits = torch.empty(8 * size, padded, dtype=dtype, device=block.device)
    grid = (triton.cdiv(padded, 128), triton.cdiv(size, 32))
    _unpack[grid](block, bits, size, tasks, padded, block.stride(0), bytes_=32, block_tasks=128)
    return bits


@triton.jit
def _outer(weight, delta, inputs, query, outputs, width, bits, block_out: tl.constexpr, block_in: tl.constexpr):
    o = tl.program_id(1) * block_out + tl.arange(0, block_out)
    i = tl.program_id(2) * block_in + tl.arange(0, block_in)
    row = tl.program_id(0).to(tl.int64)
    inside = (o < outputs)[:, None] & (i < width)[None, :]
    offset = o[:, None] * width + i[None, :]
    d = tl.load(delta + row * outputs + o, mask=o < outputs, other=0.0)
    x = tl.load(inputs + row * width + i, mask=i < width, other=0.0)
    w = tl.load(weight + offset, mask=inside, other=0.0)
    value = d[:, None] * x[None, :] * w
    tl.store(query + row * bits + offset, value.to(query.dtype.element_ty), mask=inside)


def triton_outer(
    weight: Tensor, delta: Tensor, inputs: Tensor, bits: int, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """W ⊙ delta ⊗ inputs for each row of delta [r, out] and inputs [r, in], padded with zeros: [r, bits].

    The numbers are written once, in the precision of the product with many masks.
    """
    outputs, width = weight.shape
    query = torch.empty(len(delta), bits, dtype=dtype, device=delta.device)
    query[:, outputs * width :] = 0
    grid = (len(delta), triton.cdiv(outputs, _OUT), triton.cdiv(width, _IN))
    _outer[grid](
        weight.contiguous(),
        delta.contiguous(),
        inputs.contiguous(),
        query,
        outputs,
        width,
        bits,
        block_out=_OUT,
        block_in=_IN,
    )
    return query


def add_inner_many(query: Tensor, block: Tensor, out: Tensor) -> None:
    """For many queries: matrix products in bfloat16 with float32 sums, the bits unpacked a piece at a time."""
    narrow = query.to(torch.bfloat16)
    step = max(1, _UNPACKED // (8 * max(1, block.shape[1])))
    for start in range(0, len(block), step):
        bits = unpack(block[start : start + step], torch.bfloat16)
        sums = torch.mm(narrow[:, 8 * start : 8 * start + len(bits)], bits, out_dtype=torch.float32)
        out += sums[:, : out.shape[1]]


@triton.jit
def _forward(x, weight, mean, y, outputs, width, relu: tl.constexpr, block_out: tl.constexpr, block_in: tl.constexpr):
    """y = (W ⊙ mean) x, negative numbers to 0 if `relu`."""
    o = tl.program_id(0) * block_out + tl.arange(0, block_out)
    total = tl.zeros((block_out, block_in), dtype=tl.float32)
    for start in range(0, width, block_in):
        i = start + tl.arange(0, block_in)
        inside = (o < outputs)[:, None] & (i < width)[None, :]
        offset = o[:, None] * width + i[None, :]
        effective = tl.load(weight + offset, mask=inside, other=0.0) * tl.load(mean + offset, mask=inside, other=0.0)
        total += effective * tl.load(x + i, mask=i < width, other=0.0)[None, :]
    result = tl.sum(total, 1)
    if relu:
        result = tl.maximum(result, 0.0)
    tl.store(y + o, result, mask=o < outputs)


@triton.jit
def _gradient(outputs, delta, size, classes, entropy: tl.constexpr, block: tl.constexpr):
    """Minus the derivative of H, or of G, by the outputs."""
    i = tl.arange(0, block)
    inside = i < size
    y = tl.load(outputs + i, mask=inside, other=float("-inf"))
    y = y - tl.max(y, 0)
    e = tl.exp(y)
    total = tl.sum(e, 0)
    p = e / total
    if entropy:
        log_p = tl.where(inside, y - tl.log(total), 0.0)
        result = p * (log_p - tl.sum(p * log_p, 0))
    else:
        result = tl.where(i < classes, 0.0, -p)
    tl.store(delta + i, result, mask=inside)


@triton.jit
def _backward(delta, weight, mean, hidden, out, outputs, width, block_out: tl.constexpr, block_in: tl.constexpr):
    """(W ⊙ mean)ᵀ delta, 0 where the hidden activation is 0."""
    i = tl.program_id(0) * block_in + tl.arange(0, block_in)
    total = tl.zeros((block_out, block_in), dtype=tl.float32)
    for start in range(0, outputs, block_out):
        o = start + tl.arange(0, block_out)
        inside = (o < outputs)[:, None] & (i < width)[None, :]
        offset = o[:, None] * width + i[None, :]
        effective = tl.load(weight + offset, mask=inside, other=0.0) * tl.load(mean + offset, mask=inside, other=0.0)
        total += effective * tl.load(delta + o, mask=o < outputs, other=0.0)[:, None]
    alive = tl.load(hidden + i, mask=i < width, other=0.0) > 0
    tl.store(out + i, tl.where(alive, tl.sum(total, 0), 0.0), mask=i < width)


def triton_lone_query(
    x: Tensor, weights: Sequence[Tensor], means: Sequence[Tensor], objective: str, classes: int, lowest: int
) -> tuple[list[Tensor], list[Tensor]]:
    """For one image [in]: −∂Obj/∂output of each layer from `lowest` on, and the inputs of those layers."""
    inputs = [x.contiguous()]
    for number, (weight, mean) in enumerate(zip(weights, means)):
        outputs, width = weight.shape
        inputs.append(torch.empty(outputs, device=x.device))
        _forward[(triton.cdiv(outputs, _FORWARD_OUT),)](
            inputs[-2],
            weight.contiguous(),
            mean.contiguous(),
            inputs[-1],
            outputs,
            width,
            relu=number + 1 < len(weights),
            block_out=_FORWARD_OUT,
            block_in=_FORWARD_IN,
        )
    last = inputs.pop()
    deltas = [torch.empty_like(last)]
    _gradient[(1,)](
        last, deltas[0], len(last), classes, entropy=objective == "H", block=triton.next_power_of_2(len(last))
    )
    for number in reversed(range(lowest + 1, len(weights))):
        outputs, width = weights[number].shape
        deltas.insert(0, torch.empty(width, device=x.device))
        _backward[(triton.cdiv(width, _BACK_IN),)](
            deltas[1],
            weights[number].contiguous(),
            means[number].contiguous(),
            inputs[number],
            deltas[0],
            outputs,
            width,
            block_out=_BACK_OUT,
            block_in=_BACK_IN,
        )
    return deltas, inputs[lowest:]
