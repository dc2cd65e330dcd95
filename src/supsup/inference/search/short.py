"""The mask with the largest inner product, found from a few bytes of all masks.

`NEAREST_EXECUTORS` are tried in order. The last one takes everything and defines what is right; the others choose about
the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from supsup.inference.search.exact import (
    Flatten,
    Part,
    Query,
    add_plain,
    flattened,
    flattened_by_numba,
    flattened_by_triton,
    joined,
    on_cpu,
    on_gpu,
    parts_of,
    rows_of,
)
from supsup.kernels import available
from supsup.masks.bank import Bank

if available.NUMBA:
    from supsup.kernels import numba_search
    from supsup.kernels.numba_search import Bytes, Floats, Indices, Ranks
if available.TRITON:
    from supsup.kernels import triton_search

Some = tuple[int, int, int]  # (first, last, count): this many of these bytes
CANDIDATES = 16  # masks among which the exact inner product decides
_GPU_CANDIDATES = 2 * CANDIDATES  # reading more of them costs little there
_GROUPS = 256  # of tasks: the best of each may become a candidate
_SCANS = (1, 1, 2)  # bytes that a CPU reads each time, in multiples of the number asked for
_FAR_AHEAD = 4  # standard deviations


def nearest(query: Query, bank: Bank, coordinates: int, alive: Tensor | None = None) -> Tensor:
    """For each row the mask with the largest inner product, searched from few coordinates of the query: [r].

    A byte of a mask has eight coordinates, so whole bytes are read: those whose coordinates are largest in size, of
    every layer in proportion to its length. They rank all masks; among the best few the exact inner product decides.

    alive  which masks are candidates, [k] (None: all)
    """
    executor = next(executor for executor in NEAREST_EXECUTORS if executor.takes(bank))
    span, rows = whole_query(query, bank, executor.flatten)
    wanted = [
        (first - span.start, last - span.start, count) for first, last, count in _wanted(bank, query, coordinates)
    ]
    blocks = [block[span] for block in bank.blocks() if block.shape[1]]
    return torch.stack([executor.nearest(row, wanted, blocks, alive) for row in rows])


def bytes_read(bank: Bank, layers: Sequence[str], coordinates: int | None = None) -> int:
    """The bytes of masks that a search for one query reads: over these weights, or from few coordinates."""
    size = sum(stop - start for start, stop in (bank.spans[name] for name in layers))
    if coordinates is None:
        return len(bank) * size
    scanned = sum(count for _, _, count in _wanted(bank, layers, coordinates))
    return len(bank) * scanned + min(CANDIDATES, len(bank)) * size


def whole_query(query: Query, bank: Bank, flatten: Flatten) -> Part:
    """A query over all bytes from its first weight to its last, 0 between them: these bytes, and [r, bits]."""
    parts = list(joined(parts_of(query, bank, flatten)))
    if len(parts) == 1:
        return parts[0]
    start, stop = min(span.start for span, _ in parts), max(span.stop for span, _ in parts)
    rows = parts[0][1].new_zeros(rows_of(query), 8 * (stop - start))
    for span, flat in parts:
        rows[:, 8 * (span.start - start) : 8 * (span.stop - start)] = flat
    return slice(start, stop), rows


def _wanted(bank: Bank, layers: Iterable[str], coordinates: int) -> list[Some]:
    """The bytes of each of these weights, and how many of them are read: in proportion, at least one."""
    spans = [bank.spans[name] for name in layers]
    size = sum(stop - start for start, stop in spans)
    share = min(1, -(-coordinates // 8) / size)
    return [(start, stop, max(1, math.ceil(share * (stop - start)))) for start, stop in spans]


class NearestExecutor(NamedTuple):
    """One implementation of the search for one query.

    flatten  a query over one weight as [r, bits]
    nearest  (query [bits], which bytes, blocks, which masks are candidates) → the index of a mask
    """

    takes: Callable[[Bank], bool]
    flatten: Flatten
    nearest: Callable[[Tensor, Sequence[Some], Sequence[Tensor], Tensor | None], Tensor]


def plain_nearest(query: Tensor, wanted: Sequence[Some], blocks: Sequence[Tensor], alive: Tensor | None) -> Tensor:
    """Torch operations alone."""
    sizes = query.view(-1, 8).abs().sum(1)
    chosen = torch.cat([sizes[start:stop].topk(count).indices + start for start, stop, count in wanted])
    scores = torch.cat([_products(query.view(-1, 8)[chosen].flatten(), block[chosen]) for block in blocks])
    candidates = best_of_groups(scores if alive is None else scores.masked_fill(~alive, -torch.inf))
    exact, first = torch.empty(len(candidates), device=candidates.device), 0
    for block in blocks:
        columns = candidates - first
        here = (columns >= 0) & (columns < block.shape[1])
        if here.any():
            exact[here] = _products(query, block[:, columns[here]])
        first += block.shape[1]
    return candidates[exact.argmax()]


def _products(query: Tensor, block: Tensor) -> Tensor:
    """The inner products of a query [bits] with masks, given as bytes [bits / 8, tasks]: [tasks]."""
    out = torch.zeros(1, block.shape[1], device=query.device)
    add_plain(query[None], block, out)
    return out[0]


def candidate_group_size(tasks: int) -> int:
    """How many tasks, neighbours in the bank, there are in a group."""
    return -(-tasks // _GROUPS)


def best_of_groups(scores: Tensor) -> Tensor:
    """The candidates by their scores [k]: the best tasks among those that are the best of their group.

    Only one score per group has to be sorted. −inf is no candidate.
    """
    group = candidate_group_size(len(scores))
    values, within = pad(scores, (0, -len(scores) % group), value=-torch.inf).view(-1, group).max(1)
    best = values.topk(min(CANDIDATES, len(values)))
    groups = best.indices[best.values > -torch.inf]
    return groups * group + within[groups]


def triton_nearest(query: Tensor, wanted: Sequence[Some], blocks: Sequence[Tensor], alive: Tensor | None) -> Tensor:
    """Kernels that neither sort nor wait for the host; candidates are read in full."""
    tasks = sum(block.shape[1] for block in blocks)
    scores = triton_search.triton_scan(query, triton_search.choose(query, wanted), blocks, tasks)
    candidates = triton_search.triton_shortlist(scores, alive, candidate_group_size(tasks), _GPU_CANDIDATES)
    return triton_search.best_of(query, candidates, blocks)


def numba_nearest(query: Tensor, wanted: Sequence[Some], blocks: Sequence[Tensor], alive: Tensor | None) -> Tensor:
    """Compiled loops add more bytes of all masks until one mask is far ahead; in the end the exact product decides.

    The bytes of one mask lie far apart, so reading whole candidates costs more than a few bytes of all masks. Integers
    rank the masks. The first is far ahead if, for random masks, unread bytes and rounding could make up for the
    difference only by `_FAR_AHEAD` deviations.
    """
    numbers, masks = query.numpy(), [block.numpy() for block in blocks]
    scores = np.zeros(sum(block.shape[1] for block in masks), np.float32)
    if alive is not None:
        scores[~alive.numpy()] = -np.inf
    ranks, unread = numba_search.ranked(numbers)
    near = np.empty(0, np.int64)
    for times in _SCANS:
        chosen = _largest(ranks, [(start, stop, times * count) for start, stop, count in wanted])
        values = numba_search.rounded(numbers, chosen)
        found = [numba_search.numba_scan(values.whole, chosen, block) for block in masks]
        scores += np.float32(values.unit) * np.concatenate(found)
        unread += values.blurred - values.energy
        best = numba_search.best(scores, CANDIDATES)
        near = best[scores[best] >= scores[best[0]] - _FAR_AHEAD * (0.5 * max(0.0, unread)) ** 0.5]
        if len(near) == 1:
            return torch.tensor(near[0])
    ranks, _ = numba_search.ranked(numbers)
    everything = _largest(ranks, [(start, stop, stop - start) for start, stop, _ in wanted])
    return torch.tensor(near[np.argmax(_candidate_products(numbers, everything, masks, near))])


def _largest(ranks: Ranks, wanted: Sequence[Some]) -> Indices:
    """The largest bytes that have not been read, up to the wanted number of each layer."""
    return np.concatenate([numba_search.take(ranks, *some) for some in wanted])


def _candidate_products(query: Floats, chosen: Indices, masks: Sequence[Bytes], candidates: Indices) -> Floats:
    """The inner products of the candidates over the chosen bytes."""
    out, first = np.zeros(len(candidates), np.float32), 0
    for block in masks:
        here = (candidates >= first) & (candidates < first + block.shape[1])
        if here.any():
            out[here] = numba_search.numba_columns(query, chosen, block, candidates[here] - first)
        first += block.shape[1]
    return out


NEAREST_EXECUTORS: tuple[NearestExecutor, ...] = (
    NearestExecutor(on_gpu, flattened_by_triton, triton_nearest),
    NearestExecutor(lambda bank: on_cpu(bank) and available.NUMBA, flattened_by_numba, numba_nearest),
    NearestExecutor(lambda bank: True, flattened, plain_nearest),
)
