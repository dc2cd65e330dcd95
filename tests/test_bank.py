"""The bank against a plain list of masks: whatever is added, replaced and removed, the bits and sums agree."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from supsup.bank import Bank

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
            bank.replace(index, mask)
            plain[index] = mask
        else:
            bank.remove(index)
            del plain[index]
    assert len(bank) == len(plain)
    copy = bank.subset(range(len(bank)))
    assert all(torch.equal(copy.packed(i), bank.pack(mask)) for i, mask in enumerate(plain))
    for index, mask in enumerate(plain):
        found = bank.mask(index)
        assert all(torch.equal(found[name], mask[name]) for name in SHAPES)
    if plain:
        for name, mean in bank.mean().items():
            assert torch.equal(mean, torch.stack([m[name] for m in plain]).sum(0).float() / len(plain))


@given(st.integers(0, 2**31), st.integers(1, 600), st.integers(1, 5))
def test_sums_and_inner_products_equal_those_of_float_masks(seed: int, k: int, rows: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    masks = [random_mask(generator) for _ in range(k)]
    bank = Bank(SHAPES)
    for mask in masks:
        bank.add(mask)
    alpha = torch.rand(k, generator=generator) * (torch.rand(k, generator=generator) < 0.5)
    weighted = bank.weighted(alpha)
    queries = {name: torch.randn(rows, *shape, generator=generator) for name, shape in SHAPES.items()}
    expected = torch.zeros(rows, k)
    for name, shape in SHAPES.items():
        floats = torch.stack([m[name] for m in masks]).float()
        assert weighted[name].shape == shape
        assert torch.allclose(weighted[name], torch.einsum("k,k...->...", alpha, floats), atol=1e-4)
        expected += queries[name].flatten(1) @ floats.flatten(1).T
    for bank._joins in (False, True):
        assert torch.allclose(bank.inner(queries), expected, atol=1e-4)
        apart = {name: queries[name] for name in ("a", "c")}
        without = expected - queries["b"].flatten(1) @ floats_of(masks, "b").T
        assert torch.allclose(bank.inner(apart), without, atol=1e-4)
    only = {"b": queries["b"]}
    assert torch.allclose(bank.inner(only), queries["b"].flatten(1) @ floats_of(masks, "b").T, atol=1e-4)


def floats_of(masks: list[dict[str, Tensor]], name: str) -> Tensor:
    return torch.stack([m[name] for m in masks]).float().flatten(1)


def test_memory_is_a_bit_per_weight_and_task() -> None:
    shapes = {"w": torch.Size([100, 800])}
    bank = Bank(shapes)
    for _ in range(1000):
        bank.add({"w": torch.ones(shapes["w"], dtype=torch.bool)})
    weights = 80_000
    assert bank.memory <= 1.3 * 1000 * weights / 8 + 8 * weights


def test_a_removed_mask_leaves_no_bits_behind() -> None:
    bank = Bank({"w": torch.Size([8])})
    for bits in ([1, 1, 1, 1, 0, 0, 0, 0], [0, 1, 0, 1, 0, 1, 0, 1]):
        bank.add({"w": torch.tensor(bits)})
    bank.remove(1)
    assert all(not block[:, 1:].any() for block in bank._blocks)


def test_a_mask_that_is_not_there() -> None:
    with pytest.raises(IndexError):
        Bank(SHAPES).mask(0)
