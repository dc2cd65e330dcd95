"""Search by a few bytes of the query on a GPU: six short launches, without a sort or a wait for the host.

`inference/search.py` defines each step; one CUDA graph can hold all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

_PROGRAMS = 1024  # programs of a scan, about: a few for every multiprocessor
_BYTES, _TASKS = 4, 512  # the tile of a scan
_ROUNDS, _GROUPS = 64, 16  # the tile of choosing bytes
_WINNERS, _GROUPED = 2048, 256  # the tile of finding winners, and how many tasks wide it is at most
_RANKED = 16  # winners that one program ranks
_CHECKED, _SHARE = 32, 128  # bytes of a tile, and of a program, when candidates are checked


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
def _scan(
    query, chosen, block, partial, count, width, tasks, stride, share, bytes_: tl.constexpr, block_tasks: tl.constexpr
):
    """The sum over one share of the chosen bytes for some tasks; partial is [shares, width]."""
    t = tl.program_id(0) * block_tasks + tl.arange(0, block_tasks)
    split = tl.program_id(1)
    total = tl.zeros((bytes_, block_tasks), dtype=tl.float32)
    stop = min((split + 1) * share, count)
    for start in range(split * share, stop, bytes_):
        j = start + tl.arange(0, bytes_)
        b = tl.load(chosen + j, mask=j < stop, other=0)
        offset = b[:, None].to(tl.int64) * stride + t[None, :]
        packed = tl.load(block + offset, mask=(j < stop)[:, None] & (t < tasks)[None, :], other=0).to(tl.int32)
        for bit in tl.static_range(8):
            q = tl.load(query + b * 8 + bit, mask=j < stop, other=0.0)
            total += tl.where((packed & (1 << bit)) != 0, q[:, None], 0.0)
    tl.store(partial + split * width + t, tl.sum(total, 0), mask=t < tasks)


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
        total = tl.zeros((block_tasks,), dtype=tl.float32)
        for split in range(0, splits, block_splits):
            s = split + tl.arange(0, block_splits)
            valid = (s < splits)[:, None] & inside[None, :]
            total += tl.sum(tl.load(partial + s[:, None] * tasks + t[None, :], mask=valid, other=0.0), 0)
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
        offset = b[:, None].to(tl.int64) * stride + column[None, :]
        packed = tl.load(block + offset, mask=(b < stop)[:, None] & here[None, :], other=0).to(tl.int32)
        for bit in tl.static_range(8):
            q = tl.load(query + b * 8 + bit, mask=b < stop, other=0.0)
            total += tl.where((packed & (1 << bit)) != 0, q[:, None], 0.0)
    tl.store(partial + split * length + c, tl.sum(total, 0), mask=here)


@triton.jit
def _decide(partial, shortlist, answer, splits, length, block_splits: tl.constexpr, candidates: tl.constexpr):
    """The candidate with the largest sum."""
    c = tl.arange(0, candidates)
    candidate = tl.load(shortlist + c, mask=c < length, other=-1)
    total = tl.zeros((candidates,), dtype=tl.float32)
    for split in range(0, splits, block_splits):
        s = split + tl.arange(0, block_splits)
        valid = (s < splits)[:, None] & (candidate >= 0)[None, :]
        total += tl.sum(tl.load(partial + s[:, None] * length + c[None, :], mask=valid, other=0.0), 0)
    total = tl.where(candidate >= 0, total, float("-inf"))
    top = tl.max(total, 0)
    tl.store(answer, tl.min(tl.where((total == top) & (candidate >= 0), candidate, 2147483647), 0).to(tl.int64))


def choose(query: Tensor, wanted: Sequence[tuple[int, int, int]]) -> Tensor:
    """Large bytes of a query [bits]: of those from one to another, so many."""
    chosen = torch.empty(sum(count for _, _, count in wanted), dtype=torch.int32, device=query.device)
    first = 0
    for start, stop, count in wanted:
        _choose[(triton.cdiv(count, _GROUPS),)](
            query,
            chosen[first:],
            start,
            stop - start,
            count,
            triton.cdiv(stop - start, count),
            block_rounds=_ROUNDS,
            block_groups=_GROUPS,
        )
        first += count
    return chosen


def triton_scan(query: Tensor, chosen: Tensor, blocks: Sequence[Tensor], tasks: int) -> Tensor:
    """Sums over the chosen bytes, in shares that are still to be added up: [shares, tasks]."""
    count = len(chosen)
    tiles = triton.cdiv(tasks, _TASKS)
    share = _BYTES * max(1, triton.cdiv(count * tiles, _BYTES * _PROGRAMS))
    splits = triton.cdiv(count, share)
    partial = torch.empty(splits, tasks, device=query.device)
    first = 0
    for block in blocks:
        width = block.shape[1]
        _scan[(triton.cdiv(width, _TASKS), splits)](
            query,
            chosen,
            block,
            partial[:, first:],
            count,
            tasks,
            width,
            block.stride(0),
            share,
            bytes_=_BYTES,
            block_tasks=_TASKS,
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
    _winners[(groups,)](
        partial,
        partial if members is None else members,
        scores,
        winners,
        splits,
        tasks,
        group,
        some=members is not None,
        block_splits=_WINNERS // width,
        block_tasks=width,
    )
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
    first = 0
    for block in blocks:
        _check[(splits,)](
            query,
            block,
            candidates,
            partial,
            size,
            first,
            block.shape[1],
            block.stride(0),
            _SHARE,
            length,
            bytes_=_CHECKED,
            candidates=padded,
        )
        first += block.shape[1]
    _decide[(1,)](partial, candidates, answer, splits, length, block_splits=64, candidates=padded)
    return answer
