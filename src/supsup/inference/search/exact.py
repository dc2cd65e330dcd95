"""Inner products of queries with all masks. `WAYS` are tried in order, and each says what it takes.

The last one takes everything and defines what is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from supsup.inference.search.factors import Outer, Part, Query, flattened, joined, narrowed, parts_of, rows_of, some
from supsup.kernels import available
from supsup.masks.bank import Bank

if available.NUMBA:
    from supsup.kernels import numba_search
if available.TRITON:
    from supsup.kernels import triton_search

FEW = 8  # queries for which reading the bits costs more than the arithmetic
SOME = 16  # queries that tables are made for together
FEW_ON_CPU = 2 * SOME  # queries for which tables cost less, however few masks there are
MANY_MASKS = 32  # for which tables cost less than passing images through one mask after the other, however many images
_UNPACKED = 1 << 24  # how many bits the plain way unpacks at once


def inner(query: Query, bank: Bank) -> Tensor:
    """⟨query, Mⁱ⟩ for every mask, summed over the weights that the query names: [r, k]."""
    return next(way for way in WAYS if way.takes(query, bank)).inner(query, bank)


def rows_at_once(bank: Bank, layers: Iterable[str]) -> int:
    """How many rows of a query over these weights fit into memory together."""
    numbers = 1 << 30 if bank.device.type == "cuda" else 1 << 25
    return max(1, numbers // sum(bank.shapes[name].numel() for name in layers))


@dataclass(frozen=True)
class Way:
    """One way to take the inner products of a query with every mask."""

    takes: Callable[[Query, Bank], bool]
    inner: Callable[[Query, Bank], Tensor]


def triton_few(query: Query, bank: Bank) -> Tensor:
    """A kernel that reads each byte once per row; neighbouring weights in one launch, since launches cost most."""
    return _over_blocks(joined(parts_of(query, bank, flattened)), query, bank, triton_search.add_inner_few)


def triton_many(query: Query, bank: Bank) -> Tensor:
    """Matrix products in bfloat16, with float32 sums, with the bits unpacked a piece at a time."""
    return _over_blocks(parts_of(query, bank, narrowed), query, bank, triton_search.add_inner_many)


def numba_tables(query: Query, bank: Bank) -> Tensor:
    """Compiled: tables of the 256 sums that eight weights can give, looked up for each task; some rows at a time."""
    pieces = (some(query, slice(start, start + SOME)) for start in range(0, rows_of(query), SOME))
    return torch.cat(
        [_over_blocks(parts_of(piece, bank, flattened), piece, bank, numba_search.add_inner) for piece in pieces]
    )


def mask_by_mask(query: Query, bank: Bank) -> Tensor:
    """For queries in factors: the images go through one mask after the other, and no query is made from its factors."""
    out = _zeros(query, bank)
    for name, values in query.items():
        assert isinstance(values, Outer)
        for index in range(len(bank)):
            out[:, index] += values.inner(bank.bits(index, name))
    return out


def plain(query: Query, bank: Bank) -> Tensor:
    """Torch operations alone."""
    return _over_blocks(parts_of(query, bank, flattened), query, bank, add_plain)


def add_plain(query: Tensor, block: Tensor, out: Tensor) -> None:
    """out [r, tasks] += query [r, bits] · masks, given as bytes [bits / 8, tasks]."""
    shifts = torch.arange(8, dtype=torch.uint8, device=block.device)[:, None]
    step = max(1, _UNPACKED // (8 * max(1, block.shape[1])))
    for start in range(0, len(block), step):
        piece = block[start : start + step]
        bits = ((piece[:, None, :] >> shifts) & 1).flatten(0, 1).to(query.dtype)
        out += query[:, 8 * start : 8 * (start + len(piece))] @ bits


def on_gpu(bank: Bank) -> bool:
    """Whether kernels for a GPU can read these masks."""
    return available.TRITON and bank.device.type == "cuda"


def on_cpu(bank: Bank) -> bool:
    """Whether compiled loops can read these masks."""
    return bank.device.type == "cpu"


def _few(query: Query) -> bool:
    return rows_of(query) <= FEW


def _in_factors(query: Query) -> bool:
    return all(isinstance(values, Outer) for values in query.values())


WAYS: tuple[Way, ...] = (
    Way(lambda query, bank: on_gpu(bank) and _few(query), triton_few),
    Way(lambda query, bank: on_gpu(bank), triton_many),
    Way(
        lambda query, bank: (
            on_cpu(bank) and available.NUMBA and (rows_of(query) <= FEW_ON_CPU or len(bank) >= MANY_MASKS)
        ),
        numba_tables,
    ),
    Way(lambda query, bank: on_cpu(bank) and not _few(query) and _in_factors(query), mask_by_mask),
    Way(lambda query, bank: True, plain),
)


def _zeros(query: Query, bank: Bank) -> Tensor:
    return torch.zeros(rows_of(query), len(bank), device=bank.device)


def _blocks(bank: Bank) -> Iterator[tuple[slice, Tensor]]:
    """The blocks of a bank, each with the indices of its tasks."""
    start = 0
    for block in bank.blocks():
        yield slice(start, start + block.shape[1]), block
        start += block.shape[1]


def _over_blocks(
    parts: Iterable[Part], query: Query, bank: Bank, add: Callable[[Tensor, Tensor, Tensor], None]
) -> Tensor:
    """The sum over all parts, block by block."""
    out = _zeros(query, bank)
    for span, flat in parts:
        for tasks, block in _blocks(bank):
            add(flat, block[span], out[:, tasks])
    return out
