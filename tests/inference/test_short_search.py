"""Every way of searching from few bytes against the plain one, and the plain one against float masks."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from supsup.inference import search
from supsup.inference.search import (
    CANDIDATES,
    candidate_group_size,
    flattened,
    whole_query,
)
from supsup.kernels import available
from supsup.masks.bank import Bank
from supsup_paper.bench.bare_masks import bytes_read

SHAPES = {"a": torch.Size([16, 40]), "b": torch.Size([8, 16]), "c": torch.Size([5, 7])}
TRITON = pytest.param("triton", marks=pytest.mark.skipif(not available.TRITON, reason="triton is not installed"))
NUMBA = pytest.param("numba", marks=pytest.mark.skipif(not available.NUMBA, reason="numba is not installed"))
EVERY_WAY = pytest.mark.parametrize("way", [TRITON, NUMBA, "plain"])


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Let a way, and no other, take whatever comes."""
    chosen = getattr(search, f"{way}_nearest")
    monkeypatch.setattr(search, "nearest_function", lambda bank: chosen)


def filled(counts: list[int], generator: torch.Generator) -> Bank:
    """A bank of random masks, so many in each block."""
    bank = Bank(SHAPES)
    for count in counts:
        bank.add_packed(torch.randint(256, (bank.length, count), generator=generator, dtype=torch.uint8))
    return bank


def with_a_likely_mask(counts: list[int], index: int, seed: int, names: str) -> tuple[dict[str, Tensor], Bank]:
    """A query, and a bank in which one mask has nine of ten of its positive numbers and one of ten of the others."""
    generator = torch.Generator().manual_seed(seed)
    bank = filled(counts, generator)
    query = {name: torch.randn(1, *shape, generator=generator) ** 3 for name, shape in SHAPES.items()}
    likely = {n: (q[0] > 0) ^ (torch.rand(q[0].shape, generator=generator) < 0.1) for n, q in query.items()}
    bank.prepare_replace(index, likely)()
    return {name: query[name] for name in names}, bank


