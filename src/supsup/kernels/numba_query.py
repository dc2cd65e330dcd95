"""Forward and backward of one image through linear layers and ReLU at a mean of masks, a compiled loop for each step.

Torch would write W ⊙ mean to memory first, and for one image takes longer to begin a step than to do it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from supsup.kernels.numba_cache import ANY_ORDER, compiled


def lone_query(
    x: Tensor, weights: Sequence[Tensor], means: Sequence[Tensor], objective: str, classes: int, lowest: int
) -> tuple[list[Tensor], list[Tensor]]:
    """For one image [in]: minus the derivative by each layer's output, from the lowest asked for on; all inputs."""
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
    """(W ⊙ mean)ᵀ delta, 0 where the hidden number is."""
    out[:] = 0
    for o in range(len(delta)):
        if delta[o] != 0:
            for i in range(len(out)):
                out[i] += delta[o] * (weight[o, i] * mean[o, i])
    for i in range(len(out)):
        if not hidden[i] > 0:
            out[i] = 0
