"""Every way of searching the bits against the plain one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from supsup import search


def case(seed: int, rows: int, size: int, tasks: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, bytes and the inner products from float masks."""
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(rows, 8 * size, generator=generator)
    wide = torch.randint(256, (size, tasks + 3), generator=generator, dtype=torch.uint8)
    block = wide[:, :tasks]
    floats = torch.stack([(block >> bit) & 1 for bit in range(8)], 1).flatten(0, 1).float()
    return query, block, query @ floats


@given(st.integers(0, 2**31), st.integers(1, 12), st.integers(1, 70), st.integers(1, 300))
def test_the_cpu_search(seed: int, rows: int, size: int, tasks: int) -> None:
    """Few and many queries take different ways."""
    query, block, expected = case(seed, rows, size, tasks)
    out = torch.ones(rows, tasks)
    search.add_inner(query, block, out)
    assert torch.allclose(out, 1 + expected, atol=1e-3)


def test_the_kernel_for_few_queries_and_the_unpacking() -> None:
    triton_search = pytest.importorskip("supsup.kernels.triton_search", reason="triton is not installed")
    for rows, size, tasks in ((1, 37, 5), (3, 80, 150), (1, 40, 700)):
        query, block, expected = case(0, rows, size, tasks)
        out = torch.ones(rows, tasks)
        triton_search.add_inner_few(query, block, out)
        assert torch.allclose(out, 1 + expected, atol=1e-3)
        unpacked = triton_search.unpack(block, torch.float32)
        assert torch.allclose((query @ unpacked)[:, :tasks], expected, atol=1e-3)
        assert not unpacked[:, tasks:].any()


@given(st.integers(0, 2**31), st.integers(1, 5), st.integers(1, 4))
def test_a_query_in_factors_equals_the_dense_one(seed: int, rows: int, images: int) -> None:
    torch.manual_seed(seed)
    query = search.Outer(torch.randn(6, 7), torch.randn(rows, images, 6), torch.randn(rows, images, 7))
    mask = torch.rand(6, 7) < 0.5
    assert query.dense().shape == query.shape
    assert torch.allclose(query.inner(mask), (query.dense() * mask).sum((1, 2)), atol=1e-4)


@given(st.integers(0, 2**31), st.integers(1, 60), st.integers(1, 300), st.integers(1, 480))
def test_few_coordinates_and_few_columns(seed: int, size: int, tasks: int, count: int) -> None:
    query, block, expected = case(seed, 1, size, tasks)
    columns = torch.randperm(tasks)[:4]
    assert torch.allclose(search.inner_columns(query[0], block, columns), expected[0, columns], atol=1e-3)
    chosen = search.top_coordinates(query[0], count)
    out = torch.zeros(tasks)
    search.add_inner_at(query[0], chosen, block, out)
    alone = torch.zeros_like(query)
    alone[0, chosen] = query[0, chosen]
    reference = torch.zeros(1, tasks)
    search.plain_inner(alone, block, reference)
    assert torch.allclose(out, reference[0], atol=1e-3)


def test_the_largest_coordinates_are_chosen() -> None:
    query = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    chosen = search.top_coordinates(query, 4096)
    assert 3500 < len(chosen) < 4700
    left_out = torch.ones(100_000, dtype=torch.bool).index_fill_(0, chosen, False)
    assert query[chosen].abs().min() >= query[left_out].abs().max()


@pytest.mark.parametrize(("rows", "outputs", "width"), [(1, 3, 5), (9, 20, 300), (4, 8, 256)])
def test_a_query_is_made_from_its_factors_in_one_pass(rows: int, outputs: int, width: int) -> None:
    triton_search = pytest.importorskip("supsup.kernels.triton_search", reason="triton is not installed")
    weight, delta, inputs = torch.randn(outputs, width), torch.randn(rows, outputs), torch.randn(rows, width)
    expected = search.flattened(search.Outer(weight, delta[:, None], inputs[:, None]), bits := outputs * width + 3)
    found = triton_search.outer(weight, delta, inputs, bits, torch.float32)
    assert found.shape == (rows, bits)
    assert torch.allclose(found, expected)
