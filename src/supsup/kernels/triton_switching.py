"""The kernel that puts a mask on for a GPU; `switching` says what it computes."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_BYTES = 256  # of a mask in one program: 2,048 weights


@triton.jit(do_not_specialize=["stride"], do_not_specialize_on_alignment=["packed"])  # one kernel for every task
def _fill(packed, frozen, masked, size, stride, bytes_: tl.constexpr):
    """Every byte is read once, by the two threads that have its eight weights, and every weight once."""
    b = tl.program_id(0).to(tl.int64) * bytes_ + tl.arange(0, bytes_)
    inside = b < size
    byte = tl.load(packed + b * stride, mask=inside, other=0).to(tl.int32)
    bit = tl.arange(0, 8)
    offset = b[:, None] * 8 + bit[None, :]
    weight = tl.load(frozen + offset, mask=inside[:, None], other=0.0)
    chosen = ((byte[:, None] >> bit[None, :]) & 1) != 0
    tl.store(masked + offset, tl.where(chosen, weight, 0.0), mask=inside[:, None])


def fill(packed: Tensor, frozen: Tensor, masked: Tensor) -> None:
    """One launch for all weights; the bytes may lie any stride apart."""
    size = len(packed)
    _fill[(triton.cdiv(size, _BYTES),)](packed, frozen, masked, size, packed.stride(0), bytes_=_BYTES)
