"""Triton kernels for training many masks of a fully connected network; `training/fast/batched.py` defines them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from supsup.kernels.rule import Rule, ScoreState

_PROGRAMS = 256  # programs that a GPU should have before one of them takes several images
_OPTIMISERS = {"rmsprop": 0, "adam": 1, "sgd": 2}
_PRODUCT = {"block": 32, "block_inner": 64, "num_stages": 4}  # the tile of a product
_UPDATE = {"block_out": 64, "block_in": 32}  # the tile of an update: with its batch and warps the best of 28 on an H200
_TINY = 1e-300  # in place of 0, which has no logarithm


def exact(x: Tensor) -> str:
    """How Triton multiplies: float32 exactly, lower precision as it is."""
    return "ieee" if x.dtype == torch.float32 else "tf32"


@triton.jit
def _gather(
    images,
    gain,
    offset,
    maps,
    rows,
    labels,
    step,
    x,
    y,
    total,
    batch,
    features: tl.constexpr,
    stride: tl.constexpr,
    stored: tl.constexpr,
    block: tl.constexpr,
):
    """One program writes `stored` images of one task."""
    task = tl.program_id(1).to(tl.int64)
    start = tl.load(step).to(tl.int64) * batch
    feature = tl.arange(0, block)
    inside = feature < features
    source = tl.load(maps + task * features + feature, mask=inside, other=-1)
    visible = source >= 0  # else −1, 0 after normalisation, or −2, 0 before it
    g = tl.load(gain + feature, mask=inside, other=0.0)
    o = tl.load(offset + feature, mask=inside, other=0.0)
    for i in range(stored):
        b = tl.program_id(0) * stored + i
        if b < batch:
            row = tl.load(rows + task * total + start + b).to(tl.int64)
            pixel = tl.load(images + row * features + source, mask=visible, other=0).to(tl.float32)
            value = tl.where(source == -1, 0.0, pixel * g + o)
            tl.store(x + (task * batch + b) * stride + feature, value.to(x.dtype.element_ty), mask=inside)
            tl.store(y + task * batch + b, tl.load(labels + task * total + start + b))


def triton_gather(feed: Sequence[Tensor], x: Tensor, y: Tensor) -> None:
    """`feed`: images, gain, offset, maps, rows, labels and step, as the kernel takes them."""
    tasks, batch, stride = x.shape
    features, total = feed[0].shape[1], feed[4].shape[1]
    stored, block = max(1, min(16, tasks * batch // _PROGRAMS)), triton.next_power_of_2(features)
    _gather[(triton.cdiv(batch, stored), tasks)](
        *feed, x, y, total, batch, features=features, stride=stride, stored=stored, block=block
    )


@triton.jit
def _loss_gradient(outputs, y, batch, size: tl.constexpr, stride: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    feature = tl.arange(0, block)
    inside = feature < size
    z = tl.load(outputs + row * stride + feature, mask=inside, other=-float("inf")).to(tl.float32)
    p = tl.exp(z - tl.max(z, 0))
    p = p / tl.sum(p, 0)
    p = tl.where(feature == tl.load(y + row), p - 1.0, p) / batch
    tl.store(outputs + row * stride + feature, p.to(outputs.dtype.element_ty), mask=feature < stride)


def triton_loss_gradient(outputs: Tensor, y: Tensor, size: int) -> None:
    tasks, batch, stride = outputs.shape
    _loss_gradient[(tasks * batch,)](outputs, y, batch, size=size, stride=stride, block=triton.next_power_of_2(stride))


@triton.jit
def _product(
    left,
    right,
    out,
    gate,
    rows: tl.constexpr,
    inner: tl.constexpr,
    columns: tl.constexpr,
    right_inner: tl.constexpr,
    right_column: tl.constexpr,
    relu: tl.constexpr,
    gated: tl.constexpr,
    precision: tl.constexpr,
    block: tl.constexpr,
    block_inner: tl.constexpr,
):
    """out = left · right for each task, then ReLU, or 0 where the gate is not positive."""
    task = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * block + tl.arange(0, block)
    n = tl.program_id(1) * block + tl.arange(0, block)
    total = tl.zeros((block, block), dtype=tl.float32)
    for start in range(0, inner, block_inner):
        k = start + tl.arange(0, block_inner)
        a = tl.load(
            left + (task * rows + m[:, None]) * inner + k[None, :],
            mask=(m < rows)[:, None] & (k < inner)[None, :],
            other=0.0,
        )
        b = tl.load(
            right + task * inner * columns + k[:, None] * right_inner + n[None, :] * right_column,
            mask=(k < inner)[:, None] & (n < columns)[None, :],
            other=0.0,
        )
        total = tl.dot(a, b, total, input_precision=precision)
    inside = (m < rows)[:, None] & (n < columns)[None, :]
    here = (task * rows + m[:, None]) * columns + n[None, :]
    if relu:
        total = tl.maximum(total, 0.0)
    if gated:
        total = tl.where(tl.load(gate + here, mask=inside, other=0.0) > 0, total, 0.0)
    tl.store(out + here, total.to(out.dtype.element_ty), mask=inside)


def triton_product(
    left: Tensor,
    right: Tensor,
    out: Tensor,
    *,
    transposed: bool = False,
    relu: bool = False,
    gate: Tensor | None = None,
) -> None:
    """out = left · right for each task, `right` transposed if it is so stored; then as `_product`."""
    (tasks, rows, inner), columns, block = left.shape, out.shape[2], _PRODUCT["block"]
    gates = out if gate is None else gate
    strides = (1, inner) if transposed else (columns, 1)
    how = {"relu": relu, "gated": gate is not None, "precision": exact(left)}
    _product[(triton.cdiv(rows, block), triton.cdiv(columns, block), tasks)](
        left, right, out, gates, rows, inner, columns, *strides, **how, **_PRODUCT
    )


@triton.jit
def _update(
    weight,
    scores,
    masked,
    first,
    second,
    delta,
    inputs,
    step,
    rates,
    last,
    decay,
    momentum,
    batch: tl.constexpr,
    out_size: tl.constexpr,
    in_size: tl.constexpr,
    optimiser: tl.constexpr,
    has_decay: tl.constexpr,
    has_first: tl.constexpr,
    first_decay: tl.constexpr,
    second_decay: tl.constexpr,
    first_log: tl.constexpr,
    second_log: tl.constexpr,
    epsilon: tl.constexpr,
    precision: tl.constexpr,
    block_out: tl.constexpr,
    block_in: tl.constexpr,
    block_batch: tl.constexpr,
):
    """One program updates a tile of one task's scores: the gradient is made and used without leaving the chip."""
    task = tl.program_id(1).to(tl.int64)
    across = tl.cdiv(in_size, block_in)
    m = tl.program_id(0) // across * block_out + tl.arange(0, block_out)
    n = tl.program_id(0) % across * block_in + tl.arange(0, block_in)
    inside = (m < out_size)[:, None] & (n < in_size)[None, :]
    here = task * out_size * in_size + m[:, None] * in_size + n[None, :]
    s = tl.load(scores + here, mask=inside, other=0.0)
    w = tl.load(weight + m[:, None] * in_size + n[None, :], mask=inside, other=0.0)
    if optimiser < 2:  # asked for early, so that it arrives while the gradient is made
        v = tl.load(second + here, mask=inside, other=0.0)
    total = tl.zeros((block_out, block_in), dtype=tl.float32)
    for start in range(0, batch, block_batch):
        k = start + tl.arange(0, block_batch)
        d = tl.load(
            delta + (task * batch + k[:, None]) * out_size + m[None, :],
            mask=(k < batch)[:, None] & (m < out_size)[None, :],
            other=0.0,
        )
        h = tl.load(
            inputs + (task * batch + k[:, None]) * in_size + n[None, :],
            mask=(k < batch)[:, None] & (n < in_size)[None, :],
            other=0.0,
        )
        total = tl.dot(tl.trans(d), h, total, input_precision=precision)
    g = total * w
    rate = tl.load(rates + tl.minimum(tl.load(step), last))
    if has_decay:
        g += decay * s
    if optimiser == 0:
        v = second_decay * v + (1.0 - second_decay) * g * g
        tl.store(second + here, v, mask=inside)
        s -= rate * g / (tl.sqrt(v) + epsilon)
    elif optimiser == 1:
        count = tl.load(step).to(tl.float32) + 1.0
        u = tl.load(first + here, mask=inside, other=0.0)
        u = u + (1.0 - first_decay) * (g - u)
        v = second_decay * v + (1.0 - second_decay) * g * g
        tl.store(first + here, u, mask=inside)
        tl.store(second + here, v, mask=inside)
        corrected = 1.0 - tl.exp2(count * second_log)
        root = tl.sqrt(v) / tl.sqrt(corrected) + epsilon
        s -= rate / (1.0 - tl.exp2(count * first_log)) * u / root
    else:
        if has_first:
            u = momentum * tl.load(first + here, mask=inside, other=0.0) + g
            tl.store(first + here, u, mask=inside)
            g = u
        s -= rate * g
    tl.store(scores + here, s, mask=inside)
    tl.store(masked + here, tl.where(s >= 0, w, 0.0).to(masked.dtype.element_ty), mask=inside)


