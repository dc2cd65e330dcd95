"""Search and the query of one image on a GPU; `inference/search.py` and `inference/gradient.py` define and use them.

Exact search reads all bytes. Search by a few bytes is six short launches, without a sort or a wait for the host, so
that one CUDA graph can hold them. The query is a forward and a backward pass of one image through linear layers and
ReLU at a mean of masks, one launch for each step. For one image launches cost most, and torch would need three times as
many.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

_UNPACKED = 1 << 28  # bits that may be unpacked at once
_SPLITS = 256  # parts of the bytes for a lone query, so that every multiprocessor has work
_PROGRAMS = 1024  # programs of a scan, about: a few for every multiprocessor
_TILE = {"bytes_": 4, "block_tasks": 512}  # of a lone query and of a scan
_OUTER = {"block_out": 8, "block_in": 256}  # the tile of a query made from its factors
_FORWARD = {"block_out": 4, "block_in": 256}  # the tile of a forward step
_BACKWARD = {"block_out": 128, "block_in": 16}  # the tile of a backward step
_CHOOSING = {"block_rounds": 64, "block_groups": 16}  # the tile of choosing bytes
_WINNERS, _GROUPED = 2048, 256  # the tile of finding winners, and how many tasks wide it is at most
_RANKED = 16  # winners that one program ranks
_CHECKED, _SHARE = 32, 128  # bytes of a tile, and of a program, when candidates are checked


@triton.jit
def _add_masked(total, query, block, stride, b, valid, t, real):
    """Add to total [bytes, tasks] the numbers of a query whose bit is set, for bytes b of tasks t of a block of masks.

    A tile is much wider than it is high, so that a thread uses each number of the query for several tasks, and is
    summed over its bytes only at the end. Bits select between the number and 0, which costs less than converting them.
    """
    offset = b[:, None].to(tl.int64) * stride + t[None, :]
    packed = tl.load(block + offset, mask=valid[:, None] & real[None, :], other=0).to(tl.int32)
    for bit in tl.static_range(8):
        q = tl.load(query + b * 8 + bit, mask=valid, other=0.0)
        total += tl.where((packed & (1 << bit)) != 0, q[:, None], 0.0)
    return total


@triton.jit
def _scan(
    query,
    chosen,
    block,
    partial,
    count,
    width,
    tasks,
    stride,
    share,
    some: tl.constexpr,
    bytes_: tl.constexpr,
    block_tasks: tl.constexpr,
):
    """The sum over one share of the bytes, all or `some`, for some tasks and one query; partial is [r, shares, width].

    Several queries [r, 8 · count] are for all bytes only.
    """
    t = tl.program_id(0) * block_tasks + tl.arange(0, block_tasks)
    split = tl.program_id(1)
    row = tl.program_id(2)
    total = tl.zeros((bytes_, block_tasks), dtype=tl.float32)
    stop = min((split + 1) * share, count)
    for start in range(split * share, stop, bytes_):
        j = start + tl.arange(0, bytes_)
        b = tl.load(chosen + j, mask=j < stop, other=0) if some else j
        total = _add_masked(total, query + row * count * 8, block, stride, b, j < stop, t, t < tasks)
    tl.store(partial + (row * tl.num_programs(1) + split) * width + t, tl.sum(total, 0), mask=t < tasks)


def add_inner_few(query: Tensor, block: Tensor, out: Tensor) -> None:
    """For a few queries: every byte is read once for each."""
    size, tasks = block.shape
    share = _TILE["bytes_"] * max(4, triton.cdiv(size, _TILE["bytes_"] * _SPLITS))
    splits = triton.cdiv(size, share)
    partial = torch.empty(len(query), splits, tasks, device=query.device)
    _scan[(triton.cdiv(tasks, _TILE["block_tasks"]), splits, len(query))](
        query.contiguous(), block, block, partial, size, tasks, tasks, block.stride(0), share, some=False, **_TILE
    )
    out += partial.sum(1)


@triton.jit
def _unpack(block, bits, size, tasks, padded, stride, bytes_: tl.constexpr, block_tasks: tl.constexpr):
    b = tl.program_id(1) * bytes_ + tl.arange(0, bytes_)
    t = tl.program_id(0) * block_tasks + tl.arange(0, block_tasks)
    inside = (b < size)[:, None] & (t < tasks)[None, :]
    packed = tl.load(block + b[:, None].to(tl.int64) * stride + t[None, :], mask=inside, other=0)
    written = (b < size)[:, None] & (t < padded)[None, :]
    for bit in tl.static_range(8):
        offset = (b[:, None].to(tl.int64) * 8 + bit) * padded + t[None, :]
        tl.store(bits + offset, ((packed >> bit) & 1).to(bits.dtype.element_ty), mask=written)


def unpack(block: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes [b, tasks] to numbers [8b, tasks or more], padded with columns of 0 for matrix products."""
    size, tasks = block.shape
    padded = triton.cdiv(tasks, 64) * 64
    bits = torch.empty(8 * size, padded, dtype=dtype, device=block.device)
    grid = (triton.cdiv(padded, 128), triton.cdiv(size, 32))
    _unpack[grid](block, bits, size, tasks, padded, block.stride(0), bytes_=32, block_tasks=128)
    return bits


