"""Every way of searching the bits against the plain one, and the plain one against float masks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from supsup.inference import search
from supsup.inference.search import Outer, Query, dense, flattened, flattened_bfloat16
from supsup.kernels import available
from supsup.masks.bank import Bank

SHAPES = {"a": torch.Size([3, 5]), "b": torch.Size([4, 6]), "c": torch.Size([1, 1])}


def filled(k: int, generator: torch.Generator, shapes: dict[str, torch.Size] = SHAPES) -> Bank:
    """A bank of random masks in several blocks."""
    bank = Bank(shapes)
    for _ in range(k):
        bank.add({name: torch.rand(shape, generator=generator) < 0.5 for name, shape in shapes.items()})
    return bank


def queries(rows: int, images: int, generator: torch.Generator) -> tuple[Query, Query]:
    """The same query as numbers and in search."""

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    outer = {
        name: Outer(random(*shape), random(rows, images, shape[0]), random(rows, images, shape[1]))
        for name, shape in SHAPES.items()
    }
    return {name: product.dense() for name, product in outer.items()}, outer


def by_floats(query: Query, bank: Bank) -> Tensor:
    """The inner products from masks as floats."""
    masks = [bank.mask(index) for index in range(len(bank))]
    floats = {name: torch.stack([mask[name] for mask in masks]).float() for name in query}
    return torch.stack([dense(query[n]).flatten(1) @ floats[n].flatten(1).T for n in query]).sum(0)


@settings(max_examples=40)
@given(st.integers(0, 2**31), st.integers(1, 120), st.integers(1, 12), st.integers(1, 3))
def test_every_way_on_a_cpu_gives_the_inner_products_of_float_masks(seed: int, k: int, rows: int, images: int) -> None:
    """Few rows and many, numbers and factors take different ways; a query may name some of the weights."""
    generator = torch.Generator().manual_seed(seed)
    bank = filled(k, generator)
    for query in queries(rows, images, generator):
        for names in (["a", "b", "c"], ["a", "c"], ["b"]):
            some = {name: query[name] for name in names}
            expected = by_floats(some, bank)
            assert torch.allclose(search.inner_plain(some, bank), expected, atol=1e-4)
            assert torch.allclose(search.inner(some, bank), expected, atol=1e-4)
            if available.NUMBA:
                assert torch.allclose(search.numba_tables(some, bank), expected, atol=1e-4)
            if isinstance(some[names[0]], Outer):
                assert torch.allclose(search.mask_by_mask(some, bank), expected, atol=1e-4)


@pytest.mark.skipif(not available.NUMBA, reason="numba is not installed")
@given(st.integers(0, 2**31), st.integers(1, 90), st.integers(1, 40))
def test_an_image_has_the_same_inner_products_alone_and_among_others(seed: int, k: int, rows: int) -> None:
    """To the last bit: whether a server's answer came in a batch must not be seen from it."""
    generator = torch.Generator().manual_seed(seed)
    bank = filled(k, generator)
    for query in queries(rows, 1, generator):
        together = search.numba_tables(query, bank)
        for row in range(rows):
            assert torch.equal(
                search.numba_tables(search.some_rows(query, slice(row, row + 1)), bank)[0], together[row]
            )


@pytest.mark.parametrize(("rows", "k"), [(1, 5), (3, 21), (8, 700)])
def test_the_kernel_for_few_queries(rows: int, k: int) -> None:
    """Neighbouring weights go in one launch: bytes of one must not meet the query of another."""
    pytest.importorskip("triton", reason="triton is not installed")
    generator = torch.Generator().manual_seed(rows)
    bank = filled(min(k, 30), generator)
    if k > 30:
        bank.add_packed(torch.randint(256, (6, k - 30), generator=generator, dtype=torch.uint8))
    for query in queries(rows, 1, generator):
        for names in (["a", "b", "c"], ["a", "c"]):
            some = {name: query[name] for name in names}
            assert torch.allclose(search.triton_few(some, bank), search.inner_plain(some, bank), atol=1e-4)


def first_way(query: Query, bank: Bank) -> object:
    return search.inner_function(query, bank)


