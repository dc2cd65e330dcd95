"""Applying a mask, and random words, on a GPU; `masks/frozen.py` and `masks/philox.py` define the results."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

_BYTES = 256  # bytes of a mask in one program: 2,048 weights
_BLOCKS = 256  # blocks of four random words in one program


@triton.jit(do_not_specialize=["stride"], do_not_specialize_on_alignment=["packed"])  # one kernel for every task
def _fill(packed, frozen, masked, size, stride, bytes_: tl.constexpr):
    """Every byte is read once, by the two threads that handle its eight weights, and every weight once."""
    b = tl.program_id(0).to(tl.int64) * bytes_ + tl.arange(0, bytes_)
    inside = b < size
    byte = tl.load(packed + b * stride, mask=inside, other=0).to(tl.int32)
    bit = tl.arange(0, 8)
    offset = b[:, None] * 8 + bit[None, :]
    weight = tl.load(frozen + offset, mask=inside[:, None], other=0.0)
    chosen = ((byte[:, None] >> bit[None, :]) & 1) != 0
    tl.store(masked + offset, tl.where(chosen, weight, 0.0), mask=inside[:, None])


def triton_fill(packed: Tensor, frozen: Tensor, masked: Tensor) -> None:
    """One launch for all weights; the bytes may lie any stride apart."""
    size = len(packed)
    _fill[(triton.cdiv(size, _BYTES),)](packed, frozen, masked, size, packed.stride(0), bytes_=_BYTES)


@triton.jit(do_not_specialize=["count"])
def _words(numbers, out, count, blocks: tl.constexpr):
    """numbers: the key's two words, then the low and the high word of each stream."""
    programs = tl.cdiv(count, 4 * blocks)
    row = (tl.program_id(0) // programs).to(tl.int64)
    block = (tl.program_id(0) % programs).to(tl.int64) * blocks + tl.arange(0, blocks)
    word = 0xFFFFFFFF
    k0 = tl.load(numbers)
    k1 = tl.load(numbers + 1)
    c0 = block & word
    c1 = block >> 32
    c2 = tl.zeros_like(block) + tl.load(numbers + 2 + 2 * row)
    c3 = tl.zeros_like(block) + tl.load(numbers + 3 + 2 * row)
    for _ in tl.static_range(10):
        first = c0 * 0xD2511F53  # wraps around; the 64 bits are those of the unsigned product
        second = c2 * 0xCD9E8D57
        c0 = ((second >> 32) & word) ^ c1 ^ k0
        c1 = second & word
        c2 = ((first >> 32) & word) ^ c3 ^ k1
        c3 = first & word
        k0 = (k0 + 0x9E3779B9) & word
        k1 = (k1 + 0xBB67AE85) & word
    index = 4 * block
    here = out + row * count + index
    tl.store(here, c0, mask=index < count)
    tl.store(here + 1, c1, mask=index + 1 < count)
    tl.store(here + 2, c2, mask=index + 2 < count)
    tl.store(here + 3, c3, mask=index + 3 < count)


def triton_words(
    key: tuple[int, int], streams: Sequence[tuple[int, int]], count: int, device: torch.device | str
) -> Tensor:
    """The first `count` words of each stream, given by its low and high word, as int64: [streams, count]."""
    numbers = torch.tensor([*key, *(word for stream in streams for word in stream)], dtype=torch.int64, device=device)
    out = torch.empty(len(streams), count, dtype=torch.int64, device=device)
    if out.numel():
        _words[(triton.cdiv(count, 4 * _BLOCKS) * len(streams),)](numbers, out, count, blocks=_BLOCKS)
    return out
