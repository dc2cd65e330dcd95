"""Search and the query of one image on a CPU, compiled; `inference/search/` and `inference/gradient.py` define them.

Exact search: for every eight weights the 256 possible sums are computed once, then looked up for each task. Search by a
few bytes of the query: small integers in vectors for all masks, floats for the best ones. The query of one image is a
forward and a backward pass through linear layers and ReLU at a mean of masks. Torch would write W ⊙ mean to memory
first, and for one image starting a step takes torch longer than the step.

Numba's compiler vectorises long loops, but unrolls short ones first and then leaves them scalar. So the vector
instructions for rows of a few floats, and for bits of 64 masks at a time, are generated here as LLVM code.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from llvmlite import ir
from numba.extending import intrinsic
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from torch import Tensor

from supsup.kernels.numba_loops import ANY_ORDER, compiled, shared_out, thread_count

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Indices = NDArray[np.int64]
Ranks = NDArray[np.int16]

_WIDTH = 16  # floats in a row: 64 bytes, and a table of 256 rows fits into the first-level cache
_LANES = 64  # masks at a time: one byte of each
_TOGETHER = 3  # from this many rows on a vector of rows is faster, though the rest of it is empty
_TASKS = 4096  # tasks whose sums fit into the first-level cache
_UNITS = 120  # the largest byte of a query as an integer: rounded, it fits into 8 bits
_AHEAD = 1  # bytes whose masks are prefetched while others are added
_ADDED = 256  # bytes after which sums of 16 bits could overflow, and are moved to 32 bits
_WORTH = 1 << 24  # bytes of masks from which on several threads are faster than one
_LEFT_OUT = 19  # low bits of a float that its rank ignores: the rank is exact to within 6 %
_RANKS = 1 << 12


def add_inner(query: Tensor, block: Tensor, out: Tensor) -> None:
    """out [r, tasks] += query [r, bits] · masks, given as bytes [bits / 8, tasks].

    Many rows are processed together; each has the same sums in the same order as a row alone.
    """
    bytes_, values = block.numpy(), query.contiguous().numpy()
    threads = thread_count()
    if len(values) >= _TOGETHER:
        add_wide = _add_sums_side_by_side(threads)
        for start in range(0, len(values), _WIDTH):
            rows = values[start : start + _WIDTH]
            side_by_side = np.zeros((threads, bytes_.shape[1], _WIDTH), dtype=np.float32)
            add_wide(rows, bytes_, side_by_side)
            out[start : start + _WIDTH] += torch.from_numpy(side_by_side.sum(0)[:, : len(rows)].T)
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
    """`_add_sums` for up to _WIDTH queries, two bytes for each pass; partial is [threads, tasks, _WIDTH]."""
    threads, tasks, _ = partial.shape
    for thread in numba.prange(threads):
        first, second = np.zeros((256, _WIDTH), dtype=np.float32), np.zeros((256, _WIDTH), dtype=np.float32)
        values = np.zeros((8, _WIDTH), dtype=np.float32)
        total = partial[thread]
        stop = (thread + 1) * len(block) // threads
        for byte in range(thread * len(block) // threads, stop, 2):
            _fill_table(query, byte, values, first)
            if byte + 1 < stop:
                _fill_table(query, byte + 1, values, second)
            here, beyond = block[byte], block[min(byte + 1, stop - 1)]
            for task in range(tasks):
                other = beyond[task] if byte + 1 < stop else 0  # the first sum of a table is always 0
                _add_two_rows(total, task, first, here[task], second, other)  # type: ignore[call-arg]


@numba.njit(nogil=True)
def _fill_table(query, byte, values, sums):  # type: ignore[no-untyped-def]
    """The 256 sums that eight weights can give, of each query: [256, _WIDTH]."""
    for row in range(len(query)):
        for bit in range(8):
            values[bit, row] = query[row, 8 * byte + bit]
    for bit in range(8):
        for low in range(1 << bit):
            _add_rows(sums, (1 << bit) + low, sums, low, values, bit)  # type: ignore[call-arg]


def numba_lone_query(
    x: Tensor, weights: Sequence[Tensor], means: Sequence[Tensor], objective: str, classes: int, lowest: int
) -> tuple[list[Tensor], list[Tensor]]:
    """For one image [in]: −∂Obj/∂output of each layer from `lowest` on, and the inputs of those layers."""
    layers = [(weight.contiguous().numpy(), mean.contiguous().numpy()) for weight, mean in zip(weights, means)]
    inputs = [x.contiguous().numpy()]
    for number, layer in enumerate(layers):
        inputs.append(_forward(inputs[-1], *layer, number + 1 < len(layers)))
    deltas = [_gradient(inputs.pop(), classes, objective == "H")]
    for number in reversed(range(lowest + 1, len(layers))):
        deltas.insert(0, _backward(deltas[0], *layers[number], inputs[number]))
    return [torch.from_numpy(delta) for delta in deltas], [torch.from_numpy(each) for each in inputs[lowest:]]


@compiled(nogil=True, fastmath=ANY_ORDER)
def _forward(x, weight, mean, relu):  # type: ignore[no-untyped-def]
    """y = (W ⊙ mean) x, negative numbers to 0 if `relu`."""
    y = np.empty(len(weight), np.float32)
    for o in range(len(y)):
        total = np.float32(0)
        for i in range(len(x)):
            total += weight[o, i] * mean[o, i] * x[i]
        y[o] = np.float32(0) if relu and total < 0 else total
    return y


@compiled(nogil=True)
def _gradient(outputs, classes, entropy):  # type: ignore[no-untyped-def]
    """Minus the derivative of H, or of G, by the outputs."""
    largest, total, expected, delta = outputs.max(), np.float32(0), np.float32(0), np.empty_like(outputs)
    for i in range(len(outputs)):
        delta[i] = np.exp(outputs[i] - largest)
        total += delta[i]
    logarithm = np.log(total)
    for i in range(len(outputs)):
        delta[i] /= total
        expected += delta[i] * (outputs[i] - largest - logarithm)
    for i in range(len(outputs)):
        if entropy:
            delta[i] *= outputs[i] - largest - logarithm - expected
        else:
            delta[i] = np.float32(0) if i < classes else -delta[i]
    return delta


@compiled(nogil=True)
def _backward(delta, weight, mean, hidden):  # type: ignore[no-untyped-def]
    """(W ⊙ mean)ᵀ delta, 0 where the hidden activation is 0."""
    out = np.zeros_like(hidden)
    for o in range(len(delta)):
        if delta[o] != 0:
            for i in range(len(out)):
                out[i] += delta[o] * (weight[o, i] * mean[o, i])
    for i in range(len(out)):
        if not hidden[i] > 0:
            out[i] = 0
    return out


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
    lanes = -(-tasks // _LANES) * _LANES
    short, total = np.empty(lanes, dtype=np.int16), np.zeros(lanes, dtype=np.int32)
    last, end = lanes - _LANES, np.zeros(_LANES, dtype=np.uint8)
    for start in range(0, len(chosen), _ADDED):
        short[:] = 0
        for i in range(start, min(start + _ADDED, len(chosen))):
            row, ahead = chosen[i] * stride + first, chosen[min(i + _AHEAD, len(chosen) - 1)] * stride + first
            for task in range(0, last, _LANES):
                _add_chosen(short, task, flat, row + task, values, i, ahead + task)  # type: ignore[call-arg]
            if row + lanes <= len(flat):
                _add_chosen(short, last, flat, row + last, values, i, ahead + last)  # type: ignore[call-arg]
            else:
                for task in range(last, tasks):
                    end[task - last] = flat[row + task]
                _add_chosen(short, last, end, 0, values, i, 0)  # type: ignore[call-arg]
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


def _pointer(context: Any, builder: Any, signature: Any, arguments: Any, position: int, scale: int) -> Any:
    """Pointer to the row of `scale` values whose array and index are the arguments from `position` on."""
    array = context.make_array(signature.args[position])(context, builder, arguments[position])
    start = builder.mul(arguments[position + 1], context.get_constant(numba.types.intp, scale))
    return builder.gep(array.data, [start])


def _signature(*arrays: Any) -> list[Any]:
    """The types of arrays, each followed by an index."""
    return [each for array in arrays for each in (array, numba.types.intp)]


def _sum_of_rows(*sources: int) -> Any:
    """Code that writes the sum of rows, given by the positions of their arrays among the arguments, to the first."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        row = ir.VectorType(ir.FloatType(), _WIDTH).as_pointer()
        rows = (_pointer(context, builder, signature, arguments, position, _WIDTH) for position in (0, 2, 4))
        pointers = dict(zip((0, 2, 4), [builder.bitcast(pointer, row) for pointer in rows]))
        values = [builder.load(pointers[position], align=4) for position in sources]
        builder.store(reduce(builder.fadd, values), pointers[0], align=4)
        return context.get_dummy_value()

    return generate