def triton_update(state: ScoreState, delta: Tensor, inputs: Tensor, step: Tensor, rates: Tensor, rule: Rule) -> None:
    tasks, batch, out_size = delta.shape
    in_size = inputs.shape[2]
    block_batch = min(64 if inputs.dtype == torch.bfloat16 else 32, max(16, triton.next_power_of_2(batch)))
    programs = triton.cdiv(out_size, _UPDATE["block_out"]) * triton.cdiv(in_size, _UPDATE["block_in"])
    _update[(programs, tasks)](
        *(state[1] if each is None else each for each in state),
        delta,
        inputs,
        step,
        rates,
        len(rates) - 1,
        rule.weight_decay,
        rule.momentum,
        batch=batch,
        out_size=out_size,
        in_size=in_size,
        optimiser=_OPTIMISERS[rule.optimiser],
        has_decay=rule.weight_decay > 0,
        has_first=state[3] is not None,
        first_decay=rule.first_decay,
        second_decay=rule.second_decay,
        first_log=math.log2(max(rule.first_decay, _TINY)),
        second_log=math.log2(max(rule.second_decay, _TINY)),
        epsilon=rule.epsilon,
        precision=exact(inputs),
        block_batch=block_batch,
        num_warps=4,
        **_UPDATE,
    )