def test_which_way_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A way that is no longer taken would be a slow search that gives the right answers: no other test would see it."""
    generator = torch.Generator().manual_seed(0)
    bank, gpu = Bank(SHAPES), Bank(SHAPES)
    gpu.device = torch.device("cuda")
    few, few_factors = queries(search.FEW, 1, generator)
    many, many_factors = queries(search.FEW + 1, 1, generator)
    monkeypatch.setattr(available, "NUMBA", True)
    monkeypatch.setattr(available, "TRITON", True)
    assert first_way(few, bank) == first_way(few_factors, bank) == search.numba_tables
    assert first_way(many, bank) == first_way(many_factors, bank) == search.numba_tables
    more, more_factors = queries(search.FEW_ON_CPU + 1, 1, generator)
    assert first_way(more, bank) == search.inner_plain
    assert first_way(more_factors, bank) == search.mask_by_mask
    thousands = filled(search.MANY_MASKS, generator)
    assert first_way(more, thousands) == first_way(more_factors, thousands) == search.numba_tables
    assert first_way(few, gpu) == first_way(few_factors, gpu) == search.triton_few
    assert first_way(many, gpu) == first_way(many_factors, gpu) == search.triton_many
    monkeypatch.setattr(available, "NUMBA", False)
    monkeypatch.setattr(available, "TRITON", False)
    assert first_way(few, bank) == first_way(few_factors, bank) == search.inner_plain
    assert first_way(few, gpu) == first_way(many_factors, gpu) == search.inner_plain


@given(st.integers(0, 2**31), st.integers(1, 5), st.integers(1, 4))
def test_a_query_in_factors_equals_the_dense_one(seed: int, rows: int, images: int) -> None:
    torch.manual_seed(seed)
    query = Outer(torch.randn(6, 7), torch.randn(rows, images, 6), torch.randn(rows, images, 7))
    mask = torch.rand(6, 7) < 0.5
    assert query.dense().shape == query.shape
    assert torch.allclose(query.inner(mask), (query.dense() * mask).sum((1, 2)), atol=1e-4)


def case(seed: int, rows: int, size: int, tasks: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, bytes and the inner products from float masks."""
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(rows, 8 * size, generator=generator)
    wide = torch.randint(256, (size, tasks + 3), generator=generator, dtype=torch.uint8)
    block = wide[:, :tasks]
    floats = torch.stack([(block >> bit) & 1 for bit in range(8)], 1).flatten(0, 1).float()
    return query, block, query @ floats


def test_unpacking_on_a_gpu() -> None:
    triton_search = pytest.importorskip("supsup.kernels.triton_search", reason="triton is not installed")
    for rows, size, tasks in ((1, 37, 5), (3, 80, 150), (1, 40, 700)):
        query, block, expected = case(0, rows, size, tasks)
        unpacked = triton_search.unpack(block, torch.float32)
        assert torch.allclose((query @ unpacked)[:, :tasks], expected, atol=1e-3)
        assert not unpacked[:, tasks:].any()


@pytest.mark.parametrize("images", [1, 2])
def test_a_query_made_from_its_factors_by_a_kernel_is_that_of_all_its_images(images: int) -> None:
    """The kernel knows one image only; with more, a search on a GPU would decide by the first."""
    pytest.importorskip("triton", reason="triton is not installed")
    _, outer = queries(3, images, torch.Generator().manual_seed(0))
    found, expected = flattened_bfloat16(outer["a"], 16), flattened(outer["a"], 16)
    assert found.shape == expected.shape == (3, 16)
    assert torch.allclose(found.float(), expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(("device", "numbers"), [("cpu", 1 << 25), ("cuda", 1 << 30)])
def test_rows_of_queries_fit_into_memory_together(device: str, numbers: int) -> None:
    """128 MiB on a CPU and 4 GiB on a GPU, in float32; one row at least."""
    bank = Bank({"a": torch.Size([1000, 100]), "b": torch.Size([10, 10])})
    bank.shapes["c"] = torch.Size([1 << 16, 1 << 16])
    bank.device = torch.device(device)
    assert search.rows_at_once(bank, ["a"]) == numbers // 100_000
    assert search.rows_at_once(bank, ["a", "b"]) == numbers // 100_100
    assert search.rows_at_once(bank, ["c", "a"]) == 1