@intrinsic
def _add_rows(typing_context, target, to, left, of_left, right, of_right):  # type: ignore[no-untyped-def]
    """target[to] = left[of_left] + right[of_right], in contiguous arrays [n, _WIDTH] of float32, unchecked."""
    return numba.types.void(*_signature(target, left, right)), _sum_of_rows(2, 4)


@intrinsic
def _add_two_rows(typing_context, target, to, first, of_first, second, of_second):  # type: ignore[no-untyped-def]
    """target[to] += first[of_first], then += second[of_second]; as `_add_rows`."""
    return numba.types.void(*_signature(target, first, second)), _sum_of_rows(0, 2, 4)


@intrinsic
def _add_chosen(typing_context, target, to, packed, at, values, of, ahead):  # type: ignore[no-untyped-def]
    """target[to + t] += Σᵢ values[of, i] where bit i of packed[at + t] is set, for t < _LANES; bounds are not checked.

    target [n] of int16, packed [n] of uint8 and values [n, 8] of int8 are contiguous. Eight values together must fit
    into int8. packed[ahead] is prefetched.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, packed, values = (
            _pointer(context, builder, signature, arguments, position, scale)
            for position, scale in ((0, 1), (2, 1), (4, 8))
        )
        array = context.make_array(signature.args[2])(context, builder, arguments[2])
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [array.data.type, number, number, number])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [array.data.type], kind)
        builder.call(fetch, [builder.gep(array.data, [arguments[6]]), *(ir.Constant(number, n) for n in (0, 3, 1))])
        bytes_, shorts = ir.VectorType(ir.IntType(8), _LANES), ir.VectorType(ir.IntType(16), _LANES)
        bits = builder.load(builder.bitcast(packed, bytes_.as_pointer()), align=1)
        undefined, zero = ir.Constant(bytes_, ir.Undefined), ir.Constant(bytes_, [0] * _LANES)
        lane_0, total = ir.Constant(ir.VectorType(number, _LANES), [0] * _LANES), zero
        for bit in range(8):
            value = builder.load(builder.gep(values, [context.get_constant(numba.types.intp, bit)]))
            lane = builder.insert_element(undefined, value, ir.Constant(number, 0))
            everywhere = builder.shuffle_vector(lane, undefined, lane_0)
            is_set = builder.icmp_unsigned("!=", builder.and_(bits, ir.Constant(bytes_, [1 << bit] * _LANES)), zero)
            total = builder.add(total, builder.select(is_set, everywhere, zero))
        out = builder.bitcast(target, shorts.as_pointer())
        builder.store(builder.add(builder.load(out, align=2), builder.sext(total, shorts)), out, align=2)
        return context.get_dummy_value()

    return numba.types.void(*_signature(target, packed, values), numba.types.intp), generate
