"""The bank against a plain list of masks: whatever is added, replaced and removed, the bits and sums agree."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.overrides import TorchFunctionMode

from supsup import SupSupError
from supsup.masks import bank as bank_module
from supsup.masks.bank import Bank, tally

SHAPES = {"a": torch.Size([3, 5]), "b": torch.Size([4, 2, 3]), "c": torch.Size([1, 1])}


def random_mask(generator: torch.Generator) -> dict[str, Tensor]:
    return {name: torch.rand(shape, generator=generator) < 0.5 for name, shape in SHAPES.items()}


@given(st.integers(0, 2**31), st.integers(1, 60))
def test_any_history_of_adding_replacing_and_removing(seed: int, moves: int) -> None:
    generator, chance = torch.Generator().manual_seed(seed), random.Random(seed)
    bank, plain = Bank(SHAPES), list[dict[str, Tensor]]()
    for _ in range(moves):
        move = chance.choice(["add", "add", "add", "replace", "remove"]) if plain else "add"
        mask, index = random_mask(generator), chance.randrange(len(plain)) if plain else 0
        if move == "add":
            bank.add(mask)
            plain.append(mask)
        elif move == "replace":
            bank.prepare_replace(index, mask)()
            plain[index] = mask
        else:
            bank.prepare_remove(index)()
            del plain[index]
    assert len(bank) == len(plain)
    copy = bank.subset(range(len(bank)))
    assert all(torch.equal(copy.packed(i), bank.pack(mask)) for i, mask in enumerate(plain))
    for index, mask in enumerate(plain):
        result = bank.mask(index)
        assert all(torch.equal(result[name], mask[name]) for name in SHAPES)
    if plain:
        for name, mean in bank.mean().items():
            assert torch.equal(mean, torch.stack([m[name] for m in plain]).sum(0).float() / len(plain))


@given(st.integers(0, 2**31), st.integers(1, 600))
def test_weighted_sums_equal_those_of_float_masks(seed: int, k: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    masks = [random_mask(generator) for _ in range(k)]
    bank = Bank(SHAPES)
    for mask in masks:
        bank.add(mask)
    alpha = torch.rand(k, generator=generator) * (torch.rand(k, generator=generator) < 0.5)
    weighted = bank.weighted(alpha)
    for name, shape in SHAPES.items():
        floats = torch.stack([m[name] for m in masks]).float()
        assert weighted[name].shape == shape
        assert torch.allclose(weighted[name], torch.einsum("k,k...->...", alpha, floats), atol=1e-4)


def test_memory_is_a_bit_per_weight_and_task() -> None:
    shapes = {"w": torch.Size([100, 800])}
    bank = Bank(shapes)
    for _ in range(1000):
        bank.add({"w": torch.ones(shapes["w"], dtype=torch.bool)})
    weights = 80_000
    assert bank.memory <= 1.3 * 1000 * weights / 8 + 8 * weights


@given(st.integers(0, 2**31), st.integers(1, 80))
def test_a_removed_mask_leaves_no_bits_behind(seed: int, k: int) -> None:
    """Memory holds the masks that remain and zeros; who forgets a task must be able to rely on it."""
    generator = torch.Generator().manual_seed(seed)
    bank = Bank(SHAPES)
    for _ in range(k):
        bank.add(random_mask(generator))
    index = random.Random(seed).randrange(k)
    blocks, remaining = list(bank._blocks), [bank.packed(i) for i in range(k) if i != index]
    bank.prepare_remove(index)()
    everything = torch.cat(blocks, 1)
    assert all(torch.equal(everything[:, i], mask) for i, mask in enumerate(remaining))
    assert not everything[:, len(remaining) :].any()


class Counted(TorchFunctionMode):
    """Counts tensor operations."""

    count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_removing_costs_no_operation_for_each_later_mask_or_byte() -> None:
    """With thousands of tasks, forgetting the first would otherwise be thousands of small copies."""
    counts = []
    for k, weights in ((10, 40), (500, 40), (10, 4000)):
        bank = Bank({"w": torch.Size([weights])})
        bank.add_packed(torch.zeros(weights // 8, k, dtype=torch.uint8))
        with Counted() as counted:
            bank.prepare_remove(0)()
        counts.append(counted.count)
    assert len(set(counts)) == 1


def test_large_blocks_move_up_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded memory: a copy of a whole block may not fit beside it."""
    monkeypatch.setattr(bank_module, "_MOVED", 20)
    bank, generator = Bank(SHAPES), torch.Generator().manual_seed(0)
    columns = torch.randint(256, (6, 9), generator=generator, dtype=torch.uint8)
    bank.add_packed(columns)
    bank.prepare_remove(4)()
    assert torch.equal(torch.cat(list(bank.blocks()), 1), torch.cat([columns[:, :4], columns[:, 5:]], 1))


