"""Inner products of queries with masks kept as bits: the search behind task inference.

`plain_inner` defines what is right. On a CPU a few queries go through tables of 256 partial sums (numba, where it is
installed); on a GPU they go through a kernel that reads each byte once, and many queries go through matrix products
with the bits unpacked a piece at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from supsup.kernels import available

if available.NUMBA:
    from supsup.kernels import numba_search
if available.TRITON:
    from supsup.kernels import triton_search


@dataclass(frozen=True)
class Outer:
    """A query kept in factors: W ⊙ Σ over a row's images of delta ⊗ inputs."""

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

FEW = 8  # queries for which reading the bits costs more than the arithmetic
_UNPACKED = 1 << 24  # how many bits may be unpacked at once on a CPU


def flattened(values: Tensor | Outer, bits: int) -> Tensor:
    """A query over one weight as `add_inner` wants it: [r, bits], with zeros at the end."""
    rows = values.shape[0]
    if isinstance(values, Outer):
        one_image = values.delta.shape[1] == 1
        if values.delta.is_cuda and available.TRITON and one_image and rows > FEW:
            return triton_search.outer(values.weight, values.delta[:, 0], values.inputs[:, 0], bits)
        values = values.dense()
    flat = values.reshape(rows, -1)
    return torch.nn.functional.pad(flat, (0, bits - flat.shape[1])) if flat.shape[1] < bits else flat


def add_inner(query: Tensor, block: Tensor, out: Tensor) -> None:
    """out [r, tasks] += query [r, bits] · masks, given as bytes [bits / 8, tasks]."""
    few = len(query) <= FEW
    if query.is_cuda and available.TRITON:
        if few:
            triton_search.add_inner_few(query, block, out)
        else:
            triton_search.add_inner_many(query, block, out)
    elif not query.is_cuda and few and available.NUMBA:
        numba_search.add_inner(query, block, out)
    else:
        plain_inner(query, block, out)


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


def add_inner_at(query: Tensor, coordinates: Tensor, block: Tensor, out: Tensor) -> None:
    """out [tasks] += Σ over the coordinates alone of query [bits] · masks, given as bytes [bits / 8, tasks]."""
    if not query.is_cuda and available.NUMBA:
        numba_search.add_inner_at(query, coordinates, block, out)
        return
    bits = (block[coordinates >> 3] >> (coordinates & 7).to(torch.uint8)[:, None]) & 1
    out += query[coordinates] @ bits.to(query.dtype)


def inner_columns(query: Tensor, block: Tensor, columns: Tensor) -> Tensor:
    """The exact inner products of a query [bits] with some of the masks: [columns]."""
    if not query.is_cuda and available.NUMBA:
        return numba_search.inner_columns(query, block, columns)
    out = torch.zeros(1, len(columns), device=query.device)
    plain_inner(query[None], block[:, columns], out)
    return out[0]


def plain_inner(query: Tensor, block: Tensor, out: Tensor) -> None:
    """The same with torch operations alone."""
    shifts = torch.arange(8, dtype=torch.uint8, device=block.device)[:, None]
    step = max(1, _UNPACKED // (8 * max(1, block.shape[1])))
    for start in range(0, len(block), step):
        piece = block[start : start + step]
        bits = ((piece[:, None, :] >> shifts) & 1).flatten(0, 1).to(query.dtype)
        out += query[:, 8 * start : 8 * (start + len(piece))] @ bits
