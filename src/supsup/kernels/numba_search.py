"""Compiled search on a CPU: for every eight weights the 256 possible sums are made once, then looked up per task."""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from supsup.kernels.numba_rows import WIDTH, add_rows, add_two_rows
from supsup.kernels.numba_threads import shared_out, thread_count

_TOGETHER = 3  # rows from which on they are faster side by side, though the rest of a vector is empty


def add_inner(query: Tensor, block: Tensor, out: Tensor) -> None:
    """out [r, tasks] += query [r, bits] · masks, given as bytes [bits / 8, tasks].

    Many rows go through together, with the same sums in the same order as one alone.
    """
    bytes_, values = block.numpy(), query.contiguous().numpy()
    threads = thread_count()
    if len(values) >= _TOGETHER:
        add_wide = _add_sums_side_by_side(threads)
        for start in range(0, len(values), WIDTH):
            rows = values[start : start + WIDTH]
            side_by_side = np.zeros((threads, bytes_.shape[1], WIDTH), dtype=np.float32)
            add_wide(rows, bytes_, side_by_side)
            out[start : start + WIDTH] += torch.from_numpy(side_by_side.sum(0)[:, : len(rows)].T)
        return
    add_sums = _add_sums(threads)
    for row in range(len(values)):
        partial = np.zeros((threads, bytes_.shape[1]), dtype=np.float32)
        add_sums(values[row], bytes_, partial)
        out[row] += torch.from_numpy(partial.sum(0))


@shared_out()
def _add_sums(query, block, partial):  # type: ignore[no-untyped-def]
    """Each thread adds up its share of the bytes."""
    threads, tasks = partial.shape
    for thread in numba.prange(threads):
        sums = np.zeros(256, dtype=np.float32)
        total = partial[thread]
        for byte in range(thread * len(block) // threads, (thread + 1) * len(block) // threads):
            for bit in range(8):
                value = query[8 * byte + bit]
                for low in range(1 << bit):
                    sums[(1 << bit) + low] = sums[low] + value
            row = block[byte]
            for task in range(tasks):
                total[task] += sums[row[task]]


@shared_out()
def _add_sums_side_by_side(query, block, partial):  # type: ignore[no-untyped-def]
    """`_add_sums` for up to WIDTH queries, two bytes for each pass; partial is [threads, tasks, WIDTH]."""
    threads, tasks, _ = partial.shape
    for thread in numba.prange(threads):
        first, second = np.zeros((256, WIDTH), dtype=np.float32), np.zeros((256, WIDTH), dtype=np.float32)
        values = np.zeros((8, WIDTH), dtype=np.float32)
        total = partial[thread]
        stop = (thread + 1) * len(block) // threads
        for byte in range(thread * len(block) // threads, stop, 2):
            _fill_table(query, byte, values, first)
            if byte + 1 < stop:
                _fill_table(query, byte + 1, values, second)
            here, beyond = block[byte], block[min(byte + 1, stop - 1)]
            for task in range(tasks):
                other = beyond[task] if byte + 1 < stop else 0  # the first sum of a table is always 0
                add_two_rows(total, task, first, here[task], second, other)  # type: ignore[call-arg]


@numba.njit(nogil=True)
def _fill_table(query, byte, values, sums):  # type: ignore[no-untyped-def]
    """The 256 sums that eight weights can give, of each query: [256, WIDTH]."""
    for row in range(len(query)):
        for bit in range(8):
            values[bit, row] = query[row, 8 * byte + bit]
    for bit in range(8):
        for low in range(1 << bit):
            add_rows(sums, (1 << bit) + low, sums, low, values, bit)  # type: ignore[call-arg]
