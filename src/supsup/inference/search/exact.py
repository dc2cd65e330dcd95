"""Queries over the weights of a network, and their inner products with all masks.

`INNER_EXECUTORS` are tried in order, and each says what it takes. The last one takes everything and defines what is
right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from supsup.kernels import available
from supsup.masks.bank import Bank

if available.NUMBA:
    from supsup.kernels import numba_search
if available.TRITON:
    from supsup.kernels import triton_search

FEW = 8  # queries for which reading the bits costs more than the arithmetic
SOME = 16  # queries that tables are made for together
FEW_ON_CPU = 2 * SOME  # queries for which tables cost less, however few masks there are
MANY_MASKS = 32  # for which tables cost less than running images through one mask after the other
_UNPACKED = 1 << 24  # bits that `inner_plain` unpacks at once


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
    """A query over one weight as [r, bits], padded with zeros."""
    flat = dense(values).reshape(values.shape[0], -1)
    return pad(flat, (0, bits - flat.shape[1])) if flat.shape[1] < bits else flat


def flattened_by_triton(values: Tensor | Outer, bits: int, precision: torch.dtype = torch.float32) -> Tensor:
    """`flattened`; one kernel makes a query of one image per row from its factors."""
    if isinstance(values, Outer) and values.delta.shape[1] == 1:
        return triton_search.triton_outer(values.weight, values.delta[:, 0], values.inputs[:, 0], bits, precision)
    return flattened(values, bits)


def flattened_bfloat16(values: Tensor | Outer, bits: int) -> Tensor:
    """`flattened_by_triton` in bfloat16."""
    return flattened_by_triton(values, bits, torch.bfloat16)


def flattened_by_numba(values: Tensor | Outer, bits: int) -> Tensor:
    """`flattened` on a CPU, in one compiled loop."""
    if isinstance(values, Outer) and values.delta.shape[1] == 1:
        factors = (values.weight, values.delta[:, 0], values.inputs[:, 0])
        weight, delta, inputs = (each.contiguous().numpy() for each in factors)
        return torch.from_numpy(numba_search.numba_outer(weight, delta, inputs, bits))
    return flattened(values, bits)


def parts_of(query: Query, bank: Bank, flatten: Flatten) -> Iterator[Part]:
    """The query weight by weight."""
    for name, values in query.items():
        start, stop = bank.spans[name]
        yield slice(start, stop), flatten(values, 8 * (stop - start))


def joined(parts: Iterable[Part]) -> Iterator[Part]:
    """Parts whose bytes follow each other, as one part."""
    run: list[Part] = []
    for part in parts:
        if run and run[-1][0].stop != part[0].start:
            yield _concatenated(run)
            run = []
        run.append(part)
    yield _concatenated(run)


def _concatenated(run: Sequence[Part]) -> Part:
    flat = run[0][1] if len(run) == 1 else torch.cat([flat for _, flat in run], 1)
    return slice(run[0][0].start, run[-1][0].stop), flat


def inner(query: Query, bank: Bank) -> Tensor:
    """⟨query, Mⁱ⟩ for every mask, summed over the weights of the query: [r, k]."""
    return next(executor for executor in INNER_EXECUTORS if executor.takes(query, bank)).inner(query, bank)


def rows_at_once(bank: Bank, layers: Iterable[str]) -> int:
    """How many rows of a query over these weights fit into memory together."""
    numbers = 1 << 30 if bank.device.type == "cuda" else 1 << 25
    return max(1, numbers // sum(bank.shapes[name].numel() for name in layers))


class InnerExecutor(NamedTuple):
    """One implementation of `inner`."""

    takes: Callable[[Query, Bank], bool]
    inner: Callable[[Query, Bank], Tensor]


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


def _tables_cost_less(query: Query, bank: Bank) -> bool:
    return on_cpu(bank) and available.NUMBA and (rows_of(query) <= FEW_ON_CPU or len(bank) >= MANY_MASKS)


def _in_factors(query: Query, bank: Bank) -> bool:
    return on_cpu(bank) and not _few(query) and all(isinstance(values, Outer) for values in query.values())


INNER_EXECUTORS: tuple[InnerExecutor, ...] = (
    InnerExecutor(lambda query, bank: on_gpu(bank) and _few(query), triton_few),
    InnerExecutor(lambda query, bank: on_gpu(bank), triton_many),
    InnerExecutor(_tables_cost_less, numba_tables),
    InnerExecutor(_in_factors, mask_by_mask),
    InnerExecutor(lambda query, bank: True, inner_plain),
)


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