@EVERY_WAY
@pytest.mark.parametrize("names", ["abc", "ac", "b"])
@pytest.mark.parametrize("counts", [[3], [300], [7, 64, 1, 130], [1000, 65]])
def test_a_mask_that_stands_out_is_found(use: None, way: str, counts: list[int], names: str) -> None:
    """In whatever block it lies, alone in its group or not, over all weights or some; as the exact search finds it."""
    if way == "triton" and names == "abc":
        pytest.skip("its interpreter is slow, and two weights with a third between them are harder")
    for index in {0, sum(counts) - 1} if way == "triton" else {0, sum(counts) // 2, sum(counts) - 1}:
        query, bank = with_a_likely_mask(counts, index, seed=len(counts), names=names)
        assert int(search.inner(query, bank).argmax()) == index
        assert search.nearest(query, bank, 200).tolist() == [index]
        alive = torch.ones(len(bank), dtype=torch.bool)
        alive[index] = False
        (other,) = search.nearest(query, bank, 200, alive).tolist()
        assert alive[other]


@EVERY_WAY
def test_the_exact_inner_product_decides_among_the_best(use: None) -> None:
    """The byte that is read speaks for mask 1; all others together, and so the whole, for mask 20.

    Without the exact decision the answer would be mask 1. Mask 3 is better still, but is no candidate.
    """
    bank, bits = Bank({"w": torch.Size([80])}), torch.arange(80)
    masks = {1: bits == 0, 3: bits != 16, 20: (bits != 0) & (bits != 16)}
    for index in range(24):  # in several blocks
        bank.add({"w": masks.get(index, bits == 16)})
    query = {"w": torch.full((1, 80), 0.5)}
    query["w"][0, [0, 16]] = torch.tensor([3.0, -1.0])
    alive = torch.arange(24) != 3
    assert search.nearest(query, bank, 8, alive).tolist() == [20]
    for few in ([0, 1], [7]):
        only = torch.zeros(24, dtype=torch.bool).index_fill_(0, torch.tensor(few), True)
        assert search.nearest(query, bank, 8, only).tolist() == [few[-1]]


@pytest.mark.parametrize("way", [NUMBA])
def test_more_is_read_of_all_masks_where_few_bytes_leave_doubt(use: None) -> None:
    """The byte read first speaks for more masks than there are candidates, and against the right one."""
    bank, bits = Bank({"w": torch.Size([80])}), torch.arange(80)
    for index in range(60):
        bank.add({"w": bits >= 8 if index == 50 else bits < 8 if index < 40 else bits < 0})
    query = {"w": torch.where(bits < 8, 0.6, 0.5)[None]}
    assert search.nearest(query, bank, 8).tolist() == [50]


@pytest.mark.parametrize("way", [NUMBA])
@pytest.mark.parametrize("value", [0.0, torch.nan, torch.inf])
def test_a_query_that_says_nothing_falls_on_some_candidate(use: None, value: float) -> None:
    """Images whose numbers are too large for float32 are no reason to fail."""
    bank = filled([20], torch.Generator().manual_seed(0))
    alive = torch.arange(20) >= 7
    (found,) = search.nearest({"a": torch.full((1, *SHAPES["a"]), value)}, bank, 80, alive).tolist()
    assert 7 <= found < 20


@EVERY_WAY
def test_one_row_has_nothing_to_do_with_another(use: None) -> None:
    """Rows are searched one by one, each with the bytes that are large in it."""
    found = [with_a_likely_mask([40, 30], index, seed=index, names="abc") for index in (3, 60)]
    for query, bank in found:
        rows = {name: torch.cat([other[name] for other, _ in found]) for name in query}
        alone = [int(search.nearest(each, bank, 100)) for each, _ in found]
        assert search.nearest(rows, bank, 100).tolist() == alone


@settings(max_examples=50)
@given(st.integers(0, 2**31), st.integers(2, 400), st.integers(1, 400), st.sampled_from(["abc", "bc", "ac", "b"]))
def test_the_plain_way_gives_the_best_of_the_best_few(seed: int, k: int, count: int, names: str) -> None:
    """The answer has the largest exact inner product of the masks that the largest bytes rank first."""
    generator = torch.Generator().manual_seed(seed)
    bank = filled([k], generator)
    query = {name: torch.randn(1, *SHAPES[name], generator=generator) for name in names}
    exact, span = search.inner(query, bank)[0], whole_query(query, bank, flattened)
    row, size = span[1][0], sum(bank.spans[name][1] - bank.spans[name][0] for name in names)
    kept = torch.zeros_like(row).view(-1, 8)
    for name in names:
        start, stop = (each - span[0].start for each in bank.spans[name])
        share = min(stop - start, max(1, -(-(-(-count // 8) * (stop - start)) // size)))
        largest = row.view(-1, 8)[start:stop].abs().sum(1).topk(share).indices + start
        kept[largest] = row.view(-1, 8)[largest]
    block = next(bank.blocks())[span[0]]
    floats = torch.stack([(block >> bit) & 1 for bit in range(8)], 1).flatten(0, 1).float()
    candidates = search.best_of_groups(kept.flatten() @ floats)
    assert len(candidates) == min(CANDIDATES, k)
    answer = search.plain_nearest(
        row,
        search.wanted_bytes(bank, names, count)
        if span[0].start == 0
        else [(a - span[0].start, b - span[0].start, c) for a, b, c in search.wanted_bytes(bank, names, count)],
        [block],
        None,
    )
    assert exact[answer] >= exact[candidates].max() - 1e-3


@given(st.integers(0, 2**31), st.integers(1, 3000))
def test_candidates_are_the_best_of_the_best_of_groups(seed: int, k: int) -> None:
    """The very best is always among them, and none that is −inf."""
    scores = torch.randn(k, generator=torch.Generator().manual_seed(seed))
    scores[:: 2 + seed % 3] = -torch.inf
    candidates = search.best_of_groups(scores)
    groups = candidates // candidate_group_size(k)
    assert len(set(groups.tolist())) == len(candidates) <= CANDIDATES
    assert torch.isfinite(scores[candidates]).all()
    if scores.isfinite().any():
        assert int(scores.argmax()) in candidates.tolist()
    if available.NUMBA:
        from supsup.kernels import numba_search

        count = min(CANDIDATES, int(scores.isfinite().sum()))
        assert numba_search.best(scores.numpy(), CANDIDATES).tolist() == scores.topk(count).indices.tolist()


def test_which_way_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A way that is no longer taken would be a slow search that gives the right answers: no other test would see it."""
    monkeypatch.setattr(available, "NUMBA", True)
    monkeypatch.setattr(available, "TRITON", True)
    bank, gpu = Bank(SHAPES), Bank(SHAPES)
    gpu.device = torch.device("cuda")
    ways = [search.nearest_function(each) for each in (gpu, bank)]
    assert ways == [search.triton_nearest, search.numba_nearest]
    monkeypatch.setattr(available, "NUMBA", False)
    monkeypatch.setattr(available, "TRITON", False)
    assert all(search.nearest_function(each) == search.plain_nearest for each in (gpu, bank))


def test_what_a_search_reads_is_counted_in_bytes() -> None:
    """`supsup bench infer` sets it beside what the memory could deliver: weights of 80, 16 and 5 bytes, 10 masks."""
    bank = filled([10], torch.Generator().manual_seed(0))
    assert [bytes_read(bank, list(names)) for names in ("a", "b", "c", "abc")] == [800, 160, 50, 1010]
    assert bytes_read(bank, ["a"], coordinates=7) == 10 * 1 + 10 * 80, "one of each, then candidates whole"
    assert bytes_read(bank, ["a", "b"], coordinates=96) == 10 * (10 + 2) + 10 * 96
    assert bytes_read(filled([20], torch.Generator()), ["a"], coordinates=7) == 20 * 1 + 16 * 80
    assert bytes_read(bank, ["c"], coordinates=10**6) == 10 * 5 + 10 * 5


@pytest.mark.skipif(not available.NUMBA, reason="numba is not installed")
@given(st.integers(0, 2**31), st.integers(1, 60), st.integers(1, 300), st.integers(1, 60))
def test_compiled_steps(seed: int, size: int, tasks: int, count: int) -> None:
    """Which bytes are taken; sums in whole numbers, up to the last column of the last row; sums of some columns."""
    from supsup.kernels import numba_search

    chance = np.random.default_rng(seed)
    query = chance.standard_normal(8 * size).astype(np.float32) ** 3
    block = chance.integers(0, 256, (size, tasks + int(chance.integers(0, 3))), dtype=np.uint8)[:, :tasks]
    rows, sizes = query.reshape(-1, 8), np.abs(query.reshape(-1, 8)).sum(1)
    ranks, energy = numba_search.ranked(query)
    assert np.isclose(energy, np.square(query).sum(), rtol=1e-4)
    chosen, later = (numba_search.take(ranks, 0, size, each) for each in (count, size))
    assert sorted([*chosen, *later]) == list(range(size)), "every byte once"
    assert len(chosen) == min(count, size)
    assert not len(later) or sizes[later].max() <= 1.07 * sizes[chosen].min()
    assert not len(numba_search.take(ranks, 0, size, size)), "none is left"
    values = numba_search.rounded(query, chosen)
    assert np.isclose(values.energy, np.square(rows[chosen]).sum(), rtol=1e-4)
    assert np.isclose(values.unit, sizes[chosen].max() / numba_search._UNITS)
    error = rows[chosen] - values.unit * values.whole
    assert np.abs(error).max() <= 0.51 * values.unit
    assert np.isclose(values.blurred, np.square(error).sum(), rtol=1e-2, atol=1e-6 * values.energy)
    bits = (block[chosen][:, None] >> np.arange(8)[:, None]) & 1
    assert (
        numba_search.numba_scan(values.whole, chosen, block) == np.einsum("bi,bit->t", values.whole.astype(int), bits)
    ).all()
    expected = np.einsum("bi,bit->t", rows[chosen], bits)
    columns = chance.integers(0, tasks, 5)
    assert np.allclose(numba_search.numba_columns(query, chosen, block, columns), expected[columns], atol=1e-2)


@pytest.mark.skipif(not available.NUMBA, reason="numba is not installed")
def test_bytes_of_zeros_are_never_read() -> None:
    """Half of a ReLU layer's query is 0; reading it would take as long and tell nothing."""
    from supsup.kernels import numba_search

    query = np.zeros(80, np.float32)
    query[[9, 20]] = 1, -2
    ranks, _ = numba_search.ranked(query)
    assert numba_search.take(ranks, 0, 10, 10).tolist() == [1, 2]


@pytest.mark.skipif(not available.NUMBA, reason="numba is not installed")
@pytest.mark.parametrize("images", [1, 3])
def test_a_query_from_its_factors(images: int) -> None:
    """To the bit what torch makes of them, with zeros after the last weight."""
    chance = torch.Generator().manual_seed(images)
    factors = (torch.randn(5, 7, generator=chance), *(torch.randn(2, images, n, generator=chance) for n in (5, 7)))
    by_torch = search.Outer(*factors).dense().flatten(1)
    assert torch.equal(flattened(search.Outer(*factors), 40), torch.nn.functional.pad(by_torch, (0, 5)))


@pytest.mark.skipif(not available.NUMBA, reason="numba is not installed")
def test_sums_in_whole_numbers_do_not_run_over() -> None:
    """A thousand bytes as large as can be, all bits set: more than sums of 16 bits hold."""
    from supsup.kernels import numba_search

    query, block, chosen = np.ones(8000, np.float32), np.full((1000, 70), 255, np.uint8), np.arange(1000)
    scores = numba_search.numba_scan(numba_search.rounded(query, chosen).whole, chosen, block)
    assert scores.tolist() == [1000 * 8 * round(numba_search._UNITS / 8)] * 70


@pytest.mark.skipif(not available.TRITON, reason="triton is not installed")
@pytest.mark.parametrize(("size", "count"), [(50, 7), (300, 33), (16, 16)])
def test_the_kernel_that_chooses_bytes(size: int, count: int) -> None:
    """The largest byte of each group, of all that leave the same remainder, after the bytes of another layer."""
    from supsup.kernels import triton_search

    query = torch.randn(8 * (5 + size), generator=torch.Generator().manual_seed(size))
    sizes = query.view(-1, 8).abs().sum(1)[5:]
    chosen = triton_search.choose(query, [(0, 5, 5), (5, 5 + size, count)])
    assert chosen[:5].tolist() == list(range(5))
    expected = [max(range(group, size, count), key=lambda byte: float(sizes[byte])) + 5 for group in range(count)]
    assert chosen[5:].tolist() == expected


@pytest.mark.skipif(not available.NUMBA, reason="numba is not installed")
@pytest.mark.parametrize(("rest", "scans"), [(0.0, 1), (0.02, 1), (0.5, 3)])
def test_as_much_is_read_as_leaves_no_doubt(rest: float, scans: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of a query counts for what it could still change; one that is read is not read again."""
    from supsup.inference.search import numba_nearest
    from supsup.kernels import numba_search

    read: list[list[int]] = []
    scan = numba_search.numba_scan

    def watched(values: object, chosen: np.ndarray, block: object) -> object:
        read.append(chosen.tolist())
        return scan(values, chosen, block)  # type: ignore[arg-type]

    monkeypatch.setattr(numba_search, "numba_scan", watched)
    generator = torch.Generator().manual_seed(0)
    query = torch.cat([torch.ones(32), rest * torch.randn(480, generator=generator)])
    block = torch.randint(256, (64, 40), generator=generator, dtype=torch.uint8)
    block[:4, 7] = 255
    block[4:, 7] = ((query[32:].view(-1, 8) > 0) << torch.arange(8)).sum(1).to(torch.uint8)
    assert int(numba_nearest(query, [(0, 64, 4)], [block], None)) == 7
    assert len(read) == scans
    assert sorted(read[0]) == [0, 1, 2, 3]
    assert [len(bytes_) for bytes_ in read] == [4, 4, 8][:scans] if rest else True
    assert len({byte for bytes_ in read for byte in bytes_}) == sum(map(len, read))


@pytest.mark.skipif(not available.NUMBA, reason="numba is not installed")
@given(st.lists(st.sampled_from([-np.inf, *map(float, range(9))]), max_size=30), st.integers(1, 6))
def test_the_best_are_in_order_and_nothing_is_written_beyond_them(scores: list[float], most: int) -> None:
    from supsup.kernels import numba_search

    indices = np.full(most + 2, -7, np.int64)
    values = np.array(scores, np.float32)
    count = numba_search._best(values, indices[1:-1])
    expected = sorted((score for score in scores if score > -np.inf), reverse=True)[:most]
    assert values[indices[1 : 1 + count]].tolist() == expected
    assert (indices[0], indices[-1]) == (-7, -7)
    assert numba_search.best(values, most).tolist() == indices[1 : 1 + count].tolist()


@pytest.mark.skipif(not available.NUMBA, reason="numba is not installed")
def test_a_query_from_its_factors_ends_in_zeros() -> None:
    from supsup.kernels import numba_search

    rows = np.full((2, 16), np.nan, np.float32)
    weight, delta, inputs = np.full((3, 4), 2, np.float32), np.ones((2, 3), np.float32), np.ones((2, 4), np.float32)
    numba_search._outer(weight, delta, inputs, rows)
    assert rows.tolist() == [[2.0] * 12 + [0.0] * 4] * 2


@pytest.mark.skipif(not available.NUMBA, reason="numba is not installed")
@pytest.mark.parametrize("bounds", [[0, 300], [0, 100, 300], [0, 7, 64, 65, 300]])
def test_every_thread_scans_its_share_of_the_tasks(bounds: list[int]) -> None:
    from supsup.kernels import numba_search

    chance = np.random.default_rng(0)
    values = chance.integers(-15, 16, (5, 8)).astype(np.int8)
    block = chance.integers(0, 256, (9, 300), dtype=np.uint8)
    chosen, out = np.array([0, 3, 4, 7, 8]), np.full(300, np.nan, np.float32)
    numba_search._scan(1)(values, chosen, numba_search._flat(block), block.strides[0], np.array(bounds), out)
    bits = (block[chosen][:, None] >> np.arange(8)[:, None]) & 1
    assert (out == np.einsum("bi,bit->t", values.astype(int), bits)).all()
