"""Applying a mask on a CPU, compiled; `masks/frozen.py` defines the result."""

from __future__ import annotations

import numba
import numpy as np
from torch import Tensor

from supsup.kernels.numba_loops import shared_out, thread_count


def numba_fill(packed: Tensor, frozen: Tensor, masked: Tensor) -> None:
    """masked = frozen where the bit is 1, else 0; each thread takes a share of the bytes, which may have any stride."""
    threads = thread_count()
    _fill(threads)(packed.numpy(), frozen.numpy(), masked.numpy(), threads)


@shared_out()
def _fill(packed, frozen, masked, threads):  # type: ignore[no-untyped-def]
    zero = np.float32(0)
    for thread in numba.prange(threads):
        for byte in range(thread * len(packed) // threads, (thread + 1) * len(packed) // threads):
            bits = np.int32(packed[byte])
            for bit in range(8):
                weight = frozen[8 * byte + bit]
                masked[8 * byte + bit] = weight if (bits >> bit) & 1 else zero
