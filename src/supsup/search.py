"""Inner products of queries with masks held as bits: the search behind task inference.

This module alone decides how they are taken. Each list of ways (`WAYS`, `SHORT_WAYS`) is tried in order and each way
says what it takes; the last one takes everything and defines what is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from supsup.bank import Bank
from supsup.kernels import available

if available.NUMBA:
    from supsup.kernels import numba_search
if available.TRITON:
    from supsup.kernels import triton_search


@dataclass(frozen=True)
class Outer:
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


Query = Mapping[str, Tensor | Outer]  # by weight: [r, *shape], or the factors of it
Part = tuple[slice, Tensor]  # some bytes of a mask, and a query over their bits [r, bits]

FEW = 8  # queries for which reading the bits costs more than the arithmetic
SOME = 16  # queries that tables are made for together
FEW_ON_CPU = 2 * SOME  # queries for which tables cost less, however few masks there are
MANY_MASKS = 32  # for which tables cost less than passing images through one mask after the other, however many images
_UNPACKED = 1 << 24  # how many bits the plain way unpacks at once
_CANDIDATES = 4  # masks among which the exact inner product decides after a search from few coordinates
_FAR_AHEAD = 6  # standard deviations


def inner(query: Query, bank: Bank) -> Tensor:
    """⟨query, Mⁱ⟩ for every mask, summed over the weights that the query names: [r, k]."""
    return next(way for way in WAYS if way.takes(query, bank)).inner(query, bank)


def nearest(query: Query, bank: Bank, coordinates: int, members: Tensor) -> Tensor:
    """For each row the member with the largest inner product, searched from few coordinates of the query: [r].

    The `coordinates` largest in size rank all masks. Where the first is not far ahead of the second, by what the
    other coordinates could add to a random mask, the exact inner product decides among the best few.
    """
    way = next(way for way in SHORT_WAYS if way.takes(bank))
    excluded = torch.ones(len(bank), dtype=torch.bool, device=bank.device).index_fill_(0, members, False)
    nearest_masks = []
    for row in _whole(query, bank):
        chosen = top_coordinates(row, coordinates)
        scores = torch.zeros(len(bank), device=bank.device)
        for tasks, block in _blocks(bank):
            way.add_at(row, chosen, block, scores[tasks])
        best = scores.masked_fill_(excluded, -torch.inf).topk(min(_CANDIDATES, len(members)))
        spread = (0.5 * (row.square().sum() - row[chosen].square().sum())).clamp(min=0).sqrt()
        if len(members) == 1 or bool(best.values[0] - best.values[1] > _FAR_AHEAD * spread):
            nearest_masks.append(best.indices[0])
        else:
            exact = _inner_with(row, best.indices, query, bank, way)
            nearest_masks.append(best.indices[exact.argmax()])
    return torch.stack(nearest_masks)


def rows_at_once(bank: Bank, layers: Iterable[str]) -> int:
    """How many rows of a query over these weights fit into memory together."""
    numbers = 1 << 30 if bank.device.type == "cuda" else 1 << 25
    return max(1, numbers // sum(bank.shapes[name].numel() for name in layers))


def bytes_read(bank: Bank, layers: Sequence[str], coordinates: int | None = None) -> int:
    """What a search for one query reads of the masks, in bytes: over these weights, or from few coordinates."""
    if coordinates is None:
        return len(bank) * sum(stop - start for start, stop in (bank.spans[name] for name in layers))
    size = max(stop for _, stop in bank.spans.values())
    return len(bank) * coordinates + min(_CANDIDATES, len(bank)) * size


def top_coordinates(query: Tensor, count: int) -> Tensor:
    """Indices, in order, of about `count` of the numbers in a query [n] that are largest in size.

    Which numbers are large is judged by every 16th of them: a full selection would cost more than the search itself.
    """
    size = query.abs()
    if count >= len(size):
        return torch.arange(len(size), device=size.device)
    sample = size[::16]
    rank = max(1, min(len(sample), round(count * len(sample) / len(size))))
    return (size >= sample.topk(rank).values[-1]).nonzero().flatten()


@dataclass(frozen=True)
class Way:
    """One way to take the inner products of a query with every mask."""

    takes: Callable[[Query, Bank], bool]
    inner: Callable[[Query, Bank], Tensor]


@dataclass(frozen=True)
class ShortWay:
    """One way to search from few coordinates.

    add_at   (query [bits], coordinates, block, out [tasks]): out += the inner products over these coordinates alone
    columns  (query [bits], block, columns): the exact inner products with some of the masks, [columns]
    """

    takes: Callable[[Bank], bool]
    add_at: Callable[[Tensor, Tensor, Tensor, Tensor], None]
    columns: Callable[[Tensor, Tensor, Tensor], Tensor]


def triton_few(query: Query, bank: Bank) -> Tensor:
    """A kernel that reads each byte once per row; neighbouring weights in one launch, since launches cost most."""
    return _over_blocks(_joined(_parts(query, bank)), query, bank, triton_search.add_inner_few)


def triton_many(query: Query, bank: Bank) -> Tensor:
    """Matrix products in bfloat16, with float32 sums, with the bits unpacked a piece at a time."""
    return _over_blocks(_parts(query, bank, narrowed), query, bank, triton_search.add_inner_many)


def numba_tables(query: Query, bank: Bank) -> Tensor:
    """Compiled: tables of the 256 sums that eight weights can give, looked up for each task; some rows at a time."""
    pieces = (some(query, slice(start, start + SOME)) for start in range(0, _rows(query), SOME))
    return torch.cat([_over_blocks(_parts(piece, bank), piece, bank, numba_search.add_inner) for piece in pieces])


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
    return _over_blocks(_parts(query, bank), query, bank, add_plain)


def add_plain(query: Tensor, block: Tensor, out: Tensor) -> None:
    """out [r, tasks] += query [r, bits] · masks, given as bytes [bits / 8, tasks]."""
    shifts = torch.arange(8, dtype=torch.uint8, device=block.device)[:, None]
    step = max(1, _UNPACKED // (8 * max(1, block.shape[1])))
    for start in range(0, len(block), step):
        piece = block[start : start + step]
        bits = ((piece[:, None, :] >> shifts) & 1).flatten(0, 1).to(query.dtype)
        out += query[:, 8 * start : 8 * (start + len(piece))] @ bits


def add_numba_at(query: Tensor, coordinates: Tensor, block: Tensor, out: Tensor) -> None:
    """`add_plain_at`, compiled."""
    numba_search.add_inner_at(query, coordinates, block, out)


def numba_columns(query: Tensor, block: Tensor, columns: Tensor) -> Tensor:
    """`plain_columns`, compiled."""
    return numba_search.inner_columns(query, block, columns)


def add_plain_at(query: Tensor, coordinates: Tensor, block: Tensor, out: Tensor) -> None:
    """out [tasks] += Σ over the coordinates alone of query [bits] · masks, given as bytes [bits / 8, tasks]."""
    bits = (block[coordinates >> 3] >> (coordinates & 7).to(torch.uint8)[:, None]) & 1
    out += query[coordinates] @ bits.to(query.dtype)


def plain_columns(query: Tensor, block: Tensor, columns: Tensor) -> Tensor:
    """The exact inner products of a query [bits] with some of the masks: [columns]."""
    out = torch.zeros(1, len(columns), device=query.device)
    add_plain(query[None], block[:, columns], out)
    return out[0]


def _on_gpu(bank: Bank) -> bool:
    return available.TRITON and bank.device.type == "cuda"


def _on_cpu(bank: Bank) -> bool:
    return bank.device.type == "cpu"


def _few(query: Query) -> bool:
    return _rows(query) <= FEW


def _in_factors(query: Query) -> bool:
    return all(isinstance(values, Outer) for values in query.values())


WAYS: tuple[Way, ...] = (
    Way(lambda query, bank: _on_gpu(bank) and _few(query), triton_few),
    Way(lambda query, bank: _on_gpu(bank), triton_many),
    Way(
        lambda query, bank: (
            _on_cpu(bank) and available.NUMBA and (_rows(query) <= FEW_ON_CPU or len(bank) >= MANY_MASKS)
        ),
        numba_tables,
    ),
    Way(lambda query, bank: _on_cpu(bank) and not _few(query) and _in_factors(query), mask_by_mask),
    Way(lambda query, bank: True, plain),
)
SHORT_WAYS: tuple[ShortWay, ...] = (
    ShortWay(lambda bank: _on_cpu(bank) and available.NUMBA, add_numba_at, numba_columns),
    ShortWay(lambda bank: True, add_plain_at, plain_columns),
)


def dense(values: Tensor | Outer) -> Tensor:
    """A query over one weight as numbers: [r, *shape]."""
    return values.dense() if isinstance(values, Outer) else values


def some(query: Query, rows: slice) -> Query:
    """Some rows of a query."""
    return {
        name: Outer(values.weight, values.delta[rows], values.inputs[rows])
        if isinstance(values, Outer)
        else values[rows]
        for name, values in query.items()
    }


def _rows(query: Query) -> int:
    return next(iter(query.values())).shape[0]


def _zeros(query: Query, bank: Bank) -> Tensor:
    return torch.zeros(_rows(query), len(bank), device=bank.device)


def _blocks(bank: Bank) -> Iterator[tuple[slice, Tensor]]:
    """The blocks of a bank, each with the indices of its tasks."""
    start = 0
    for block in bank.blocks():
        yield slice(start, start + block.shape[1]), block
        start += block.shape[1]


def flattened(values: Tensor | Outer, bits: int) -> Tensor:
    """A query over one weight as [r, bits], with zeros at the end."""
    flat = dense(values).reshape(values.shape[0], -1)
    return pad(flat, (0, bits - flat.shape[1])) if flat.shape[1] < bits else flat


def narrowed(values: Tensor | Outer, bits: int) -> Tensor:
    """The same; a query of one image per row is made from its factors by one kernel, in bfloat16."""
    if isinstance(values, Outer) and values.delta.shape[1] == 1:
        return triton_search.outer(values.weight, values.delta[:, 0], values.inputs[:, 0], bits)
    return flattened(values, bits)


def _parts(query: Query, bank: Bank, flatten: Callable[[Tensor | Outer, int], Tensor] = flattened) -> Iterator[Part]:
    """The query weight by weight."""
    for name, values in query.items():
        start, stop = bank.spans[name]
        yield slice(start, stop), flatten(values, 8 * (stop - start))


def _joined(parts: Iterable[Part]) -> Iterator[Part]:
    """Parts whose bytes follow each other as one part."""
    run: list[Part] = []
    for part in parts:
        if run and run[-1][0].stop != part[0].start:
            yield _one(run)
            run = []
        run.append(part)
    yield _one(run)


def _one(run: Sequence[Part]) -> Part:
    flat = run[0][1] if len(run) == 1 else torch.cat([flat for _, flat in run], 1)
    return slice(run[0][0].start, run[-1][0].stop), flat


def _over_blocks(
    parts: Iterable[Part], query: Query, bank: Bank, add: Callable[[Tensor, Tensor, Tensor], None]
) -> Tensor:
    """The sum over all parts, block by block."""
    out = _zeros(query, bank)
    for span, flat in parts:
        for tasks, block in _blocks(bank):
            add(flat, block[span], out[:, tasks])
    return out


def _whole(query: Query, bank: Bank) -> Tensor:
    """A query over all bits of a mask, 0 where it names no weight: [r, bits]."""
    size = max(stop for _, stop in bank.spans.values())
    whole = torch.zeros(_rows(query), 8 * size, device=bank.device)
    for name, values in query.items():
        start = 8 * bank.spans[name][0]
        whole[:, start : start + bank.shapes[name].numel()] = dense(values).reshape(len(whole), -1)
    return whole


def _inner_with(row: Tensor, members: Tensor, layers: Iterable[str], bank: Bank, way: ShortWay) -> Tensor:
    """Exact inner products of one query over all bits, 0 beyond these weights, with some masks, in their order."""
    start = min(bank.spans[name][0] for name in layers)
    stop = max(bank.spans[name][1] for name in layers)
    row = row[8 * start : 8 * stop]
    out, wanted = torch.zeros(len(members), device=bank.device), members.tolist()
    for tasks, block in _blocks(bank):
        here = [i for i, index in enumerate(wanted) if tasks.start <= index < tasks.stop]
        if here:
            out[here] = way.columns(row, block[start:stop], members[here] - tasks.start)
    return out
