"""Putting a mask on, compiled for a CPU; `switching` says what it computes."""

from __future__ import annotations

import numba
import numpy as np
from torch import Tensor

from supsup.kernels.numba_cache import compiled
from supsup.kernels.numba_threads import thread_count


def fill(packed: Tensor, frozen: Tensor, masked: Tensor) -> None:
    """Each thread takes a share of the bytes, which may lie any stride apart."""
    _fill(packed.numpy(), frozen.numpy(), masked.numpy(), thread_count())


@compiled(parallel=True)
def _fill(packed, frozen, masked, threads):  # type: ignore[no-untyped-def]
    zero = np.float32(0)
    for thread in numba.prange(threads):
        for byte in range(thread * len(packed) // threads, (thread + 1) * len(packed) // threads):
            bits = np.int32(packed[byte])
            for bit in range(8):
                weight = frozen[8 * byte + bit]
                masked[8 * byte + bit] = weight if (bits >> bit) & 1 else zero
