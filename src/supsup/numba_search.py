"""Compiled search on a CPU: for every eight weights the 256 possible sums are made once, then looked up per task."""

from __future__ import annotations

import numba
import numpy as np
from torch import Tensor


def add_inner(query: Tensor, block: Tensor, out: Tensor) -> None:
    """out [r, tasks] += query [r, bits] · masks, given as bytes [bits / 8, tasks]."""
    bytes_, values = block.numpy(), query.contiguous().numpy()
    threads = numba.get_num_threads()
    for row in range(len(values)):
        partial = np.zeros((threads, bytes_.shape[1]), dtype=np.float32)
        _add_sums(values[row], bytes_, partial)
        out[row] += Tensor.new_tensor(out, partial.sum(0))


@numba.njit(parallel=True, cache=True)
def _add_sums(query, block, partial):  # type: ignore[no-untyped-def]
    """Each thread adds up its share of the bytes."""
    threads, tasks = partial.shape
    for thread in numba.prange(threads):
        sums = np.zeros(256, dtype=np.float32)
        mine = partial[thread]
        for byte in range(thread * len(block) // threads, (thread + 1) * len(block) // threads):
            for place in range(8):
                value = query[8 * byte + place]
                for low in range(1 << place):
                    sums[(1 << place) + low] = sums[low] + value
            row = block[byte]
            for task in range(tasks):
                mine[task] += sums[row[task]]
