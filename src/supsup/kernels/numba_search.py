"""Compiled search on a CPU: for every eight weights the 256 possible sums are made once, then looked up per task."""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from supsup.kernels.numba_cache import compiled
from supsup.kernels.numba_threads import thread_count


def add_inner(query: Tensor, block: Tensor, out: Tensor) -> None:
    """out [r, tasks] += query [r, bits] · masks, given as bytes [bits / 8, tasks]."""
    bytes_, values = block.numpy(), query.contiguous().numpy()
    threads = thread_count()
    for row in range(len(values)):
        partial = np.zeros((threads, bytes_.shape[1]), dtype=np.float32)
        _add_sums(values[row], bytes_, partial)
        out[row] += torch.from_numpy(partial.sum(0))


def add_inner_at(query: Tensor, coordinates: Tensor, block: Tensor, out: Tensor) -> None:
    """out [tasks] += the same over some coordinates of one query [bits] alone."""
    bytes_ = block.numpy()
    partial = np.zeros((thread_count(), bytes_.shape[1]), dtype=np.float32)
    _add_at(query.numpy(), coordinates.numpy(), bytes_, partial)
    out += torch.from_numpy(partial.sum(0))


def inner_columns(query: Tensor, block: Tensor, columns: Tensor) -> Tensor:
    """The inner products of one query [bits] with some of the masks: [columns]."""
    partial = np.zeros((thread_count(), len(columns)), dtype=np.float32)
    _columns(query.numpy(), block.numpy(), columns.numpy(), partial)
    return torch.from_numpy(partial.sum(0))


@compiled(parallel=True, fastmath=True)
def _add_at(query, coordinates, block, partial):  # type: ignore[no-untyped-def]
    threads, tasks = partial.shape
    count = len(coordinates)
    for thread in numba.prange(threads):
        total = partial[thread]
        for i in range(thread * count // threads, (thread + 1) * count // threads):
            coordinate = coordinates[i]
            row = block[coordinate >> 3]
            shift = np.uint8(coordinate & 7)
            value = query[coordinate]
            for task in range(tasks):
                total[task] += value * np.float32((row[task] >> shift) & np.uint8(1))


@compiled(parallel=True, fastmath=True)
def _columns(query, block, columns, partial):  # type: ignore[no-untyped-def]
    """Four weights at a time: the 16 sums they can give are made once and looked up for each column."""
    threads, count = partial.shape
    for thread in numba.prange(threads):
        low, high = np.zeros(16, dtype=np.float32), np.zeros(16, dtype=np.float32)
        total = np.zeros(count, dtype=np.float32)
        for byte in range(thread * len(block) // threads, (thread + 1) * len(block) // threads):
            for bit in range(4):
                first, second = query[8 * byte + bit], query[8 * byte + 4 + bit]
                for rest in range(1 << bit):
                    low[(1 << bit) + rest] = low[rest] + first
                    high[(1 << bit) + rest] = high[rest] + second
            for i in range(count):
                packed = block[byte, columns[i]]
                total[i] += low[packed & 15] + high[packed >> 4]
        partial[thread] = total


@compiled(parallel=True)
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
