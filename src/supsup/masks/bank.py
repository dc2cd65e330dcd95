"""All masks, one bit per weight and task, and their running sum; `inference/search` reads the bits.

The bits of all weights are stored end to end, each weight tensor padded to whole bytes. Blocks are [bytes, tasks], so
that one byte of many tasks is contiguous, as a search over tasks reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from supsup.kernels.graphs import Replays
from supsup.runtime.errors import SupSupError

Change = Callable[[], None]  # the last step of a prepared change: short, and it cannot fail

_BLOCK = 256  # tasks in a block, if they are added one by one
_BLOCKS = 4  # maximum number of blocks; more are joined, since each costs time in every search
_FIRST = 8  # tasks in the first such block; later blocks grow with the bank, so that few columns are unused
_UNPACKED = 1 << 24  # bits that may be unpacked at once
_TALLIED = 1 << 22  # bytes of masks that may be summed at once
_MOVED = 1 << 26  # bytes that may be copied at once when a mask is removed
_SUPERPOSITIONS = 16  # superpositions that are cached
# Eight bytes of 0 or 1, read as one number (lowest first), times this have byte i's bit at 56 + i: no two products of
# bits have the same position, so nothing is carried.
_INTO_ONE_BYTE = sum(1 << (56 - 7 * i) for i in range(8))


class Bank:
    """Masks for the weights of the given shapes; a mask is a mapping from weight name to a tensor of 0 and 1.

    statistics  by name, the initial values of what a task has besides its mask: running means and variances of
                normalisation layers

    `version` is a new object after every change, so that caches can tell whether they are valid. `replays` holds CUDA
    graphs that were captured with the present masks.

    Threads may read at the same time. A change is prepared (`prepare_add`, `prepare_replace`, `prepare_remove`),
    then made while nobody reads. Of two changes prepared at the same time only one may be made.
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
        each = sum(value.numel() for value in self._fresh.values())
        self._statistics = torch.empty(0, each, device=device)  # [k, end to end]
        self.spans: dict[str, tuple[int, int]] = {}  # the bytes of each weight
        self.length = 0  # bytes of one mask
        for name, shape in self.shapes.items():
            start, self.length = self.length, self.length + -(-shape.numel() // 8)
            self.spans[name] = (start, self.length)
        self._blocks: list[Tensor] = []
        self._mapped = 0  # number of blocks at the start that are mapped from disk and never change
        self._count = 0
        self._sum = torch.zeros(8 * self.length, dtype=torch.int32, device=device)  # number of masks with each bit set
        self.version = object()
        self.replays = Replays()
        self._mean: dict[str, Tensor] | None = None
        self._superpositions: dict[bytes, dict[str, Tensor]] = {}  # by the bytes of the coefficients

    def __len__(self) -> int:
        return self._count

    @property
    def memory(self) -> int:
        """Bytes held, the running sum and statistics included."""
        return sum(b.numel() for b in self._blocks[self._mapped :]) + 4 * (self._sum.numel() + self._statistics.numel())

    def map_block(self, packed: Tensor, kept: Tensor, statistics: Mapping[str, Tensor]) -> None:
        """Add masks [bytes, tasks] that stay on disk; `kept` is the number of masks with each bit set.

        Only before other masks are added.
        """
        assert len(self._blocks) == self._mapped
        stacked = self._with_statistics(packed.shape[1], statistics)
        self._changed()
        self._statistics, self._sum = stacked, self._sum + kept
        self._blocks, self._mapped = [*self._blocks, packed], self._mapped + 1
        self._count += packed.shape[1]

    def reserve(self, count: int) -> None:
        """Reserve room for more masks, so that adding them copies no block."""
        if count > 0:
            self._blocks = [*self._blocks, torch.zeros(self.length, count, dtype=torch.uint8, device=self.device)]

    def add(self, mask: Mapping[str, Tensor]) -> None:
        """Append a mask, with its statistics if it has any."""
        statistics = {name: mask.get(name, fresh)[None] for name, fresh in self._fresh.items()}
        self.add_packed(self.pack(mask)[:, None], statistics)

    def add_packed(self, columns: Tensor, statistics: Mapping[str, Tensor] | None = None) -> None:
        """Append masks as bytes [bytes, tasks], each column as from `packed`, and their statistics [tasks, …]."""
        self.prepare_add(columns, statistics)()

    def prepare_add(self, columns: Tensor, statistics: Mapping[str, Tensor] | None = None) -> Change:
        """Prepare `add_packed`: masks are written to columns that nobody reads before the change is made."""
        columns, count = columns.to(self.device), self._count + columns.shape[1]
        stacked = self._with_statistics(columns.shape[1], statistics)
        blocks = list(self._blocks)
        unused = sum(block.shape[1] for block in blocks) - self._count
        if unused < columns.shape[1]:
            if len(blocks) == self._mapped + _BLOCKS:
                blocks = [*blocks[: self._mapped], torch.cat(blocks[self._mapped :], 1)]
            width = max(columns.shape[1] - unused, min(_BLOCK, max(_FIRST, self._count)))
            blocks.append(torch.zeros(self.length, width, dtype=torch.uint8, device=self.device))
        total = self._sum.clone()
        tally(total, columns, sign=1)
        start = 0
        for block in blocks:
            first = max(0, self._count - start)
            taken = min(block.shape[1] - first, columns.shape[1])
            if taken > 0:
                block[:, first : first + taken] = columns[:, :taken]
                columns = columns[:, taken:]
            start += block.shape[1]

        def change() -> None:
            self._changed()
            self._blocks, self._count, self._sum, self._statistics = blocks, count, total, stacked

        return change

    def _with_statistics(self, tasks: int, statistics: Mapping[str, Tensor] | None) -> Tensor:
        """The statistics of all tasks and of more [tasks, …] by name, the initial ones by default: [k + tasks, n]."""
        more = [self._statistics.new_empty(tasks, 0)]
        for name, fresh in self._fresh.items():
            given = statistics[name] if statistics else fresh.expand(tasks, *fresh.shape)
            more.append(given.flatten(1).to(self.device, torch.float32))
        return torch.cat([self._statistics, torch.cat(more, 1)])

    def prepare_replace(self, index: int, mask: Mapping[str, Tensor]) -> Change:
        """Prepare to overwrite a mask, and its statistics if given."""
        self._check_in_memory(index)
        column, packed, total = self.column(index), self.pack(mask), self._sum.clone()
        tally(total, packed[:, None], sign=1)
        tally(total, column[:, None], sign=-1)
        row = self._statistics[index].clone()
        for name, value in self._by_name(row).items():
            if name in mask:
                value.copy_(mask[name])

        def change() -> None:
            self._changed()
            column.copy_(packed)
            self._statistics[index].copy_(row)
            self._sum = total

        return change

    def prepare_remove(self, index: int) -> Change:
        """Prepare to remove a mask: its bits are overwritten, and the indices of later masks decrease by one.

        Making the change allocates no memory.
        """
        self._check_in_memory(index)
        total = self._sum.clone()
        tally(total, self.column(index)[:, None], sign=-1)
        kept = torch.cat([self._statistics[:index], self._statistics[index + 1 :]])
        full = sum(block.shape[1] for block in self._blocks[:-1])
        blocks = self._blocks[:-1] if self._count - 1 <= full else self._blocks
        buffer = self._blocks[0].new_empty(min(_MOVED, max(block.numel() for block in self._blocks)))

        def change() -> None:
            self._changed()
            start = 0
            for block, following in zip(self._blocks, [*self._blocks[1:], None]):
                if index < start + block.shape[1]:
                    _move_up(block, max(0, index - start), None if following is None else following[:, 0], buffer)
                start += block.shape[1]
            self._blocks, self._count, self._sum, self._statistics = blocks, self._count - 1, total, kept

        return change

    def pack(self, mask: Mapping[str, Tensor]) -> Tensor:
        """A mask as bytes: eight weights in each, the first one lowest, every weight tensor padded to whole bytes."""
        return pack_columns({name: mask[name].to(self.device)[None] for name in self.shapes})[:, 0]

    def packed(self, index: int) -> Tensor:
        """The bytes of one mask, a copy."""
        return self.column(index).clone()

    def column(self, index: int) -> Tensor:
        """A view of the bytes of one mask, with a stride; not to be changed."""
        if not 0 <= index < self._count:
            raise IndexError(f"mask {index} of {self._count}")
        for block in self._blocks:
            if index < block.shape[1]:
                return block[:, index]
            index -= block.shape[1]
        raise AssertionError("the blocks hold fewer masks than were counted")

    def mask(self, index: int) -> dict[str, Tensor]:
        """One mask as booleans."""
        return {name: self.bits(index, name) for name in self.shapes}

    def bits(self, index: int, name: str) -> Tensor:
        """One mask of one weight as booleans."""
        start, stop = self.spans[name]
        shape = self.shapes[name]
        return unpacked(self.column(index)[start:stop, None]).flatten()[: shape.numel()].view(shape)

    def statistics(self, index: int) -> dict[str, Tensor]:
        """The statistics of one task."""
        return self._by_name(self.flat_statistics(index))

    def own_statistics(self, index: int) -> dict[str, Tensor]:
        """The same; none if all are the initial ones."""
        found = self.statistics(index)
        same = all(torch.equal(found[name], fresh) for name, fresh in self._fresh.items())
        return {} if same else found

    def flat_statistics(self, index: int) -> Tensor:
        """The statistics of one task end to end; not to be changed."""
        return self._statistics[index]

    def subnetwork(self, index: int) -> dict[str, Tensor]:
        """The mask and the statistics of one task."""
        return self.mask(index) | self.statistics(index)

    def mean(self) -> dict[str, Tensor]:
        """The mean of all masks, from their running sum, and of their statistics; not to be changed."""
        mean = self._mean
        if mean is None:
            mean = split_by_name(self._sum / self._count, self.shapes, 8) | self._by_name(self._statistics.mean(0))
            self._mean = mean
        return mean

    def weighted(self, alpha: Tensor) -> dict[str, Tensor]:
        """Σ αᵢ Mⁱ for coefficients [k], and of the statistics; tasks whose coefficient is 0 are not read."""
        total = torch.zeros(8 * self.length, device=self.device)
        blocks = list(self.blocks())
        for block, coefficients in zip(blocks, alpha.split([block.shape[1] for block in blocks])):
            used = coefficients.nonzero().flatten()
            if len(used):
                for rows, bits in unpacked_pieces(block if len(used) == len(coefficients) else block[:, used]):
                    total[rows] += bits.float() @ coefficients[used]
        return split_by_name(total, self.shapes, 8) | self._by_name(alpha @ self._statistics)

    def superposition(self, alpha: Tensor | None) -> dict[str, Tensor]:
        """`weighted`, or `mean` for None, cached for a few coefficients; not to be changed.

        Batches of one stream mostly lead to the same coefficients.
        """
        if alpha is None:
            return self.mean()
        key = alpha.cpu().numpy().tobytes()
        superposed = self._superpositions.get(key)
        if superposed is None:
            superposed = self.weighted(alpha)
            for oldest in list(self._superpositions)[: max(0, len(self._superpositions) - _SUPERPOSITIONS + 1)]:
                self._superpositions.pop(oldest, None)  # another thread may have removed it
            self._superpositions[key] = superposed
        return superposed

    def blocks(self) -> Iterator[Tensor]:
        """The masks as bytes [bytes, tasks], in order, block by block, without the unused columns."""
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
        """A new bank with copies of these masks, in this order."""
        chosen = Bank(self.shapes, self.device, self._fresh)
        for index in members:
            chosen.add_packed(self.packed(index)[:, None], self._by_name(self.flat_statistics(index)[None]))
        return chosen

    def _by_name(self, statistics: Tensor) -> dict[str, Tensor]:
        """Statistics end to end [*, n] by name."""
        return split_by_name(statistics, {name: fresh.shape for name, fresh in self._fresh.items()})

    def _check_in_memory(self, index: int) -> None:
        if index < sum(block.shape[1] for block in self._blocks[: self._mapped]):
            raise SupSupError('masks on disk cannot change: to forget or observe, load with masks="memory"')

    def _changed(self) -> None:
        """Drop everything computed from the earlier masks."""
        self.version = object()
        self._mean = None
        self._superpositions.clear()
        self.replays.clear()


def pack_columns(masks: Mapping[str, Tensor]) -> Tensor:
    """Masks [tasks, *shape] of each weight to bytes [bytes, tasks]."""
    bits = end_to_end({name: bits.bool() for name, bits in masks.items()})
    return ((bits.view(torch.int64) * _INTO_ONE_BYTE) >> 56).to(torch.uint8).T.contiguous()  # one product for each byte


def end_to_end(values: Mapping[str, Tensor]) -> Tensor:
    """Values [tasks, *shape] of each weight as [tasks, bits], each weight padded to whole bytes."""
    flat = [each.flatten(1) for each in values.values()]
    return torch.cat([pad(each, (0, -each.shape[1] % 8)) if each.shape[1] % 8 else each for each in flat], 1)


def split_by_name(flat: Tensor, shapes: Mapping[str, torch.Size], padded: int = 1) -> dict[str, Tensor]:
    """Tensors end to end [*, n], each padded to a multiple, as one tensor [*, *shape] for each name; not copied."""
    sizes = [-(-shape.numel() // padded) * padded for shape in shapes.values()]
    parts = zip(shapes.items(), flat.split(sizes, -1) if sizes else ())
    return {name: part[..., : shape.numel()].unflatten(-1, shape) for (name, shape), part in parts}


def unpacked(packed: Tensor) -> Tensor:
    """Bytes [b, tasks] to booleans [8b, tasks]."""
    shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed[:, None, :] >> shifts[:, None]) & 1).flatten(0, 1).bool()


def _move_up(block: Tensor, index: int, following: Tensor | None, buffer: Tensor) -> None:
    """Delete a column of a block: later columns move by one, and `following` (None: 0) becomes the last."""
    columns = block.shape[1] - index - 1
    step = max(1, _MOVED // block.shape[1])
    for start in range(0, block.shape[0] if columns else 0, step):
        piece = block[start : start + step]
        moved = buffer[: len(piece) * columns].view(len(piece), columns)
        moved.copy_(piece[:, index + 1 :])
        piece[:, index:-1].copy_(moved)
    if following is None:
        block[:, -1].zero_()
    else:
        block[:, -1].copy_(following)


def tally(total: Tensor, columns: Tensor, sign: int) -> None:
    """Add the masks in these columns to a sum of masks, or subtract them."""
    step = max(1, _TALLIED // max(1, columns.shape[1]))
    for start in range(0, columns.shape[0], step):
        piece = columns[start : start + step]
        rows = slice(8 * start, 8 * (start + len(piece)))
        for power, digit in enumerate(_binary_digits(piece)):
            total[rows].add_(unpacked(digit).flatten().view(torch.uint8), alpha=sign << power)


def _binary_digits(packed: Tensor) -> Iterator[Tensor]:
    """The number of masks [bytes, tasks] with each bit set, as packed binary digits [bytes, 1], the lowest first.

    Adders work on whole bytes: three columns of a digit become one of it and one of the next, two a last one.
    """
    while packed.shape[1]:
        carried = []
        while (count := packed.shape[1]) > 1:
            third = max(1, count // 3)
            a, b, rest = packed[:, :third], packed[:, third : 2 * third], packed[:, 2 * third :]
            either, both = a ^ b, a & b
            if count == 2:
                packed, carry = either, both
            else:
                c, rest = rest[:, :third], rest[:, third:]
                packed, carry = torch.cat([either ^ c, rest], 1), both | (either & c)
            carried.append(carry)
        yield packed
        packed = torch.cat(carried, 1) if carried else packed[:, :0]


def unpacked_pieces(block: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Bytes [b, tasks] as booleans, a bounded number at a time: (slice of the bits, [bits, tasks])."""
    step = max(1, _UNPACKED // (8 * max(1, block.shape[1])))
    for start in range(0, block.shape[0], step):
        piece = block[start : start + step]
        yield slice(8 * start, 8 * (start + len(piece))), unpacked(piece)
