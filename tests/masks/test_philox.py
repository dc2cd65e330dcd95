"""If these fail, every model ever saved would get other weights."""

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from supsup.masks import philox


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_the_published_test_vectors(counter: list[int], key: list[int], expected: list[int]) -> None:
    out = philox.philox([torch.tensor([c]) for c in counter], (key[0], key[1]))
    assert [int(word) for word in out] == expected


def test_words_are_fixed_for_good() -> None:
    assert philox.words(7, ["weights/a"], 5)[0].tolist() == [2071631835, 201043874, 2673148809, 2854011734, 416706657]


@pytest.mark.parametrize("count", [0, 1, 6, 1024, 2051])
@pytest.mark.parametrize("seed", [0, 1 << 63 | 1 << 31, 2**64 - 1])
def test_the_kernel_makes_the_same_words(count: int, seed: int) -> None:
    triton_masks = pytest.importorskip("supsup.kernels.triton_masks", reason="triton is not installed")
    labels = ["a", "b", "scores/task/weight"]
    key = (seed & 0xFFFFFFFF, seed >> 32)
    streams = [(number & 0xFFFFFFFF, number >> 32) for number in map(philox.stream_id, labels)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy says that products wrap around, as they should
        found = triton_masks.triton_words(key, streams, count, "cpu")
    assert torch.equal(found, philox.words(seed, labels, count))


@given(st.integers(0, 2**64 - 1), st.text(max_size=8), st.integers(1, 50), st.integers(1, 50))
def test_a_stream_does_not_depend_on_how_much_is_asked_for_or_beside_what(
    seed: int, label: str, few: int, more: int
) -> None:
    alone = philox.words(seed, [label], few)[0]
    beside = philox.words(seed, ["another", label], few + more)[1]
    assert torch.equal(alone, beside[:few])


def test_uniform_fills_its_range_evenly() -> None:
    values = philox.uniform(0, ["u"], 100_000, 0.5)[0]
    assert values.dtype == torch.float32
    assert float(values.min()) >= -0.5
    assert float(values.max()) < 0.5
    counts = torch.histc(values, 10, -0.5, 0.5)
    assert ((counts - 10_000).abs() < 500).all()


@given(st.integers(0, 2**32), st.integers(1, 300))
def test_permutations_are_permutations(seed: int, count: int) -> None:
    order = philox.permutations(seed, ["a", "b"], count)
    assert torch.equal(order.sort(1).values, torch.arange(count).expand(2, -1))


def test_signs_are_balanced() -> None:
    signs = philox.signs(3, "s", 100_000)
    assert set(signs.tolist()) == {1.0, -1.0}
    assert abs(float(signs.mean())) < 0.02
