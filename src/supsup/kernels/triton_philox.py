"""The random words of `philox` on a GPU, in one launch instead of over a hundred."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCKS = 256  # of four words each, in one program


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


def words(key: tuple[int, int], streams: Sequence[tuple[int, int]], count: int, device: torch.device | str) -> Tensor:
    """The first `count` words of each stream, given by its low and high word, as int64: [streams, count]."""
    numbers = torch.tensor([*key, *(word for stream in streams for word in stream)], dtype=torch.int64, device=device)
    out = torch.empty(len(streams), count, dtype=torch.int64, device=device)
    if out.numel():
        _words[(triton.cdiv(count, 4 * _BLOCKS) * len(streams),)](numbers, out, count, blocks=_BLOCKS)
    return out