@pytest.mark.parametrize(
    "change",
    [
        lambda bank, mask: bank.add(mask),
        lambda bank, mask: bank.prepare_replace(1, mask)(),
        lambda bank, mask: bank.prepare_remove(0)(),
        lambda bank, mask: bank.add_packed(bank.pack(mask)[:, None]),
    ],
)
def test_what_was_made_from_the_masks_goes_when_one_changes(change: Callable[[Bank, dict[str, Tensor]], None]) -> None:
    """A superposition or a mask left on from before would give wrong answers without a sign."""
    bank, generator = Bank(SHAPES), torch.Generator().manual_seed(0)
    for _ in range(3):
        bank.add(random_mask(generator))
    alpha = torch.tensor([0.5, 0.25, 0.25])
    version, mean, superposed = bank.version, bank.mean(), bank.superposition(alpha)
    assert bank.superposition(None) is mean
    assert bank.superposition(alpha.clone()) is superposed
    assert bank.version is version
    bank.replays._by_key["question"] = None
    change(bank, random_mask(generator))
    assert bank.version is not version
    assert not bank.replays._by_key
    again = torch.cat([alpha, torch.zeros(1)])[: len(bank)]
    for name in SHAPES:
        assert torch.equal(bank.superposition(again)[name], bank.weighted(again)[name])
        assert torch.equal(
            bank.mean()[name], torch.stack([bank.mask(i)[name] for i in range(len(bank))]).float().mean(0)
        )


def test_a_few_superpositions_are_cached() -> None:
    """More would fill the memory: each has as many numbers as the network has weights."""
    bank, generator = Bank(SHAPES), torch.Generator().manual_seed(0)
    for _ in range(2):
        bank.add(random_mask(generator))
    alphas = [torch.tensor([0.01 * i, 1 - 0.01 * i]) for i in range(20)]
    made = [bank.superposition(alpha) for alpha in alphas]
    assert len(bank._superpositions) == 16
    assert bank.superposition(alphas[-1]) is made[-1]
    assert bank.superposition(alphas[0]) is not made[0]


def test_a_copy_has_a_version_of_its_own() -> None:
    """Otherwise a network with a mask of the one on would take it for a mask of the other after both have changed."""
    bank = Bank(SHAPES)
    bank.add(random_mask(torch.Generator()))
    other, version = bank.to(bank.device), bank.version
    other.add(random_mask(torch.Generator()))
    assert bank.version is version
    assert other.version is not bank.version
    assert (len(bank), len(other)) == (1, 2)


def test_a_mask_that_is_not_there() -> None:
    with pytest.raises(IndexError):
        Bank(SHAPES).mask(0)


@given(st.integers(0, 2**31), st.integers(0, 40), st.integers(1, 40), st.integers(0, 40))
def test_masks_go_into_room_that_was_reserved(seed: int, before: int, reserved: int, added: int) -> None:
    """Fewer or more of them than there is room for, after others: no mask is lost, and no room counts as one."""
    generator = torch.Generator().manual_seed(seed)
    bank, plain, held = Bank(SHAPES), Bank(SHAPES), 0
    for number in range(before + added):
        if number == before:
            bank.reserve(reserved)
            held = bank.memory
        mask = random_mask(generator)
        bank.add(mask)
        plain.add(mask)
        assert not before <= number < before + reserved or bank.memory == held
    assert len(bank) == before + added
    assert all(torch.equal(bank.packed(index), plain.packed(index)) for index in range(len(bank)))
    assert sum(block.shape[1] for block in bank.blocks()) == len(bank)
    if added:
        bank.prepare_remove(0)()
        assert len(bank) == before + added - 1


def test_blocks_are_few_and_grow_with_the_bank() -> None:
    """Every search pays for each block, and memory for each column that is not used."""
    bank, grown = Bank({"w": torch.Size([8])}), list[tuple[int, int]]()
    for _ in range(1300):
        bank.add({"w": torch.ones(8)})
        state = (sum(block.shape[1] for block in bank._blocks), len(bank._blocks))
        if state not in grown:
            grown.append(state)
    columns = [8, 16, 32, 64, 128, 256, 512, 768, 1024, 1280, 1536]
    assert grown == list(zip(columns, [1, 2, 3, 4, 2, 3, 4, 2, 3, 4, 2]))
    bank.add_packed(torch.zeros(1, 0, dtype=torch.uint8))
    bank.reserve(0)
    assert len(bank._blocks) == 2
    assert (len(bank), sum(block.shape[1] for block in bank._blocks)) == (1300, 1536)
    assert bank.memory == 1536 + 4 * 8


def with_statistics() -> Bank:
    return Bank(SHAPES, statistics={"mean": torch.zeros(3), "variance": torch.ones(2, 2)})


