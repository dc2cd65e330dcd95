"""The update of scores on a CPU as one compiled pass over memory, in place of the nine that torch operations need.

It runs on one thread, without Python's lock: a CPU trains as many tasks side by side as it has cores.
"""

from __future__ import annotations

import math

import numba
import numpy as np
from torch import Tensor

from supsup.training.recipe import Recipe

_NOTHING = np.zeros(1, dtype=np.float32)


def apply(
    gradient: Tensor,
    weight: Tensor,
    scores: Tensor,
    masked: Tensor,
    first: Tensor | None,
    second: Tensor | None,
    recipe: Recipe,
    count: int,
) -> None:
    """The optimiser's step number `count` on scores [t, out, in] from the gradient of the masked weights."""
    flat = [t.view(len(scores), -1).numpy() for t in (gradient, scores, masked)]
    moments = [_NOTHING[None] if t is None else t.view(len(scores), -1).numpy() for t in (first, second)]
    rate, decay = np.float32(recipe.learning_rate), np.float32(recipe.weight_decay)
    frozen = weight.view(-1).numpy()
    if recipe.optimiser == "rmsprop":
        _rmsprop(*flat, moments[1], frozen, rate, decay)  # type: ignore[call-arg]
    elif recipe.optimiser == "adam":
        rate = np.float32(recipe.learning_rate / (1 - 0.9**count))
        _adam(*flat, *moments, frozen, rate, decay, np.float32(math.sqrt(1 - 0.999**count)))  # type: ignore[call-arg]
    else:
        _sgd(*flat, moments[0], frozen, rate, decay, np.float32(recipe.momentum), first is not None)  # type: ignore[call-arg]


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _rmsprop(gradient, scores, masked, second, weight, rate, decay):  # type: ignore[no-untyped-def]
    for t in range(scores.shape[0]):
        for i in range(weight.size):
            g = gradient[t, i] * weight[i] + decay * scores[t, i]
            v = np.float32(0.99) * second[t, i] + np.float32(0.01) * g * g
            s = scores[t, i] - rate * g / (np.sqrt(v) + np.float32(1e-8))
            second[t, i] = v
            scores[t, i] = s
            masked[t, i] = weight[i] if s >= 0 else np.float32(0)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _adam(gradient, scores, masked, first, second, weight, rate, decay, root):  # type: ignore[no-untyped-def]
    for t in range(scores.shape[0]):
        for i in range(weight.size):
            g = gradient[t, i] * weight[i] + decay * scores[t, i]
            u = first[t, i] + np.float32(0.1) * (g - first[t, i])
            v = np.float32(0.999) * second[t, i] + np.float32(0.001) * g * g
            s = scores[t, i] - rate * u / (np.sqrt(v) / root + np.float32(1e-8))
            first[t, i] = u
            second[t, i] = v
            scores[t, i] = s
            masked[t, i] = weight[i] if s >= 0 else np.float32(0)


@numba.njit(nogil=True, cache=True, error_model="numpy")
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
