"""Masks on a CPU, compiled: applying one, and the optimiser's step on scores.

`masks/frozen.py` and `training/fast/batched.py` define the results. A step is one pass over memory, where torch
operations need nine. It runs on one thread and releases Python's lock: a CPU trains as many tasks side by side as it
has cores.
"""

from __future__ import annotations

import math

import numba
import numpy as np
from torch import Tensor

from supsup.kernels.numba_loops import compiled, shared_out, thread_count
from supsup.kernels.rule import Rule, ScoreState

_NOTHING = np.zeros((1, 1), dtype=np.float32)


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


def numba_update(state: ScoreState, gradient: Tensor, count: int, rate: float, rule: Rule) -> None:
    """Step number `count` of the optimiser on scores [t, out, in] from the gradient of the masked weights."""
    weight, scores, masked, first, second = state
    optimiser, weight_decay, momentum, first_decay, second_decay, epsilon = rule
    tasks = scores.shape[0]
    flat = [t.view(tasks, -1).numpy() for t in (gradient, scores, masked)]
    moments = [_NOTHING if t is None else t.view(tasks, -1).numpy() for t in (first, second)]
    frozen, decay = weight.view(-1).numpy(), np.float32(weight_decay)
    squares = np.float32(second_decay), np.float32(1 - second_decay)
    if optimiser == "rmsprop":
        _rmsprop(*flat, moments[1], frozen, np.float32(rate), decay, *squares, np.float32(epsilon))
    elif optimiser == "adam":
        corrected = np.float32(rate / (1 - first_decay**count))
        root = np.float32(math.sqrt(1 - second_decay**count))
        mixed = np.float32(1 - first_decay)
        _adam(*flat, *moments, frozen, corrected, decay, mixed, *squares, root, np.float32(epsilon))
    else:
        _sgd(*flat, moments[0], frozen, np.float32(rate), decay, np.float32(momentum), first is not None)


@compiled(nogil=True, error_model="numpy")
def _rmsprop(gradient, scores, masked, second, weight, rate, decay, old, new, epsilon):  # type: ignore[no-untyped-def]
    for t in range(scores.shape[0]):
        for i in range(weight.size):
            g = gradient[t, i] * weight[i] + decay * scores[t, i]
            v = old * second[t, i] + new * g * g
            s = scores[t, i] - rate * g / (np.sqrt(v) + epsilon)
            second[t, i] = v
            scores[t, i] = s
            masked[t, i] = weight[i] if s >= 0 else np.float32(0)


@compiled(nogil=True, error_model="numpy")
def _adam(gradient, scores, masked, first, second, weight, rate, decay, mixed, old, new, root, epsilon):  # type: ignore[no-untyped-def]
    for t in range(scores.shape[0]):
        for i in range(weight.size):
            g = gradient[t, i] * weight[i] + decay * scores[t, i]
            u = first[t, i] + mixed * (g - first[t, i])
            v = old * second[t, i] + new * g * g
            s = scores[t, i] - rate * u / (np.sqrt(v) / root + epsilon)
            first[t, i] = u
            second[t, i] = v
            scores[t, i] = s
            masked[t, i] = weight[i] if s >= 0 else np.float32(0)


@compiled(nogil=True, error_model="numpy")
def _sgd(gradient, scores, masked, first, weight, rate, decay, momentum, keeps):  # type: ignore[no-untyped-def]
    for t in range(scores.shape[0]):
        for i in range(weight.size):
            g = gradient[t, i] * weight[i] + decay * scores[t, i]
            if keeps:
                g = momentum * first[t, i] + g
                first[t, i] = g
            s = scores[t, i] - rate * g
            scores[t, i] = s
            masked[t, i] = weight[i] if s >= 0 else np.float32(0)
