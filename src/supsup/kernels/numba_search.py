"""Exact search and the query of one image on a CPU, compiled.

Search: for every eight weights the 256 possible sums are computed once, then looked up for each task. The query of one
image is a forward and a backward pass through linear layers and ReLU at a mean of masks. Torch would write W ⊙ mean to
memory first, and for one image starting a step takes torch longer than the step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np
import torch
from torch import Tensor

from supsup.kernels.numba_loops import ANY_ORDER, compiled, shared_out, thread_count
from supsup.kernels.numba_vectors import WIDTH, add_rows, add_two_rows

_TOGETHER = 3  # from this many rows on a vector of rows is faster, though the rest of it is empty


def add_inner(query: Tensor, block: Tensor, out: Tensor) -> None:
    """out [r, tasks] += query [r, bits] · masks, given as bytes [bits / 8, tasks].

    Many rows are processed together; each has the same sums in the same order as a row alone.
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


def numba_lone_query(
    x: Tensor, weights: Sequence[Tensor], means: Sequence[Tensor], objective: str, classes: int, lowest: int
) -> tuple[list[Tensor], list[Tensor]]:
    """For one image [in]: −∂Obj/∂output of each layer from `lowest` on, and the inputs of those layers."""
    layers = [(weight.contiguous().numpy(), mean.contiguous().numpy()) for weight, mean in zip(weights, means)]
    inputs = [x.contiguous().numpy()]
    for number, (weight, mean) in enumerate(layers):
        inputs.append(np.empty(len(weight), np.float32))
        _forward(inputs[-2], weight, mean, number + 1 < len(layers), inputs[-1])
    last = inputs.pop()
    deltas = [np.empty_like(last)]
    _gradient(last, classes, objective == "H", deltas[0])
    for number in reversed(range(lowest + 1, len(layers))):
        deltas.insert(0, np.empty_like(inputs[number]))
        _backward(deltas[1], *layers[number], inputs[number], deltas[0])
    return [torch.from_numpy(delta) for delta in deltas], [torch.from_numpy(each) for each in inputs[lowest:]]


@compiled(nogil=True, fastmath=ANY_ORDER)
def _forward(x, weight, mean, relu, y):  # type: ignore[no-untyped-def]
    """y = (W ⊙ mean) x, negative numbers to 0 if `relu`."""
    for o in range(len(y)):
        total = np.float32(0)
        for i in range(len(x)):
            total += weight[o, i] * mean[o, i] * x[i]
        y[o] = np.float32(0) if relu and total < 0 else total


@compiled(nogil=True)
def _gradient(outputs, classes, entropy, delta):  # type: ignore[no-untyped-def]
    """Minus the derivative of H, or of G, by the outputs."""
    largest, total, expected = outputs.max(), np.float32(0), np.float32(0)
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


@compiled(nogil=True)
def _backward(delta, weight, mean, hidden, out):  # type: ignore[no-untyped-def]
    """(W ⊙ mean)ᵀ delta, 0 where the hidden activation is 0."""
    out[:] = 0
    for o in range(len(delta)):
        if delta[o] != 0:
            for i in range(len(out)):
                out[i] += delta[o] * (weight[o, i] * mean[o, i])
    for i in range(len(out)):
        if not hidden[i] > 0:
            out[i] = 0
