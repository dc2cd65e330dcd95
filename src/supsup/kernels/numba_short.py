"""Search by a few bytes of the query on a CPU: small integers in vectors for all masks, floats for the best ones."""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from supsup.kernels.numba_loops import ANY_ORDER, compiled, shared_out, thread_count
from supsup.kernels.numba_vectors import LANES, add_chosen

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Indices = NDArray[np.int64]
Ranks = NDArray[np.int16]

_TASKS = 4096  # tasks whose sums fit into the first-level cache
_UNITS = 120  # the largest byte of a query as an integer: rounded, it fits into 8 bits
_AHEAD = 1  # bytes whose masks are prefetched while others are added
_ADDED = 256  # bytes after which sums of 16 bits could overflow, and are moved to 32 bits
_WORTH = 1 << 24  # bytes of masks from which on several threads are faster than one
_LEFT_OUT = 19  # low bits of a float that its rank ignores: the rank is exact to within 6 %
_RANKS = 1 << 12


def numba_outer(weight: Floats, delta: Floats, inputs: Floats, bits: int) -> Floats:
    """W ⊙ delta ⊗ inputs for each row of delta [r, out] and inputs [r, in], padded with zeros: [r, bits]."""
    rows = np.empty((len(delta), bits), np.float32)
    _outer(weight, delta, inputs, rows)
    return rows


