"""Queries over the weights of a network, and their inner products with all masks, which are held as bits.

`inner` gives all of them. `nearest` finds the mask with the largest, from a few bytes of all masks. `inner_plain` and
`plain_nearest` take everything and define what is right; faster functions for `nearest` choose about the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from supsup.kernels import available
from supsup.masks.bank import Bank, unpacked_pieces

if available.NUMBA:
    from supsup.kernels import numba_search
    from supsup.kernels.numba_search import Bytes, Floats, Indices, Ranks
if available.TRITON:
    from supsup.kernels import triton_search

FEW = 8  # queries for which reading the bits costs more than the arithmetic
SOME = 16  # queries that tables are made for together
FEW_ON_CPU = 2 * SOME  # queries for which tables cost less, however few masks there are
MANY_MASKS = 32  # for which tables cost less than running images through one mask after the other
CANDIDATES = 16  # masks among which the exact inner product decides
_GPU_CANDIDATES = 2 * CANDIDATES  # reading more of them costs little there
_GROUPS = 256  # of tasks: the best of each may become a candidate
_SCANS = (1, 1, 2)  # bytes that a CPU reads each time, in multiples of the number asked for
_FAR_AHEAD = 4  # standard deviations


class Outer(NamedTuple):
    """A query in factors: W ⊙ Σ over a row's images of delta ⊗ inputs."""

    weight: Tensor  # [out, in]
    delta: Tensor  # [r, b, out]
    inputs: Tensor  # [r, b, in]

    @property
    def shape(self) -> torch.Size:
        """That of the whole query, [r, out, in]."""
        return torch.Size((len(self.delta), *self.weight.shape))

    def dense(self) -> Tensor:
        """The query itself."""
        if self.delta.shape[1] == 1:
            product = self.delta.transpose(1, 2) * self.inputs
        else:
            product = torch.bmm(self.delta.transpose(1, 2), self.inputs)
        return product.mul_(self.weight)

    def inner(self, mask: Tensor) -> Tensor:
        """The inner product of every row with one mask [out, in], without the query itself: [r]."""
        through = self.inputs.flatten(0, 1) @ (self.weight * mask).T
        return through.mul_(self.delta.flatten(0, 1)).view(len(self.delta), -1).sum(1)


Query = Mapping[str, Tensor | Outer]  # by weight: [r, *shape], or its factors
Part = tuple[slice, Tensor]  # some bytes of a mask, and a query over their bits [r, bits]
Flatten = Callable[[Tensor | Outer, int], Tensor]  # (a query over one weight, bits) → [r, bits]
Some = tuple[int, int, int]  # (first, last, count): this many of these bytes
# (a query [bits], which bytes, blocks, which masks are candidates) → the index of a mask
Nearest = Callable[[Tensor, Sequence[Some], Sequence[Tensor], Tensor | None], Tensor]


def dense(values: Tensor | Outer) -> Tensor:
    """A query over one weight as numbers: [r, *shape]."""
    return values.dense() if isinstance(values, Outer) else values


def rows_of(query: Query) -> int:
    """How many rows a query has."""
    return next(iter(query.values())).shape[0]


def some_rows(query: Query, rows: slice) -> Query:
    """Some rows of a query."""
    return {
        name: Outer(values.weight, values.delta[rows], values.inputs[rows])
        if isinstance(values, Outer)
        else values[rows]
        for name, values in query.items()
    }


def flattened(values: Tensor | Outer, bits: int) -> Tensor:
    """A query over one weight as [r, bits], padded with zeros; one image per row on a CPU in one compiled loop."""
    if isinstance(values, Outer) and values.delta.shape[1] == 1 and available.NUMBA and not values.delta.is_cuda:
        factors = (values.weight, values.delta[:, 0], values.inputs[:, 0])
        weight, delta, inputs = (each.contiguous().numpy() for each in factors)
        return torch.from_numpy(numba_search.numba_outer(weight, delta, inputs, bits))
    flat = dense(values).reshape(values.shape[0], -1)
    return pad(flat, (0, bits - flat.shape[1])) if flat.shape[1] < bits else flat


def flattened_by_triton(values: Tensor | Outer, bits: int, precision: torch.dtype = torch.float32) -> Tensor:
    """`flattened`; one kernel makes a query of one image per row from its factors."""
    if isinstance(values, Outer) and values.delta.shape[1] == 1:
        return triton_search.triton_outer(values.weight, values.delta[:, 0], values.inputs[:, 0], bits, precision)
    return flattened(values, bits)


flattened_bfloat16 = partial(flattened_by_triton, precision=torch.bfloat16)


def parts_of(query: Query, bank: Bank, flatten: Flatten) -> Iterator[Part]:
    """The query weight by weight."""
    for name, values in query.items():
        start, stop = bank.spans[name]
        yield slice(start, stop), flatten(values, 8 * (stop - start))


def joined(parts: Iterable[Part]) -> Iterator[Part]:
    """Parts whose bytes follow each other, as one part."""
    runs: list[list[Part]] = []
    for part in parts:
        if runs and runs[-1][-1][0].stop == part[0].start:
            runs[-1].append(part)
        else:
            runs.append([part])
    for run in runs:
        flat = run[0][1] if len(run) == 1 else torch.cat([flat for _, flat in run], 1)
        yield slice(run[0][0].start, run[-1][0].stop), flat