@triton.jit
def _outer(weight, delta, inputs, query, outputs, width, bits, block_out: tl.constexpr, block_in: tl.constexpr):
    o = tl.program_id(1) * block_out + tl.arange(0, block_out)
    i = tl.program_id(2) * block_in + tl.arange(0, block_in)
    row = tl.program_id(0).to(tl.int64)
    inside = (o < outputs)[:, None] & (i < width)[None, :]
    offset = o[:, None] * width + i[None, :]
    d = tl.load(delta + row * outputs + o, mask=o < outputs, other=0.0)
    x = tl.load(inputs + row * width + i, mask=i < width, other=0.0)
    w = tl.load(weight + offset, mask=inside, other=0.0)
    value = d[:, None] * x[None, :] * w
    tl.store(query + row * bits + offset, value.to(query.dtype.element_ty), mask=inside)


def triton_outer(
    weight: Tensor, delta: Tensor, inputs: Tensor, bits: int, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """W ⊙ delta ⊗ inputs for each row of delta [r, out] and inputs [r, in], padded with zeros: [r, bits].

    The numbers are written once, in the precision of the product with many masks.
    """
    outputs, width = weight.shape
    query = torch.empty(len(delta), bits, dtype=dtype, device=delta.device)
    query[:, outputs * width :] = 0
    factors = (weight.contiguous(), delta.contiguous(), inputs.contiguous())
    grid = (len(delta), triton.cdiv(outputs, _OUTER["block_out"]), triton.cdiv(width, _OUTER["block_in"]))
    _outer[grid](*factors, query, outputs, width, bits, **_OUTER)
    return query


def add_inner_many(query: Tensor, block: Tensor, out: Tensor) -> None:
    """For many queries: matrix products in bfloat16 with float32 sums, the bits unpacked a piece at a time."""
    narrow = query.to(torch.bfloat16)
    step = max(1, _UNPACKED // (8 * max(1, block.shape[1])))
    for start in range(0, len(block), step):
        bits = unpack(block[start : start + step], torch.bfloat16)
        sums = torch.mm(narrow[:, 8 * start : 8 * start + len(bits)], bits, out_dtype=torch.float32)
        out += sums[:, : out.shape[1]]


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
    """(W ⊙ mean)ᵀ delta, 0 where the hidden activation is 0."""
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


def triton_lone_query(
    x: Tensor, weights: Sequence[Tensor], means: Sequence[Tensor], objective: str, classes: int, lowest: int
) -> tuple[list[Tensor], list[Tensor]]:
    """For one image [in]: −∂Obj/∂output of each layer from `lowest` on, and the inputs of those layers."""
    layers = [(weight.contiguous(), mean.contiguous()) for weight, mean in zip(weights, means)]
    inputs = [x.contiguous()]
    for number, layer in enumerate(layers):
        outputs, width = layer[0].shape
        inputs.append(torch.empty(outputs, device=x.device))
        _forward[(triton.cdiv(outputs, _FORWARD["block_out"]),)](
            inputs[-2], *layer, inputs[-1], outputs, width, relu=number + 1 < len(layers), **_FORWARD
        )
    last = inputs.pop()
    deltas = [torch.empty_like(last)]
    _gradient[(1,)](
        last, deltas[0], len(last), classes, entropy=objective == "H", block=triton.next_power_of_2(len(last))
    )
    for number in reversed(range(lowest + 1, len(layers))):
        outputs, width = layers[number][0].shape
        deltas.insert(0, torch.empty(width, device=x.device))
        _backward[(triton.cdiv(width, _BACKWARD["block_in"]),)](
            deltas[1], *layers[number], inputs[number], deltas[0], outputs, width, **_BACKWARD
        )
    return deltas, inputs[lowest:]


@triton.jit
def _choose(query, chosen, start_byte, size, count, rounds, block_rounds: tl.constexpr, block_groups: tl.constexpr):
    """For each remainder modulo `count`, the byte with the largest Σ |q|."""
    g = tl.program_id(0) * block_groups + tl.arange(0, block_groups)
    bit = tl.arange(0, 8)
    best = tl.full((block_groups,), -1.0, tl.float32)
    chosen_round = tl.zeros((block_groups,), tl.int32)
    for start in range(0, rounds, block_rounds):
        r = start + tl.arange(0, block_rounds)
        byte = r[:, None] * count + g[None, :]
        inside = (byte < size) & (g < count)[None, :]
        values = tl.load(
            query + (start_byte + byte)[:, :, None] * 8 + bit[None, None, :], mask=inside[:, :, None], other=0.0
        )
        total = tl.where(inside, tl.sum(tl.abs(values), 2), -1.0)
        top, at = tl.max(total, 0, return_indices=True)
        chosen_round = tl.where(top > best, start + at, chosen_round)
        best = tl.where(top > best, top, best)
    tl.store(chosen + g, start_byte + chosen_round * count + g, mask=g < count)


@triton.jit
def _sum_shares(partial, width, column, inside, splits, block_splits: tl.constexpr, block: tl.constexpr):
    """The sums over all shares of some columns of partial [shares, width]."""
    total = tl.zeros((block,), dtype=tl.float32)
    for split in range(0, splits, block_splits):
        s = split + tl.arange(0, block_splits)
        valid = (s < splits)[:, None] & inside[None, :]
        total += tl.sum(tl.load(partial + s[:, None] * width + column[None, :], mask=valid, other=0.0), 0)
    return total


@triton.jit
def _winners(
    partial,
    members,
    scores,
    winners,
    splits,
    tasks,
    group,
    some: tl.constexpr,
    block_splits: tl.constexpr,
    block_tasks: tl.constexpr,
):
    """For each group of consecutive tasks, the member with the largest sum; −inf for an empty group."""
    g = tl.program_id(0)
    best = float("-inf")
    winner = g * group
    for start in range(0, group, block_tasks):
        inner = start + tl.arange(0, block_tasks)
        t = g * group + inner
        inside = (inner < group) & (t < tasks)
        total = _sum_shares(partial, tasks, t, inside, splits, block_splits, block_tasks)
        if some:
            inside = inside & (tl.load(members + t, mask=inside, other=0) != 0)
        top, at = tl.max(tl.where(inside, total, float("-inf")), 0, return_indices=True)
        winner = tl.where(top > best, g * group + start + at, winner)
        best = tl.where(top > best, top, best)
    tl.store(scores + g, best)
    tl.store(winners + g, winner)


@triton.jit
def _shortlist(scores, winners, shortlist, groups, length, block: tl.constexpr, block_all: tl.constexpr):
    """The best winners, ranked by counting the better ones; −1 for a group without a member."""
    i = tl.program_id(0) * block + tl.arange(0, block)
    j = tl.arange(0, block_all)
    own = tl.load(scores + i, mask=i < groups, other=float("-inf"))
    winner = tl.load(winners + i, mask=i < groups, other=0)
    other = tl.load(scores + j, mask=j < groups, other=float("-inf"))[None, :]
    before = (other > own[:, None]) | ((other == own[:, None]) & (j[None, :] < i[:, None]))
    rank = tl.sum(before.to(tl.int32), 1)
    candidate = tl.where(own > float("-inf"), winner, -1)
    tl.store(shortlist + rank, candidate, mask=(i < groups) & (rank < length))


@triton.jit
def _check(
    query,
    block,
    shortlist,
    partial,
    size,
    first,
    tasks,
    stride,
    share,
    length,
    bytes_: tl.constexpr,
    candidates: tl.constexpr,
):
    """The sum over one share of all bytes for the candidates that lie in this block; partial is [shares, length]."""
    c = tl.arange(0, candidates)
    split = tl.program_id(0)
    column = tl.load(shortlist + c, mask=c < length, other=-1) - first
    here = (column >= 0) & (column < tasks) & (c < length)
    total = tl.zeros((bytes_, candidates), dtype=tl.float32)
    stop = min((split + 1) * share, size)
    for start in range(split * share, stop, bytes_):
        b = start + tl.arange(0, bytes_)
        total = _add_masked(total, query, block, stride, b, b < stop, column, here)
    tl.store(partial + split * length + c, tl.sum(total, 0), mask=here)


@triton.jit
def _decide(partial, shortlist, answer, splits, length, block_splits: tl.constexpr, candidates: tl.constexpr):
    """The candidate with the largest sum."""
    c = tl.arange(0, candidates)
    candidate = tl.load(shortlist + c, mask=c < length, other=-1)
    total = _sum_shares(partial, length, c, candidate >= 0, splits, block_splits, candidates)
    total = tl.where(candidate >= 0, total, float("-inf"))
    top = tl.max(total, 0)
    tl.store(answer, tl.min(tl.where((total == top) & (candidate >= 0), candidate, 2147483647), 0).to(tl.int64))


def choose(query: Tensor, wanted: Sequence[tuple[int, int, int]]) -> Tensor:
    """Large bytes of a query [bits]: of those from one to another, so many."""
    chosen = torch.empty(sum(count for _, _, count in wanted), dtype=torch.int32, device=query.device)
    first = 0
    for start, stop, count in wanted:
        size = stop - start
        _choose[(triton.cdiv(count, _CHOOSING["block_groups"]),)](
            query, chosen[first:], start, size, count, triton.cdiv(size, count), **_CHOOSING
        )
        first += count
    return chosen


def triton_scan(query: Tensor, chosen: Tensor, blocks: Sequence[Tensor], tasks: int) -> Tensor:
    """Sums over the chosen bytes, in shares that are still to be added up: [shares, tasks]."""
    count = len(chosen)
    tiles = triton.cdiv(tasks, _TILE["block_tasks"])
    share = _TILE["bytes_"] * max(1, triton.cdiv(count * tiles, _TILE["bytes_"] * _PROGRAMS))
    splits = triton.cdiv(count, share)
    partial = torch.empty(splits, tasks, device=query.device)
    first = 0
    for block in blocks:
        width = block.shape[1]
        _scan[(triton.cdiv(width, _TILE["block_tasks"]), splits)](
            query, chosen, block, partial[:, first:], count, tasks, width, block.stride(0), share, some=True, **_TILE
        )
        first += width
    return partial


def triton_shortlist(partial: Tensor, members: Tensor | None, group: int, most: int) -> Tensor:
    """The candidates by sums in shares [shares, tasks], −1 in place of those for which there is no member."""
    splits, tasks = partial.shape
    groups = triton.cdiv(tasks, group)
    length = min(most, groups)
    scores = torch.empty(groups, device=partial.device)
    winners, best = (torch.empty(n, dtype=torch.int32, device=partial.device) for n in (groups, length))
    width = min(_GROUPED, max(16, triton.next_power_of_2(group)))
    tile = {"block_splits": _WINNERS // width, "block_tasks": width}
    which = partial if members is None else members
    _winners[(groups,)](partial, which, scores, winners, splits, tasks, group, some=members is not None, **tile)
    _shortlist[(triton.cdiv(groups, _RANKED),)](
        scores, winners, best, groups, length, block=_RANKED, block_all=max(16, triton.next_power_of_2(groups))
    )
    return best


def best_of(query: Tensor, candidates: Tensor, blocks: Sequence[Tensor]) -> Tensor:
    """The candidate (−1: none) whose mask has the largest inner product with a query [bits]: a number."""
    size, length = len(query) // 8, len(candidates)
    splits, padded = triton.cdiv(size, _SHARE), max(16, triton.next_power_of_2(length))
    partial = torch.empty(splits, length, device=query.device)
    answer = torch.empty((), dtype=torch.int64, device=query.device)
    tile = {"bytes_": _CHECKED, "candidates": padded}
    first = 0
    for block in blocks:
        width = block.shape[1]
        _check[(splits,)](
            query, block, candidates, partial, size, first, width, block.stride(0), _SHARE, length, **tile
        )
        first += width
    _decide[(1,)](partial, candidates, answer, splits, length, block_splits=64, candidates=padded)
    return answer
