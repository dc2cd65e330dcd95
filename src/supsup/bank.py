"""All masks, one bit per weight and task, with their running sum; sums and inner products are taken from the bits.

Bits of all weights are laid end to end (each weight tensor padded to whole bytes). Masks sit side by side in blocks of
[bytes, tasks], so that one byte of many tasks is contiguous: what a search over tasks reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from supsup import search

_BLOCK = 256  # tasks in a block of those that are added one by one
_BLOCKS = 4  # blocks at most; then they are joined, since every search pays for each of them
_FIRST = 8  # tasks in the first such block; later ones grow with the bank, so that little stands empty
_CANDIDATES = 4  # masks among which the exact inner product decides after a search from few coordinates
_FAR_AHEAD = 6  # standard deviations
_UNPACKED = 1 << 24  # how many bits may be unpacked at once on a CPU
# Eight bytes of 0 or 1, read as one number x (lowest first), times this have byte i's bit at 56 + i: every product of
# two bits lands on a place of its own, so nothing is carried.
_INTO_ONE_BYTE = sum(1 << (56 - 7 * i) for i in range(8))


class Bank:
    """Masks for the weights of the given shapes; a mask is a mapping from weight name to a tensor of 0 and 1.

    statistics  what a task has besides its mask (running means and variances of normalisation layers): names with the
                values of a task that is given none
    """

    def __init__(
        self,
        shapes: Mapping[str, torch.Size],
        device: torch.device | str = "cpu",
        statistics: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.shapes = dict(shapes)
        self.device = torch.device(device)
        self._fresh = {name: value.to(device) for name, value in (statistics or {}).items()}
        self._statistics = torch.empty(
            0, sum(v.numel() for v in self._fresh.values()), device=device
        )  # [k, end to end]
        self.spans: dict[str, tuple[int, int]] = {}  # the bytes of each weight
        start = 0
        for name, shape in self.shapes.items():
            stop = start + -(-shape.numel() // 8)
            self.spans[name] = (start, stop)
            start = stop
        self._bytes = start
        self._blocks: list[Tensor] = []
        self._count = 0
        self._sum = torch.zeros(8 * self._bytes, dtype=torch.int32, device=device)  # how many masks have each bit
        self._joins = self.device.type == "cuda"  # neighbouring layers are searched at once: there launches cost most
        self._mean: dict[str, Tensor] | None = None
        self.kept: dict[Any, Any] = {}  # whatever is worth keeping until a mask changes

    def __len__(self) -> int:
        return self._count

    @property
    def memory(self) -> int:
        """Bytes held, the running sum and statistics included."""
        return sum(b.numel() for b in self._blocks) + 4 * (self._sum.numel() + self._statistics.numel())

    def add(self, mask: Mapping[str, Tensor]) -> None:
        """One more mask, with its statistics if it has any, at index len(bank)."""
        statistics = {name: mask.get(name, fresh)[None] for name, fresh in self._fresh.items()}
        self.add_packed(self.pack(mask)[:, None], statistics)

    def add_packed(self, columns: Tensor, statistics: Mapping[str, Tensor] | None = None) -> None:
        """More masks as bytes [bytes, tasks], each column as `packed` gives it, and their statistics [tasks, …]."""
        columns = columns.to(self.device)
        more = [self._statistics.new_empty(columns.shape[1], 0)]
        for name, fresh in self._fresh.items():
            given = statistics[name] if statistics else fresh.expand(columns.shape[1], *fresh.shape)
            more.append(given.flatten(1).to(self.device, torch.float32))
        self._statistics = torch.cat([self._statistics, torch.cat(more, 1)])
        room = sum(block.shape[1] for block in self._blocks) - self._count
        if room < columns.shape[1]:
            if len(self._blocks) == _BLOCKS:
                self._blocks = [torch.cat(self._blocks, 1)]
            width = max(columns.shape[1] - room, min(_BLOCK, max(_FIRST, self._count)))
            self._blocks.append(torch.zeros(self._bytes, width, dtype=torch.uint8, device=self.device))
        start = 0
        for block in self._blocks:
            first = max(0, self._count - start)
            taken = min(block.shape[1] - first, columns.shape[1])
            if taken > 0:
                block[:, first : first + taken] = columns[:, :taken]
                self._count += taken
                columns = columns[:, taken:]
                self._tally(block[:, first : first + taken], sign=1)
            start += block.shape[1]

    def replace(self, index: int, mask: Mapping[str, Tensor]) -> None:
        """Put another mask, and statistics if it has any, in the place of one."""
        for name, value in self.statistics(index).items():
            if name in mask:
                value.copy_(mask[name])
        column, bits = self.column(index), self._flat_bits(mask)
        self._changed()
        self._sum.add_(bits[0].view(torch.uint8)).sub_(_unpack(column[:, None]).flatten().view(torch.uint8))
        column.copy_(_packed(bits)[0])

    def remove(self, index: int) -> None:
        """Take a mask out; the later ones move up by one and its bits are overwritten."""
        self._tally(self.column(index)[:, None], sign=-1)
        for later in range(index, self._count - 1):
            self.column(later).copy_(self.column(later + 1))
        self.column(self._count - 1).zero_()
        self._count -= 1
        self._statistics = torch.cat([self._statistics[:index], self._statistics[index + 1 :]])
        if self._count <= sum(block.shape[1] for block in self._blocks[:-1]):
            self._blocks.pop()

    def pack(self, mask: Mapping[str, Tensor]) -> Tensor:
        """A mask as bytes: eight weights in each, the first one lowest, every weight tensor padded to whole bytes."""
        return _packed(self._flat_bits(mask))[0]

    def _flat_bits(self, mask: Mapping[str, Tensor]) -> Tensor:
        """One mask as booleans end to end, [1, bits]."""
        return _end_to_end({name: mask[name].to(self.device)[None] for name in self.shapes})

    def packed(self, index: int) -> Tensor:
        """The bytes of one mask, a copy."""
        return self.column(index).clone()

    def column(self, index: int) -> Tensor:
        """The bytes of one mask where they lie, a stride apart; not to be written to."""
        if not 0 <= index < self._count:
            raise IndexError(f"mask {index} of {self._count}")
        for block in self._blocks:
            if index < block.shape[1]:
                return block[:, index]
            index -= block.shape[1]
        raise AssertionError("the blocks hold fewer masks than were counted")

    def mask(self, index: int) -> dict[str, Tensor]:
        """One mask as booleans."""
        return {name: self._bits(index, name) for name in self.shapes}

    def statistics(self, index: int) -> dict[str, Tensor]:
        """The statistics of one task."""
        return self._by_name(self.flat_statistics(index))

    def flat_statistics(self, index: int) -> Tensor:
        """The statistics of one task end to end; not to be written to."""
        return self._statistics[index]

    def subnetwork(self, index: int) -> dict[str, Tensor]:
        """All that makes one task's network of the frozen one: its mask and its statistics."""
        return self.mask(index) | self.statistics(index)

    def mean(self) -> dict[str, Tensor]:
        """The mean of all masks, from their running sum, and of their statistics; not to be written to."""
        if self._mean is None:
            self._mean = self._by_weight(self._sum / self._count) | self._by_name(self._statistics.mean(0))
        return self._mean

    def weighted(self, alpha: Tensor) -> dict[str, Tensor]:
        """Σ αᵢ Mⁱ for coefficients [k], and of the statistics; tasks whose coefficient is 0 are not read."""
        total = torch.zeros(8 * self._bytes, device=self.device)
        for tasks, block in self._members(alpha.nonzero().flatten()):
            for rows, bits in _pieces(block):
                total[rows] += bits.float() @ alpha[tasks]
        return self._by_weight(total) | self._by_name(alpha @ self._statistics)

    def nearest(self, query: search.Query, coordinates: int, members: Tensor) -> Tensor:
        """For each row the member with the largest inner product, found from few coordinates of the query: [r].

        The `coordinates` largest in size rank all masks. Where the first is not far ahead of the second, by what the
        other coordinates could add to a random mask, the exact inner product decides among the best few.
        """
        flat = self._flat(query)
        excluded = torch.ones(self._count, dtype=torch.bool, device=self.device).index_fill_(0, members, False)
        out = []
        for row in flat:
            chosen = search.top_coordinates(row, coordinates)
            scores = torch.zeros(self._count, device=self.device)
            first = 0
            for block in self.blocks():
                search.add_inner_at(row, chosen, block, scores[first : first + block.shape[1]])
                first += block.shape[1]
            best = scores.masked_fill_(excluded, -torch.inf).topk(min(_CANDIDATES, len(members)))
            spread = (0.5 * (row.square().sum() - row[chosen].square().sum())).clamp(min=0).sqrt()
            ahead = bool(best.values[0] - best.values[1] > _FAR_AHEAD * spread)
            winner = 0 if ahead else self._inner_with(row, best.indices, query).argmax()
            out.append(best.indices[winner])
        return torch.stack(out)

    def bytes_read(self, layers: Sequence[str], coordinates: int | None = None) -> int:
        """What a search for one query reads of the masks, in bytes: over these weights, or from few coordinates."""
        if coordinates is None:
            return self._count * sum(stop - start for start, stop in (self.spans[name] for name in layers))
        return self._count * coordinates + min(_CANDIDATES, self._count) * self._bytes

    def _flat(self, query: search.Query) -> Tensor:
        """A query over all bits of a mask, 0 where it names no weight: [r, bits]."""
        rows = next(iter(query.values())).shape[0]
        flat = torch.zeros(rows, 8 * self._bytes, device=self.device)
        for name, values in query.items():
            dense = values.dense() if isinstance(values, search.Outer) else values
            start = 8 * self.spans[name][0]
            flat[:, start : start + self.shapes[name].numel()] = dense.reshape(rows, -1)
        return flat

    def _inner_with(self, row: Tensor, members: Tensor, layers: Iterable[str]) -> Tensor:
        """Exact inner products of one flat query, which is 0 beyond these weights, with some masks, in their order."""
        start = min(self.spans[name][0] for name in layers)
        stop = max(self.spans[name][1] for name in layers)
        row = row[8 * start : 8 * stop]
        out, first = torch.zeros(len(members), device=self.device), 0
        wanted = members.tolist()
        for block in self.blocks():
            here = [i for i, index in enumerate(wanted) if first <= index < first + block.shape[1]]
            if here:
                out[here] = search.inner_columns(row, block[start:stop], members[here] - first)
            first += block.shape[1]
        return out

    def inner(self, query: search.Query) -> Tensor:
        """⟨query, Mⁱ⟩ summed over the weights the query names: [r, *shape] each in, [r, k] out."""
        rows = next(iter(query.values())).shape[0]
        out = torch.zeros(rows, self._count, device=self.device)
        pieces: list[tuple[slice, list[Tensor]]] = []  # of the bytes, with the query over their bits
        for name, values in query.items():
            if isinstance(values, search.Outer) and rows > search.FEW and self.device.type == "cpu":
                for index in range(self._count):
                    out[:, index] += values.inner(self._bits(index, name))
                continue
            span = slice(*self.spans[name])
            flat = search.flattened(values, 8 * (span.stop - span.start))
            if self._joins and rows <= search.FEW and pieces and pieces[-1][0].stop == span.start:
                before, parts = pieces.pop()
                pieces.append((slice(before.start, span.stop), [*parts, flat]))
            else:
                pieces.append((span, [flat]))
        for span, parts in pieces:
            flat, first = parts[0] if len(parts) == 1 else torch.cat(parts, 1), 0
            for block in self.blocks():
                search.add_inner(flat, block[span], out[:, first : first + block.shape[1]])
                first += block.shape[1]
        return out

    def blocks(self) -> Iterator[Tensor]:
        """The masks as bytes [bytes, tasks], in order, block by block, without what stands empty."""
        left = self._count
        for block in self._blocks:
            yield block[:, : max(0, left)]
            left -= block.shape[1]

    def to(self, device: torch.device) -> Bank:
        """A copy on a device."""
        copy, first = Bank(self.shapes, device, self._fresh), 0
        for block in self.blocks():
            last = first + block.shape[1]
            copy.add_packed(block, self._by_name(self._statistics[first:last]))
            first = last
        return copy

    def subset(self, members: Sequence[int]) -> Bank:
        """A bank of its own with these masks in this order."""
        chosen = Bank(self.shapes, self.device, self._fresh)
        for index in members:
            chosen.add_packed(self.packed(index)[:, None], self._by_name(self.flat_statistics(index)[None]))
        return chosen

    def _by_name(self, statistics: Tensor) -> dict[str, Tensor]:
        """Statistics end to end [*, n] as one tensor [*, …] for each name, without copying."""
        pieces = statistics.split([fresh.numel() for fresh in self._fresh.values()], -1) if self._fresh else ()
        return {name: piece.unflatten(-1, fresh.shape) for (name, fresh), piece in zip(self._fresh.items(), pieces)}

    def _by_weight(self, flat: Tensor) -> dict[str, Tensor]:
        """Numbers for all bits end to end as one tensor for each weight, without copying."""
        starts = {name: 8 * start for name, (start, _) in self.spans.items()}
        return {name: flat[starts[name] :][: shape.numel()].view(shape) for name, shape in self.shapes.items()}

    def _bits(self, index: int, name: str) -> Tensor:
        start, stop = self.spans[name]
        shape = self.shapes[name]
        return _unpack(self.column(index)[start:stop, None]).flatten()[: shape.numel()].view(shape)

    def _changed(self) -> None:
        """Let go of what was made from the masks as they were."""
        self._mean = None
        self.kept.clear()

    def _tally(self, columns: Tensor, sign: int) -> None:
        """Add the masks in these columns to the running sum, or take them away."""
        self._changed()
        for rows, bits in _pieces(columns):
            self._sum[rows].add_(bits.sum(1, dtype=torch.int32), alpha=sign)

    def _members(self, members: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """(task indices, their bytes [bytes, tasks]) block by block; a whole block is not copied."""
        start = 0
        for block in self._blocks:
            here = members[(members >= start) & (members < start + block.shape[1])]
            if len(here) == block.shape[1]:
                yield here, block
            elif len(here):
                yield here, block[:, here - start]
            start += block.shape[1]


def pack_columns(masks: Mapping[str, Tensor]) -> Tensor:
    """Masks [tasks, *shape] of each weight to bytes [bytes, tasks]."""
    return _packed(_end_to_end(masks)).T.contiguous()


def _end_to_end(masks: Mapping[str, Tensor]) -> Tensor:
    """Masks [tasks, *shape] of each weight as booleans [tasks, bits], each weight padded to whole bytes."""
    flat = [bits.flatten(1).bool() for bits in masks.values()]
    return torch.cat([pad(bits, (0, -bits.shape[1] % 8)) if bits.shape[1] % 8 else bits for bits in flat], 1)


def _packed(bits: Tensor) -> Tensor:
    """Booleans [tasks, bits] to bytes [tasks, bits / 8], by one product for all eight of a byte."""
    return ((bits.view(torch.int64) * _INTO_ONE_BYTE) >> 56).to(torch.uint8)


def _unpack(packed: Tensor) -> Tensor:
    """Bytes [b, tasks] to booleans [8b, tasks]."""
    shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed[:, None, :] >> shifts[:, None]) & 1).flatten(0, 1).bool()


def _pieces(block: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Bytes [b, tasks] as booleans, a bounded number at a time: (slice of the bits, [bits, tasks])."""
    step = max(1, _UNPACKED // (8 * max(1, block.shape[1])))
    for start in range(0, block.shape[0], step):
        piece = block[start : start + step]
        yield slice(8 * start, 8 * (start + len(piece))), _unpack(piece)
