"""The search from few bytes of a query on a CPU: small whole numbers in vectors for all masks, floats for the best."""

from __future__ import annotations

import numba
import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from supsup.kernels.numba_bits import LANES, add_chosen
from supsup.kernels.numba_cache import compiled
from supsup.kernels.numba_threads import shared_out, thread_count

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Indices = NDArray[np.int64]

_TASKS = 4096  # whose sums stay in the first-level cache
_UNITS = 120  # what the largest byte of a query amounts to in whole numbers: rounded, it fits into 8 bits
_AHEAD = 1  # bytes whose masks are fetched while those of another are added
_ADDED = 256  # bytes after which sums of 16 bits could run over, and are moved
_LEFT_OUT = 19  # bits of a float that do not count for its rank: it is right to within 6 %
_RANKS = 1 << 12


def falling(query: Floats, start: int, stop: int) -> tuple[Indices, Floats]:
    """The bytes of a query [bits] from one to another, the largest Σ |q| first, to within 6 %; and Σ q² of each."""
    order, squares = np.empty(stop - start, np.int64), np.empty(stop - start, np.float32)
    _falling(query, start, order, squares)
    return order, squares


def scan(query: Floats, chosen: Indices, block: Bytes) -> Floats:
    """About, in some unit, the inner products over the chosen bytes of a query [bits] with masks [bytes, tasks]."""
    whole = np.empty((len(chosen), 8), np.int8)
    _rounded(query, chosen, whole)
    threads, out = thread_count(), np.empty(block.shape[1], np.float32)
    bounds = np.linspace(0, len(out), threads + 1).astype(np.int64)
    _scan(threads)(whole, chosen, _flat(block), block.strides[0], bounds, out)
    return out


def shortlist(scores: Floats, group: int, most: int) -> Indices:
    """The best of those that are the best of a group of neighbours; −inf is none of them."""
    winners = np.empty(-(-len(scores) // group), np.int64)
    _winners(scores, group, winners)
    best = winners[np.argsort(-scores[winners], kind="stable")[:most]]
    kept: Indices = best[scores[best] > -np.inf]
    return kept


def columns(query: Floats, chosen: Indices, block: Bytes, wanted: Indices) -> Floats:
    """The inner products over the chosen bytes of a query [bits] with some of the masks [bytes, tasks]: [wanted]."""
    threads = thread_count()
    partial = np.zeros((threads, len(wanted)), dtype=np.float32)
    _add_columns(threads)(query, chosen, _flat(block), block.strides[0], wanted, partial)
    total: Floats = partial.sum(0)
    return total


def _flat(block: Bytes) -> Bytes:
    """The same memory end to end: a loop over a row of it is known to be over neighbours."""
    return as_strided(block, ((len(block) - 1) * block.strides[0] + block.shape[1],), (1,))


@compiled(nogil=True, fastmath=True)
def _falling(query, start, order, squares):  # type: ignore[no-untyped-def]
    """Counting sort by the leading bits of each sum: those of positive floats have the order of the floats."""
    count = len(order)
    sizes, energies = np.empty(count, dtype=np.float32), np.empty(count, dtype=np.float32)
    for i in range(count):
        size, energy = np.float32(0), np.float32(0)
        for bit in range(8):
            value = query[8 * (start + i) + bit]
            size += abs(value)
            energy += value * value
        sizes[i], energies[i] = size, energy
    ranks = _RANKS - 1 - ((sizes.view(np.int32) >> _LEFT_OUT) & (_RANKS - 1))
    place = np.zeros(_RANKS + 1, dtype=np.int64)
    for i in range(count):
        place[ranks[i] + 1] += 1
    for rank in range(_RANKS):
        place[rank + 1] += place[rank]
    for i in range(count):
        order[place[ranks[i]]] = start + i
        squares[place[ranks[i]]] = energies[i]
        place[ranks[i]] += 1


@compiled(nogil=True)
def _rounded(query, chosen, whole):  # type: ignore[no-untyped-def]
    """The numbers of the chosen bytes in units of which the largest byte has so many."""
    largest = np.float32(0)
    for byte in chosen:
        size = np.float32(0)
        for bit in range(8):
            size += abs(query[8 * byte + bit])
        largest = max(largest, size)
    unit = _UNITS / largest if largest > 0 else 0.0
    for i in range(len(chosen)):
        for bit in range(8):
            whole[i, bit] = np.int8(np.rint(query[8 * chosen[i] + bit] * unit))


@compiled(nogil=True)
def _winners(scores, group, best):  # type: ignore[no-untyped-def]
    for number in range(len(best)):
        index = number * group
        for i in range(number * group + 1, min(len(scores), (number + 1) * group)):
            if scores[i] > scores[index]:
                index = i
        best[number] = index


@shared_out()
def _scan(values, chosen, flat, stride, bounds, out):  # type: ignore[no-untyped-def]
    """Each thread takes a share of the tasks."""
    for part in numba.prange(len(bounds) - 1):
        for first in range(bounds[part], bounds[part + 1], _TASKS):
            _scan_some(values, chosen, flat, stride, first, min(_TASKS, bounds[part + 1] - first), out)


@numba.njit(nogil=True)
def _scan_some(values, chosen, flat, stride, first, tasks, out):  # type: ignore[no-untyped-def]
    """Sums are of 16 bits, so that a vector holds many; the last vector's other lanes are nobody's."""
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


@shared_out(fastmath=True)
def _add_columns(query, chosen, flat, stride, columns, partial):  # type: ignore[no-untyped-def]
    """Four weights at a time: the 16 sums they can give are made once and looked up for each column."""
    threads, count = partial.shape
    for thread in numba.prange(threads):
        low, high = np.zeros(16, dtype=np.float32), np.zeros(16, dtype=np.float32)
        total = np.zeros(count, dtype=np.float32)
        for place in range(thread * len(chosen) // threads, (thread + 1) * len(chosen) // threads):
            byte = chosen[place]
            for bit in range(4):
                first, second = query[8 * byte + bit], query[8 * byte + 4 + bit]
                for rest in range(1 << bit):
                    low[(1 << bit) + rest] = low[rest] + first
                    high[(1 << bit) + rest] = high[rest] + second
            for i in range(count):
                packed = flat[byte * stride + columns[i]]
                total[i] += low[packed & 15] + high[packed >> 4]
        partial[thread] = total