def inner(query: Query, bank: Bank) -> Tensor:
    """⟨query, Mⁱ⟩ for every mask, summed over the weights of the query: [r, k]."""
    return inner_function(query, bank)(query, bank)


def inner_function(query: Query, bank: Bank) -> Callable[[Query, Bank], Tensor]:
    """The fastest implementation of `inner` for this query."""
    rows = rows_of(query)
    if on_gpu(bank):
        return triton_few if rows <= FEW else triton_many
    on_cpu = bank.device.type == "cpu"
    if on_cpu and available.NUMBA and (rows <= FEW_ON_CPU or len(bank) >= MANY_MASKS):
        return numba_tables
    if on_cpu and rows > FEW and all(isinstance(values, Outer) for values in query.values()):
        return mask_by_mask
    return inner_plain


def rows_at_once(bank: Bank, layers: Iterable[str]) -> int:
    """How many rows of a query over these weights fit into memory together."""
    numbers = 1 << 30 if bank.device.type == "cuda" else 1 << 25
    return max(1, numbers // sum(bank.shapes[name].numel() for name in layers))


def triton_few(query: Query, bank: Bank) -> Tensor:
    """A kernel that reads each byte once per row; neighbouring weights share a launch, since launches cost most."""
    return _over_blocks(joined(parts_of(query, bank, flattened)), query, bank, triton_search.add_inner_few)


def triton_many(query: Query, bank: Bank) -> Tensor:
    """Matrix products in bfloat16 with float32 sums; bits are unpacked a piece at a time."""
    return _over_blocks(parts_of(query, bank, flattened_bfloat16), query, bank, triton_search.add_inner_many)


def numba_tables(query: Query, bank: Bank) -> Tensor:
    """Compiled: tables of the 256 sums that eight weights can give, looked up for each task; some rows at a time."""
    pieces = (some_rows(query, slice(start, start + SOME)) for start in range(0, rows_of(query), SOME))
    return torch.cat(
        [_over_blocks(parts_of(piece, bank, flattened), piece, bank, numba_search.add_inner) for piece in pieces]
    )


def mask_by_mask(query: Query, bank: Bank) -> Tensor:
    """For queries in factors: images go through one mask after the other; the query itself is never made."""
    out = _zeros(query, bank)
    for name, values in query.items():
        assert isinstance(values, Outer)
        for index in range(len(bank)):
            out[:, index] += values.inner(bank.bits(index, name))
    return out


def inner_plain(query: Query, bank: Bank) -> Tensor:
    """Torch operations alone."""
    return _over_blocks(parts_of(query, bank, flattened), query, bank, add_plain)


def add_plain(query: Tensor, block: Tensor, out: Tensor) -> None:
    """out [r, tasks] += query [r, bits] · masks, given as bytes [bits / 8, tasks]."""
    for rows, bits in unpacked_pieces(block):
        out += query[:, rows] @ bits.to(query.dtype)


def on_gpu(bank: Bank) -> bool:
    """Whether kernels for a GPU can read these masks."""
    return available.TRITON and bank.device.type == "cuda"


def _zeros(query: Query, bank: Bank) -> Tensor:
    return torch.zeros(rows_of(query), len(bank), device=bank.device)


def _over_blocks(
    parts: Iterable[Part], query: Query, bank: Bank, add: Callable[[Tensor, Tensor, Tensor], None]
) -> Tensor:
    """The sum over all parts, block by block."""
    out = _zeros(query, bank)
    for span, flat in parts:
        start = 0
        for block in bank.blocks():
            add(flat, block[span], out[:, start : start + block.shape[1]])
            start += block.shape[1]
    return out


def nearest(query: Query, bank: Bank, coordinates: int, alive: Tensor | None = None) -> Tensor:
    """For each row the mask with the largest inner product, searched from few coordinates of the query: [r].

    A byte of a mask has eight coordinates, so whole bytes are read: those whose coordinates are largest in size, of
    every layer in proportion to its length. They rank all masks; among the best few the exact inner product decides.

    alive  which masks are candidates, [k] (None: all)
    """
    span, rows = whole_query(query, bank, flattened_by_triton if on_gpu(bank) else flattened)
    search_one = nearest_function(bank)
    wanted = [
        (first - span.start, last - span.start, count) for first, last, count in wanted_bytes(bank, query, coordinates)
    ]
    blocks = [block[span] for block in bank.blocks() if block.shape[1]]
    return torch.stack([search_one(row, wanted, blocks, alive) for row in rows])


def nearest_function(bank: Bank) -> Nearest:
    """The fastest search for one query among these masks."""
    if on_gpu(bank):
        return triton_nearest
    return numba_nearest if bank.device.type == "cpu" and available.NUMBA else plain_nearest


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


def wanted_bytes(bank: Bank, layers: Iterable[str], coordinates: int) -> list[Some]:
    """The bytes of each of these weights, and how many of them are read: in proportion, at least one."""
    spans = [bank.spans[name] for name in layers]
    size = sum(stop - start for start, stop in spans)
    share = min(1, -(-coordinates // 8) / size)
    return [(start, stop, max(1, math.ceil(share * (stop - start)))) for start, stop in spans]


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