def ranked(query: Floats) -> tuple[Ranks, float]:
    """A rank for every byte of a query [bits], which grows with Σ |q| and is equal within 6 %; and Σ q² of all."""
    ranks = np.empty(len(query) // 8, np.int16)
    return ranks, _ranked(query, ranks)


def take(ranks: Ranks, start: int, stop: int, count: int) -> Indices:
    """The `count` highest-ranking bytes of [start, stop), fewer if others are 0; their ranks are set to 0."""
    chosen = np.empty(count, np.int64)
    taken: Indices = chosen[: _take(ranks, start, stop, chosen)]
    return taken


class Rounded(NamedTuple):
    """The chosen bytes of a query as integers [bytes, 8] times a unit; Σ q² of them, and of the rounding errors."""

    whole: NDArray[np.int8]
    unit: float
    energy: float
    blurred: float


def rounded(query: Floats, chosen: Indices) -> Rounded:
    """The unit is chosen so that the largest byte fits into 8 bits."""
    whole = np.empty((len(chosen), 8), np.int8)
    return Rounded(whole, *_rounded(query, chosen, whole))


def numba_scan(values: NDArray[np.int8], chosen: Indices, block: Bytes) -> Floats:
    """The inner products of integers [bytes, 8] with the chosen bytes of masks [bytes, tasks]."""
    threads, out = thread_count() if len(chosen) * block.shape[1] >= _WORTH else 1, np.empty(block.shape[1], np.float32)
    bounds = np.linspace(0, len(out), threads + 1).astype(np.int64)
    _scan(threads)(values, chosen, _flat(block), block.strides[0], bounds, out)
    return out


def best(scores: Floats, most: int) -> Indices:
    """The indices of the `most` largest scores, the largest first; −inf is left out."""
    indices = np.empty(most, np.int64)
    found: Indices = indices[: _best(scores, indices)]
    return found


def numba_columns(query: Floats, chosen: Indices, block: Bytes, wanted: Indices) -> Floats:
    """The inner products over the chosen bytes of a query [bits] with some of the masks [bytes, tasks]: [wanted]."""
    total = np.zeros(len(wanted), np.float32)
    _add_columns(query, chosen, _flat(block), block.strides[0], wanted, total)
    return total


def _flat(block: Bytes) -> Bytes:
    """The same memory as one dimension, so that the compiler knows a row to be contiguous."""
    return as_strided(block, ((len(block) - 1) * block.strides[0] + block.shape[1],), (1,))


@compiled(nogil=True)
def _outer(weight, delta, inputs, rows):  # type: ignore[no-untyped-def]
    outputs, width = weight.shape
    for row in range(len(rows)):
        for o in range(outputs):
            for i in range(width):
                rows[row, o * width + i] = delta[row, o] * inputs[row, i] * weight[o, i]
        rows[row, outputs * width :] = 0


@compiled(nogil=True, fastmath=ANY_ORDER)
def _ranked(query, ranks):  # type: ignore[no-untyped-def]
    """The leading bits of positive floats have the order of the floats."""
    sizes, energy = np.empty(len(ranks), dtype=np.float32), np.float32(0)
    for i in range(len(ranks)):
        size = np.float32(0)
        for bit in range(8):
            size += abs(query[8 * i + bit])
        sizes[i] = size
    for i in range(len(query)):
        energy += query[i] * query[i]
    ranks[:] = sizes.view(np.int32) >> _LEFT_OUT
    return energy


@compiled(nogil=True)
def _take(ranks, start, stop, chosen):  # type: ignore[no-untyped-def]
    """By counts of each rank: all bytes above a threshold rank, and the first ones at it."""
    counts = np.zeros(_RANKS, dtype=np.int32)
    for i in range(start, stop):
        if ranks[i] > 0:
            counts[ranks[i]] += 1
    least, spare = _RANKS - 1, len(chosen)
    while least > 1 and counts[least] < spare:
        spare -= counts[least]
        least -= 1
    taken = 0
    for i in range(start, stop):
        if ranks[i] > least or (ranks[i] == least and spare > 0):
            spare -= ranks[i] == least
            chosen[taken] = i
            taken += 1
            ranks[i] = 0
    return taken


@compiled(nogil=True, fastmath=ANY_ORDER)
def _rounded(query, chosen, whole):  # type: ignore[no-untyped-def]
    largest, energy, blurred = np.float32(0), np.float32(0), np.float32(0)
    for byte in chosen:
        size = np.float32(0)
        for bit in range(8):
            size += abs(query[8 * byte + bit])
        largest = max(largest, size)
    unit = largest / np.float32(_UNITS) if 0 < largest < np.inf else np.float32(1)
    for i in range(len(chosen)):
        for bit in range(8):
            value = query[8 * chosen[i] + bit]
            near = np.rint(value / unit)
            whole[i, bit] = np.int8(near)
            energy += value * value
            blurred += (value - near * unit) ** 2
    return unit, energy, blurred


@compiled(nogil=True)
def _best(scores, indices):  # type: ignore[no-untyped-def]
    """Insertion: few of many scores are among the best so far."""
    count = 0
    for i in range(len(scores)):
        full = count == len(indices)
        if scores[i] > (scores[indices[count - 1]] if full else -np.inf):
            place = count - 1 if full else count
            while place > 0 and scores[i] > scores[indices[place - 1]]:
                indices[place] = indices[place - 1]
                place -= 1
            indices[place] = i
            count += not full
    return count


@shared_out()
def _scan(values, chosen, flat, stride, bounds, out):  # type: ignore[no-untyped-def]
    """Each thread takes a share of the tasks."""
    for part in numba.prange(len(bounds) - 1):
        for first in range(bounds[part], bounds[part + 1], _TASKS):
            _scan_some(values, chosen, flat, stride, first, min(_TASKS, bounds[part + 1] - first), out)


@numba.njit(nogil=True)
def _scan_some(values, chosen, flat, stride, first, tasks, out):  # type: ignore[no-untyped-def]
    """Sums have 16 bits, so that a vector holds many; surplus lanes of the last vector are ignored."""
    lanes = -(-tasks // LANES) * LANES
    short, total = np.empty(lanes, dtype=np.int16), np.zeros(lanes, dtype=np.int32)
    last, end = lanes - LANES, np.zeros(LANES, dtype=np.uint8)
    for start in range(0, len(chosen), _ADDED):
        short[:] = 0
        for i in range(start, min(start + _ADDED, len(chosen))):
            row, ahead = chosen[i] * stride + first, chosen[min(i + _AHEAD, len(chosen) - 1)] * stride + first
            for task in range(0, last, LANES):
                add_chosen(short, task, flat, row + task, values, i, ahead + task)  # type: ignore[call-arg]
            if row + lanes <= len(flat):
                add_chosen(short, last, flat, row + last, values, i, ahead + last)  # type: ignore[call-arg]
            else:
                for task in range(last, tasks):
                    end[task - last] = flat[row + task]
                add_chosen(short, last, end, 0, values, i, 0)  # type: ignore[call-arg]
        total += short
    out[first : first + tasks] = total[:tasks]


@compiled(nogil=True)
def _add_columns(query, chosen, flat, stride, columns, total):  # type: ignore[no-untyped-def]
    """Four weights at a time: their 16 possible sums are computed once and looked up for each column."""
    low, high = np.zeros(16, dtype=np.float32), np.zeros(16, dtype=np.float32)
    for byte in chosen:
        for bit in range(4):
            first, second = query[8 * byte + bit], query[8 * byte + 4 + bit]
            for rest in range(1 << bit):
                low[(1 << bit) + rest] = low[rest] + first
                high[(1 << bit) + rest] = high[rest] + second
        for i in range(len(columns)):
            packed = flat[byte * stride + columns[i]]
            total[i] += low[packed & 15] + high[packed >> 4]
