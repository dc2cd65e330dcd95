"""The mask with the largest inner product, from few bytes of all masks. `WAYS` are tried in order.

The last one takes everything and defines what is right; the others choose about the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from supsup.inference.search.exact import add_plain, on_cpu, on_gpu
from supsup.inference.search.factors import Flatten, Query, by_kernel, by_loop, flattened, whole
from supsup.inference.search.scanning import CANDIDATES, Some, group_size
from supsup.kernels import available
from supsup.masks.bank import Bank

if available.NUMBA:
    from supsup.inference.search.scanning import numba_nearest
if available.TRITON:
    from supsup.kernels import triton_short

_ON_GPU = 2 * CANDIDATES  # where reading more of them costs little


def nearest(query: Query, bank: Bank, coordinates: int, alive: Tensor | None = None) -> Tensor:
    """For each row the mask with the largest inner product, searched from few coordinates of the query: [r].

    A byte of a mask has eight coordinates, so whole bytes are read: those whose coordinates are largest in size, of
    every layer in proportion to its length. They rank all masks; among the best few the exact inner product decides.

    alive  which masks are candidates, [k] (None: all)
    """
    way = next(way for way in WAYS if way.takes(bank))
    span, rows = whole(query, bank, way.flatten)
    wanted = [
        (first - span.start, last - span.start, count) for first, last, count in _wanted(bank, query, coordinates)
    ]
    blocks = [block[span] for block in bank.blocks() if block.shape[1]]
    return torch.stack([way.nearest(row, wanted, blocks, alive) for row in rows])


def bytes_read(bank: Bank, layers: Sequence[str], coordinates: int | None = None) -> int:
    """What a search for one query reads of the masks, in bytes: over these weights, or from few coordinates."""
    size = sum(stop - start for start, stop in (bank.spans[name] for name in layers))
    if coordinates is None:
        return len(bank) * size
    return (
        len(bank) * sum(count for _, _, count in _wanted(bank, layers, coordinates)) + min(CANDIDATES, len(bank)) * size
    )


@dataclass(frozen=True)
class Way:
    """One way to search from few bytes.

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
    candidates = shortlist(scores if alive is None else scores.masked_fill(~alive, -torch.inf))
    exact = _of_candidates(candidates, blocks, lambda block, columns: _products(query, block[:, columns]))
    return candidates[exact.argmax()]


def shortlist(scores: Tensor) -> Tensor:
    """The candidates by their scores [k]: the best of those tasks that are the best of a group, neighbours in the bank.

    Nothing has to be sorted but one score for each group. −inf is no candidate.
    """
    group = group_size(len(scores))
    values, within = pad(scores, (0, -len(scores) % group), value=-torch.inf).view(-1, group).max(1)
    best = values.topk(min(CANDIDATES, len(values)))
    groups = best.indices[best.values > -torch.inf]
    return groups * group + within[groups]


def triton_nearest(query: Tensor, wanted: Sequence[Some], blocks: Sequence[Tensor], alive: Tensor | None) -> Tensor:
    """Kernels that neither sort nor wait for the host; candidates are read in full."""
    tasks = sum(block.shape[1] for block in blocks)
    scores = triton_short.triton_scan(query, triton_short.choose(query, wanted), blocks, tasks)
    candidates = triton_short.triton_shortlist(scores, alive, group_size(tasks), _ON_GPU)
    return triton_short.best_of(query, candidates, blocks)


WAYS: tuple[Way, ...] = (
    Way(on_gpu, by_kernel, triton_nearest),
    Way(lambda bank: on_cpu(bank) and available.NUMBA, by_loop, lambda *given: numba_nearest(*given)),
    Way(lambda bank: True, flattened, plain_nearest),
)


def _wanted(bank: Bank, layers: Iterable[str], coordinates: int) -> list[Some]:
    """The bytes of each of these weights, and how many of them are read: in proportion, at least one."""
    spans = [bank.spans[name] for name in layers]
    size = sum(stop - start for start, stop in spans)
    share = min(1, -(-coordinates // 8) / size)
    return [(start, stop, max(1, math.ceil(share * (stop - start)))) for start, stop in spans]


def _products(query: Tensor, block: Tensor) -> Tensor:
    """The inner products of a query [bits] with masks, given as bytes [bits / 8, tasks]: [tasks]."""
    out = torch.zeros(1, block.shape[1], device=query.device)
    add_plain(query[None], block, out)
    return out[0]


def _of_candidates(
    candidates: Tensor, blocks: Sequence[Tensor], products: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """What `products` gives for columns of a block, for each candidate in the block where it lies."""
    out, first = torch.empty(len(candidates), device=candidates.device), 0
    for block in blocks:
        columns = candidates - first
        here = (columns >= 0) & (columns < block.shape[1])
        if here.any():
            out[here] = products(block, columns[here])
        first += block.shape[1]
    return out
