"""Forward and backward of one image through linear layers and ReLU at a mean of masks: a launch for each step.

For one image launches cost most, and torch would need three times as many.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

_OUT, _IN = 4, 256  # the tile of a forward step
_BACK_OUT, _BACK_IN = 128, 16  # that of a backward step


@triton.jit
def _forward(x, weight, mean, y, outputs, width, relu: tl.constexpr, block_out: tl.constexpr, block_in: tl.constexpr):
    """y = (W ⊙ mean) x, negative numbers to 0 if `relu`."""
    o = tl.program_id(0) * block_out + tl.arange(0, block_out)
    total = tl.zeros((block_out, block_in), dtype=tl.float32)
    for start in range(0, width, block_in):
        i = start + tl.arange(0, block_in)
        inside = (o < outputs)[:, None] & (i < width)[None, :]
        offset = o[:, None] * width + i[None, :]
        effective = tl.load(weight + offset, mask=inside, other=0.0) * tl.load(mean + offset, mask=inside, other=0.0)
        total += effective * tl.load(x + i, mask=i < width, other=0.0)[None, :]
    result = tl.sum(total, 1)
    if relu:
        result = tl.maximum(result, 0.0)
    tl.store(y + o, result, mask=o < outputs)


@triton.jit
def _gradient(outputs, delta, size, classes, entropy: tl.constexpr, block: tl.constexpr):
    """Minus the derivative of H, or of G, by the outputs."""
    i = tl.arange(0, block)
    inside = i < size
    y = tl.load(outputs + i, mask=inside, other=float("-inf"))
    y = y - tl.max(y, 0)
    e = tl.exp(y)
    total = tl.sum(e, 0)
    p = e / total
    if entropy:
        log_p = tl.where(inside, y - tl.log(total), 0.0)
        result = p * (log_p - tl.sum(p * log_p, 0))
    else:
        result = tl.where(i < classes, 0.0, -p)
    tl.store(delta + i, result, mask=inside)


@triton.jit
def _backward(delta, weight, mean, hidden, out, outputs, width, block_out: tl.constexpr, block_in: tl.constexpr):
    """(W ⊙ mean)ᵀ delta, 0 where the hidden number is."""
    i = tl.program_id(0) * block_in + tl.arange(0, block_in)
    total = tl.zeros((block_out, block_in), dtype=tl.float32)
    for start in range(0, outputs, block_out):
        o = start + tl.arange(0, block_out)
        inside = (o < outputs)[:, None] & (i < width)[None, :]
        offset = o[:, None] * width + i[None, :]
        effective = tl.load(weight + offset, mask=inside, other=0.0) * tl.load(mean + offset, mask=inside, other=0.0)
        total += effective * tl.load(delta + o, mask=o < outputs, other=0.0)[:, None]
    alive = tl.load(hidden + i, mask=i < width, other=0.0) > 0
    tl.store(out + i, tl.where(alive, tl.sum(total, 0), 0.0), mask=i < width)


def lone_query(
    x: Tensor, weights: Sequence[Tensor], means: Sequence[Tensor], objective: str, classes: int, lowest: int
) -> tuple[list[Tensor], list[Tensor]]:
    """For one image [in]: minus the derivative by each layer's output, from the lowest asked for on; all inputs."""
    inputs = [x.contiguous()]
    for number, (weight, mean) in enumerate(zip(weights, means)):
        outputs, width = weight.shape
        inputs.append(torch.empty(outputs, device=x.device))
        _forward[(triton.cdiv(outputs, _OUT),)](
            inputs[-2],
            weight.contiguous(),
            mean.contiguous(),
            inputs[-1],
            outputs,
            width,
            relu=number + 1 < len(weights),
            block_out=_OUT,
            block_in=_IN,
        )
    last = inputs.pop()
    deltas = [torch.empty_like(last)]
    _gradient[(1,)](
        last, deltas[0], len(last), classes, entropy=objective == "H", block=triton.next_power_of_2(len(last))
    )
    for number in reversed(range(lowest + 1, len(weights))):
        outputs, width = weights[number].shape
        deltas.insert(0, torch.empty(width, device=x.device))
        _backward[(triton.cdiv(width, _BACK_IN),)](
            deltas[1],
            weights[number].contiguous(),
            means[number].contiguous(),
            inputs[number],
            deltas[0],
            outputs,
            width,
            block_out=_BACK_OUT,
            block_in=_BACK_IN,
        )
    return deltas, inputs[lowest:]
