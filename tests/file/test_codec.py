"""The codec: every mask comes back, near the entropy bound, and no bytes can make it misbehave."""

import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from supsup import SupSupError
from supsup.file import codec

DENSITIES = st.sampled_from([0.0, 1e-6, 1e-4, 0.0026, 0.02, 0.0746, 0.3, 0.45, 0.5, 0.6, 0.9, 0.999, 1.0])
LAYERS = st.lists(st.tuples(st.integers(1, 40) | st.integers(1000, 5000), DENSITIES), min_size=1, max_size=6)


def mask(layers: list[tuple[int, float]], seed: int = 0) -> tuple[codec.Bytes, list[int]]:
    chance = np.random.default_rng(seed)
    tensors = [np.packbits(chance.random(size) < density, bitorder="little") for size, density in layers]
    return np.concatenate(tensors), [size for size, _ in layers]


@given(LAYERS, st.integers(0, 2**31))
@example([(n, 0.5) for n in range(1, 21)], 0)
@example([(n, 0.1) for n in range(1, 21)], 0)
def test_every_mask_comes_back(layers: list[tuple[int, float]], seed: int) -> None:
    packed, sizes = mask(layers, seed)
    name, blob = codec.encode(packed, sizes)
    assert np.array_equal(codec.decode(name, blob, sizes), packed)
    assert len(blob) <= len(packed)
    assert not codec.available() or len(blob) <= 1.02 * codec.entropy_bytes(packed, sizes) + 4 * len(sizes) + 16


@pytest.mark.skipif(not codec.available(), reason="needs the entropy coder")
@pytest.mark.parametrize("density", [0.0, 1e-5, 0.0026, 0.0053, 0.0103, 0.0201, 0.0391, 0.0746, 0.2, 0.48, 0.5, 0.97])
def test_a_million_weights_within_two_percent_of_the_bound(density: float) -> None:
    packed, sizes = mask([(500_000, density), (500_000, density / 2)])
    name, blob = codec.encode(packed, sizes)
    assert np.array_equal(codec.decode(name, blob, sizes), packed)
    assert len(blob) <= 1.02 * codec.entropy_bytes(packed, sizes) + 16


@pytest.mark.skipif(not codec.available(), reason="needs the entropy coder")
def test_the_bytes_are_fixed_for_good() -> None:
    """Other bytes here mean that files written before could no longer be read."""
    packed, sizes = mask([(100, 0.05), (64, 0.5), (30, 0.0), (30, 1.0), (100, 0.95)], seed=1)
    name, blob = codec.encode(packed, sizes)
    assert name == "ans-1"
    assert blob.hex() == "657f0080e7a29e8b7f004f5a1753606eb8ffbc58585e910000"


@settings(max_examples=300)
@given(st.binary(max_size=60), LAYERS, st.sampled_from(["bits", "ans-1", "ans-1", "ans-9"]))
def test_hostile_bytes_give_a_mask_of_the_right_size_or_an_error(
    blob: bytes, layers: list[tuple[int, float]], name: str
) -> None:
    packed, sizes = mask(layers)
    try:
        found = codec.decode(name, blob, sizes)
    except SupSupError:
        return
    assert found.shape == packed.shape


@pytest.mark.skipif(not codec.available(), reason="needs the entropy coder")
def test_without_the_coder_masks_are_plain_and_coded_ones_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    packed, sizes = mask([(5000, 0.01)])
    name, blob = codec.encode(packed, sizes)
    codec._model.cache_clear()
    monkeypatch.setitem(sys.modules, "constriction", None)
    monkeypatch.setattr(codec, "available", lambda: False)
    assert codec.encode(packed, sizes) == ("bits", packed.tobytes())
    with pytest.raises(SupSupError, match=r"pip install 'supsup\[codec\]'"):
        codec.decode(name, blob, sizes)


def test_the_papers_bytes_of_all_six_rows_of_split_cifar100() -> None:
    published = {1: 408_432, 2: 508_432, 4: 695_592, 8: 1_035_792, 16: 1_630_032, 32: 2_487_472}
    shapes, channels = narrow_resnet18()
    assert sum(int(np.prod(shape)) for shape in shapes) == 1_090_940
    assert sum(budget(shape, 8) for shape in shapes) == 21_944
    for s, expected in published.items():
        kept = [budget(shape, s) for shape in shapes]
        assert abs(20 * codec.paper_bytes(kept, shapes, channels) - expected) <= 2


def narrow_resnet18() -> tuple[list[tuple[int, ...]], int]:
    """Weight shapes of the ResNet-18 with widths 20-40-80-160 and 5 outputs, and its normalised channels."""
    shapes: list[tuple[int, ...]] = [(20, 3, 3, 3)]
    before = 20
    for width in (20, 40, 80, 160):
        shapes += [(width, before, 3, 3)] + 3 * [(width, width, 3, 3)]
        shapes += [(width, before, 1, 1)] if width != before else []
        before = width
    return [*shapes, (5, 160)], sum(shape[0] for shape in shapes)


def budget(shape: tuple[int, ...], s: int) -> int:
    """Weights kept in a layer: s·(in + out), at most half."""
    return min(int(np.prod(shape)) // 2, s * (shape[0] + shape[1]))


def similar_masks(sizes: list[int], count: int, seed: int, noise: float) -> list[codec.Bytes]:
    """Copies of one random mask with some of the bits replaced."""
    chance = np.random.default_rng(seed)
    common = [chance.random(size) < 0.2 for size in sizes]
    out = []
    for _ in range(count):
        bits = [np.where(chance.random(len(c)) < noise, chance.random(len(c)) < 0.2, c) for c in common]
        out.append(np.concatenate([np.packbits(b, bitorder="little") for b in bits]))
    return out


@given(st.lists(st.integers(1, 100), min_size=1, max_size=5), st.integers(1, 20), st.integers(0, 2**31))
def test_every_mask_coded_against_a_mean_comes_back(sizes: list[int], count: int, seed: int) -> None:
    masks = similar_masks(sizes, count, seed, noise=0.3)
    reference = codec.Reference.of(masks, sizes)
    again = codec.Reference.from_bytes(*reference.to_bytes(), sizes)
    for packed in [*masks, *similar_masks(sizes, 2, seed + 1, noise=1.0)]:
        assert np.array_equal(codec.decode_mask(*reference.encode(packed), sizes, again), packed)


@pytest.mark.skipif(not codec.available(), reason="needs the entropy coder")
def test_similar_masks_get_smaller() -> None:
    sizes = [20_000, 5_000]
    masks = similar_masks(sizes, 50, 0, noise=0.2)
    reference = codec.Reference.of(masks, sizes)
    alone, against = (
        sum(len(coded[1]) for coded in map(how, masks))
        for how in (
            lambda packed: codec.encode(packed, sizes),
            reference.encode,
        )
    )
    assert against + len(reference.to_bytes()[1]) < 0.7 * alone


def test_a_missing_mean_is_an_error() -> None:
    sizes = [800]
    masks = similar_masks(sizes, 3, 0, noise=0.2)
    name, blob = codec.Reference.of(masks, sizes).encode(masks[0])
    with pytest.raises(SupSupError, match="mean that the mask is coded against is missing"):
        codec.decode_mask(name, blob, sizes, None)
