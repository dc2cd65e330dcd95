"""All masks, one bit per weight and task, with their running sum; sums and inner products are taken from the bits.

Bits of all weights are laid end to end (each weight padded to whole bytes). Masks sit side by side in blocks of
[bytes, tasks], so that one byte of many tasks is contiguous: what a search over tasks reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

_BLOCK = 256  # tasks in a full block
_FIRST = 8  # tasks in the first block; later ones grow with the bank, so that little stands empty
_UNPACKED = 1 << 24  # how many bits may be unpacked to floats at once


class Bank:
    """Masks for the weights of the given shapes; a mask is a mapping from weight name to a tensor of 0 and 1."""

    def __init__(self, shapes: Mapping[str, torch.Size], device: torch.device | str = "cpu") -> None:
        self.shapes = dict(shapes)
        self.device = torch.device(device)
        self._spans: dict[str, tuple[int, int]] = {}
        start = 0
        for name, shape in self.shapes.items():
            stop = start + -(-shape.numel() // 8)
            self._spans[name] = (start, stop)
            start = stop
        self._bytes = start
        self._blocks: list[Tensor] = []
        self._count = 0
        self._sum = {name: torch.zeros(shape, dtype=torch.int32, device=device) for name, shape in self.shapes.items()}

    def __len__(self) -> int:
        return self._count

    @property
    def memory(self) -> int:
        """Bytes held, the running sum included."""
        return sum(b.numel() for b in self._blocks) + sum(4 * s.numel() for s in self._sum.values())

    def add(self, mask: Mapping[str, Tensor]) -> None:
        """One more mask, at index len(bank)."""
        self.add_packed(self.pack(mask)[:, None])

    def add_packed(self, columns: Tensor) -> None:
        """More masks as bytes [bytes, tasks], each column as `packed` gives it."""
        for packed in columns.T:
            if self._count == sum(block.shape[1] for block in self._blocks):
                width = min(_BLOCK, max(_FIRST, self._count))
                self._blocks.append(torch.zeros(self._bytes, width, dtype=torch.uint8, device=self.device))
            self._count += 1
            self._column(self._count - 1).copy_(packed)
            self._tally(self.mask(self._count - 1), sign=1)

    def pack(self, mask: Mapping[str, Tensor]) -> Tensor:
        """A mask as bytes: eight weights in each, the first one lowest, every weight tensor padded to whole bytes."""
        return torch.cat([_pack(mask[name].to(self.device).flatten() > 0) for name in self.shapes])

    def packed(self, index: int) -> Tensor:
        """The bytes of one mask, a copy."""
        return self._column(index).clone()

    def replace(self, index: int, mask: Mapping[str, Tensor]) -> None:
        """Put another mask in the place of one."""
        self._tally(self.mask(index), sign=-1)
        self._column(index).copy_(self.pack(mask))
        self._tally(mask, sign=1)

    def remove(self, index: int) -> None:
        """Take a mask out; the later ones move up by one and its bits are overwritten."""
        self._tally(self.mask(index), sign=-1)
        for later in range(index, self._count - 1):
            self._column(later).copy_(self._column(later + 1))
        self._column(self._count - 1).zero_()
        self._count -= 1
        if self._blocks and self._count <= sum(block.shape[1] for block in self._blocks[:-1]):
            self._blocks.pop()

    def mask(self, index: int) -> dict[str, Tensor]:
        """One mask as booleans."""
        column = self._column(index)
        return {
            name: _unpack(column[start:stop, None]).flatten()[: self.shapes[name].numel()].view(self.shapes[name])
            for name, (start, stop) in self._spans.items()
        }

    def mean(self) -> dict[str, Tensor]:
        """The mean of all masks, from their running sum."""
        return {name: total.float() / self._count for name, total in self._sum.items()}

    def weighted(self, alpha: Tensor) -> dict[str, Tensor]:
        """Σ αᵢ Mⁱ for coefficients [k]; tasks whose coefficient is 0 are not read."""
        totals = {}
        for name, (start, stop) in self._spans.items():
            flat = torch.zeros((stop - start) * 8, device=self.device)
            for tasks, block in self._members(alpha.nonzero().flatten()):
                for rows, bits in _floats(block[start:stop]):
                    flat[rows] += bits @ alpha[tasks]
            totals[name] = flat[: self.shapes[name].numel()].view(self.shapes[name])
        return totals

    def inner(self, query: Mapping[str, Tensor]) -> Tensor:
        """⟨query, Mⁱ⟩ summed over the weights the query names: [r, *shape] each in, [r, k] out."""
        rows = next(iter(query.values())).shape[0]
        out = torch.zeros(rows, self._count, device=self.device)
        for name, values in query.items():
            start, stop = self._spans[name]
            flat = values.reshape(rows, -1)
            if padding := (stop - start) * 8 - flat.shape[1]:
                flat = torch.nn.functional.pad(flat, (0, padding))
            for tasks, block in self._members(torch.arange(self._count, device=self.device)):
                for span, bits in _floats(block[start:stop]):
                    out[:, tasks] += flat[:, span] @ bits
        return out

    def subset(self, members: Sequence[int]) -> Bank:
        """A bank of its own with these masks in this order."""
        chosen = Bank(self.shapes, self.device)
        for index in members:
            chosen.add_packed(self.packed(index)[:, None])
        return chosen

    def _tally(self, mask: Mapping[str, Tensor], sign: int) -> None:
        for name, total in self._sum.items():
            total.add_((mask[name].to(self.device) > 0).to(torch.int32), alpha=sign)

    def _column(self, index: int) -> Tensor:
        if not 0 <= index < self._count:
            raise IndexError(f"mask {index} of {self._count}")
        for block in self._blocks:
            if index < block.shape[1]:
                return block[:, index]
            index -= block.shape[1]
        raise AssertionError("the blocks hold fewer masks than were counted")

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


def _pack(bits: Tensor) -> Tensor:
    """Booleans [n] to bytes [⌈n/8⌉], the first bit lowest."""
    padded = torch.nn.functional.pad(bits.to(torch.uint8), (0, -len(bits) % 8)).view(-1, 8)
    return (padded << _shifts(bits.device)).sum(1, dtype=torch.uint8)


def _unpack(packed: Tensor) -> Tensor:
    """Bytes [b, tasks] to booleans [8b, tasks]."""
    return ((packed[:, None, :] >> _shifts(packed.device)[:, None]) & 1).flatten(0, 1).bool()


def _shifts(device: torch.device) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)


def _floats(block: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Bytes [b, tasks] as float bits, a bounded number at a time: (slice of the bits, [bits, tasks])."""
    step = max(1, _UNPACKED // (8 * block.shape[1]))
    for start in range(0, block.shape[0], step):
        piece = block[start : start + step]
        yield slice(8 * start, 8 * (start + len(piece))), _unpack(piece).float()