def test_statistics_stay_with_their_masks() -> None:
    """Those of another task would normalise images wrongly, without a sign."""
    bank, generator, plain = with_statistics(), torch.Generator().manual_seed(0), list[dict[str, Tensor]]()
    for _ in range(5):
        own = {"mean": torch.rand(3, generator=generator), "variance": torch.rand(2, 2, generator=generator)}
        plain.append(random_mask(generator) | own)
        bank.add(plain[-1])
    plain.append(random_mask(generator) | {"mean": torch.zeros(3), "variance": torch.ones(2, 2)})
    bank.add({name: plain[-1][name] for name in SHAPES})
    other = random_mask(generator)
    bank.prepare_replace(1, other)()
    plain[1] |= other
    more = other | {"variance": torch.full((2, 2), 7.0)}
    bank.prepare_replace(2, more)()
    plain[2] |= more
    bank.prepare_remove(0)()
    del plain[0]
    alpha = torch.tensor([0.5, 0.0, 0.25, 0.25, 0.0])
    for copied in (bank, bank.to(torch.device("cpu")), bank.subset(range(5))):
        for index, expected in enumerate(plain):
            found = copied.subnetwork(index)
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[name], expected[name]) for name in expected)
        for name in plain[0]:
            stacked = torch.stack([each[name].float() for each in plain])
            assert torch.allclose(copied.mean()[name], stacked.mean(0))
            assert torch.allclose(copied.weighted(alpha)[name], torch.einsum("k,k...->...", alpha, stacked))
    assert [task["mean"].tolist() for task in map(bank.subset([3, 1]).statistics, (0, 1))] == [
        plain[3]["mean"].tolist(),
        plain[1]["mean"].tolist(),
    ]
    assert bank.memory == 8 * 6 + 4 * (48 + 5 * 7)


@pytest.mark.parametrize("statistics", [False, True])
def test_masks_on_the_disk_lie_before_the_others_and_never_change(statistics: bool) -> None:
    """They are counted, added up and found like the others; whoever would write to them is told what to do."""
    mapped, plain = (with_statistics() if statistics else Bank(SHAPES) for _ in range(2))
    generator = torch.Generator().manual_seed(0)
    for count in (7, 9):
        columns = plain.pack(random_mask(generator))[:, None] ^ (torch.arange(count, dtype=torch.uint8) & 1)
        columns &= plain.pack({name: torch.ones(shape) for name, shape in SHAPES.items()})[:, None]
        own = {"mean": torch.rand(count, 3), "variance": torch.rand(count, 2, 2)} if statistics else {}
        kept = torch.zeros(48, dtype=torch.int32)
        tally(kept, columns, sign=1)
        version = mapped.version
        mapped.map_block(columns, kept, own)
        plain.add_packed(columns, own)
        assert mapped.version is not version
    assert mapped.memory == 4 * (48 + (16 * 7 if statistics else 0)), "nothing of the masks is held"
    blocks = list(mapped._blocks)
    for _ in range(1040):
        mask = random_mask(generator)
        mapped.add(mask)
        plain.add(mask)
    assert [one is other for one, other in zip(mapped._blocks, blocks)] == [True, True]
    with pytest.raises(SupSupError, match="masks on disk cannot change"):
        mapped.prepare_replace(15, mask)()
    with pytest.raises(SupSupError, match="masks on disk cannot change"):
        mapped.prepare_remove(0)()
    for bank in (mapped, plain):
        bank.prepare_replace(16, mask)()
        bank.prepare_remove(17)()
    assert torch.equal(torch.cat(list(mapped.blocks()), 1), torch.cat(list(plain.blocks()), 1))
    alpha = torch.rand(len(plain), generator=generator)
    for index in (0, 7, 15, 16, 1054):
        found, expected = mapped.subnetwork(index), plain.subnetwork(index)
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    for name, value in plain.mean().items():
        assert torch.equal(mapped.mean()[name], value)
        assert torch.allclose(mapped.weighted(alpha)[name], plain.weighted(alpha)[name], rtol=1e-4)


@given(st.integers(0, 2**31), st.integers(0, 40), st.sampled_from([1, -1]))
def test_masks_are_added_up_piece_by_piece(seed: int, tasks: int, sign: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    columns = torch.randint(256, (11, tasks), generator=generator, dtype=torch.uint8)
    bits = torch.stack([columns >> shift & 1 for shift in range(8)], 1).flatten(0, 1)
    for at_once in (1, 37, 1 << 22):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bank_module, "_TALLIED", at_once)
            total = torch.full((88,), 5, dtype=torch.int32)
            tally(total, columns, sign)
        assert torch.equal(total, 5 + sign * bits.sum(1, dtype=torch.int32))


def test_a_sum_over_masks_is_taken_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    bank, generator = Bank(SHAPES), torch.Generator().manual_seed(0)
    for _ in range(11):
        bank.add(random_mask(generator))
    alpha = torch.rand(11, generator=generator)
    whole = bank.weighted(alpha)
    monkeypatch.setattr(bank_module, "_UNPACKED", 200)
    assert all(torch.allclose(bank.weighted(alpha)[name], whole[name], atol=1e-6) for name in SHAPES)


def test_a_block_goes_with_its_last_mask() -> None:
    bank = Bank({"w": torch.Size([8])})
    for _ in range(9):
        bank.add({"w": torch.ones(8)})
    for expected in (1, 1):
        bank.prepare_remove(0)()
        assert (len(bank._blocks), bank.memory) == (expected, 8 + 4 * 8)
