"""Coding against a mean: every mask comes back whatever the mean, and alike masks get smaller."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supsup import SupSupError
from supsup.file import codec
from supsup.file.reference import Reference, decode


def random_masks(sizes: list[int], count: int, seed: int, noise: float) -> list[codec.Bytes]:
    """Copies of one random mask with some of the bits replaced."""
    chance = np.random.default_rng(seed)
    common = [chance.random(size) < 0.2 for size in sizes]
    out = []
    for _ in range(count):
        bits = [np.where(chance.random(len(c)) < noise, chance.random(len(c)) < 0.2, c) for c in common]
        out.append(np.concatenate([np.packbits(b, bitorder="little") for b in bits]))
    return out


@given(st.lists(st.integers(1, 100), min_size=1, max_size=5), st.integers(1, 20), st.integers(0, 2**31))
def test_every_mask_comes_back(sizes: list[int], count: int, seed: int) -> None:
    masks = random_masks(sizes, count, seed, noise=0.3)
    reference = Reference.of(masks, sizes)
    again = Reference.from_bytes(*reference.to_bytes(), sizes)
    for packed in [*masks, *random_masks(sizes, 2, seed + 1, noise=1.0)]:
        assert np.array_equal(decode(*reference.encode(packed), sizes, again), packed)


@pytest.mark.skipif(not codec.available(), reason="needs the entropy coder")
def test_alike_masks_get_smaller() -> None:
    sizes = [20_000, 5_000]
    masks = random_masks(sizes, 50, 0, noise=0.2)
    reference = Reference.of(masks, sizes)
    alone, against = (
        sum(len(coded[1]) for coded in map(how, masks))
        for how in (
            lambda packed: codec.encode(packed, sizes),
            reference.encode,
        )
    )
    assert against + len(reference.to_bytes()[1]) < 0.7 * alone


def test_a_mean_that_is_gone_is_missed() -> None:
    sizes = [800]
    masks = random_masks(sizes, 3, 0, noise=0.2)
    name, blob = Reference.of(masks, sizes).encode(masks[0])
    with pytest.raises(SupSupError, match="mean that the mask is coded against is missing"):
        decode(name, blob, sizes, None)
