"""Search kernels for a GPU; `search` says what each computes and chooses between them and the others."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_UNPACKED = 1 << 28  # how many bits may be unpacked at once
_SPLITS = 256  # into how many parts the bytes of a lone query are divided, so that every multiprocessor has some
_BYTES, _TASKS = 4, 512  # the tile of a lone query
_OUT, _IN = 8, 256  # the tile of a query made from its factors


@triton.jit
def _few(query, block, partial, size, tasks, stride, share, bytes_: tl.constexpr, block_tasks: tl.constexpr):
    """The sum over one share of the bytes for some tasks and one query.

    A tile is much wider than it is high, so that a thread uses each number of the query for several tasks, and is
    summed over its bytes only at the end. Bits choose between the number and 0: to convert them would cost more.
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
    """Bytes [b, tasks] to numbers [8b, tasks or more]: columns of 0 fill up to a width that matrix products like."""
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


def outer(weight: Tensor, delta: Tensor, inputs: Tensor, bits: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """W ⊙ delta ⊗ inputs for each row of delta [r, out] and inputs [r, in], with zeros up to so many bits: [r, bits].

    The numbers are written once, as narrow as the product with many masks wants them.
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
