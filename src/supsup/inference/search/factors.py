"""Queries: numbers for every weight, or the factors that they are products of; as rows of bits, as masks lie."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from supsup.kernels import available
from supsup.masks.bank import Bank

if available.NUMBA:
    from supsup.kernels import numba_short
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
Flatten = Callable[[Tensor | Outer, int], Tensor]  # (a query over one weight, bits) → [r, bits]


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


def rows_of(query: Query) -> int:
    """How many rows a query has."""
    return next(iter(query.values())).shape[0]


def flattened(values: Tensor | Outer, bits: int) -> Tensor:
    """A query over one weight as [r, bits], with zeros at the end."""
    flat = dense(values).reshape(values.shape[0], -1)
    return pad(flat, (0, bits - flat.shape[1])) if flat.shape[1] < bits else flat


def narrowed(values: Tensor | Outer, bits: int) -> Tensor:
    """The same; a query of one image per row is made from its factors by one kernel, in bfloat16."""
    return by_kernel(values, bits, torch.bfloat16)


def by_kernel(values: Tensor | Outer, bits: int, precision: torch.dtype = torch.float32) -> Tensor:
    """The same in one kernel, in float32."""
    if isinstance(values, Outer) and values.delta.shape[1] == 1:
        return triton_search.triton_outer(values.weight, values.delta[:, 0], values.inputs[:, 0], bits, precision)
    return flattened(values, bits)


def by_loop(values: Tensor | Outer, bits: int) -> Tensor:
    """The same on a CPU, in one compiled loop."""
    if isinstance(values, Outer) and values.delta.shape[1] == 1:
        weight, delta, inputs = (
            each.contiguous().numpy() for each in (values.weight, values.delta[:, 0], values.inputs[:, 0])
        )
        return torch.from_numpy(numba_short.numba_outer(weight, delta, inputs, bits))
    return flattened(values, bits)


def parts_of(query: Query, bank: Bank, flatten: Flatten) -> Iterator[Part]:
    """The query weight by weight."""
    for name, values in query.items():
        start, stop = bank.spans[name]
        yield slice(start, stop), flatten(values, 8 * (stop - start))


def joined(parts: Iterable[Part]) -> Iterator[Part]:
    """Parts whose bytes follow each other as one part."""
    run: list[Part] = []
    for part in parts:
        if run and run[-1][0].stop != part[0].start:
            yield _one(run)
            run = []
        run.append(part)
    yield _one(run)


def whole(query: Query, bank: Bank, flatten: Flatten) -> tuple[slice, Tensor]:
    """A query over all bytes from its first weight to its last, 0 between them: these bytes, and [r, bits]."""
    parts = list(joined(parts_of(query, bank, flatten)))
    if len(parts) == 1:
        return parts[0]
    start, stop = min(span.start for span, _ in parts), max(span.stop for span, _ in parts)
    rows = parts[0][1].new_zeros(rows_of(query), 8 * (stop - start))
    for span, flat in parts:
        rows[:, 8 * (span.start - start) : 8 * (span.stop - start)] = flat
    return slice(start, stop), rows


def _one(run: Sequence[Part]) -> Part:
    flat = run[0][1] if len(run) == 1 else torch.cat([flat for _, flat in run], 1)
    return slice(run[0][0].start, run[-1][0].stop), flat
