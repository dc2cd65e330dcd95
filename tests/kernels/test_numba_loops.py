"""Compiled loops keep to the number of threads that torch was given."""

import subprocess
import sys

import pytest
import torch

numba = pytest.importorskip("numba")


@pytest.mark.parametrize(("wanted", "layers"), [(1, 0), (2, 1)])
def test_a_search_leaves_the_threads_as_they_were(wanted: int, layers: int) -> None:
    """In a process of its own: numba starts its threads once, and OpenMP's number with them; for one thread none."""
    code = f"""
import torch
from supsup.masks.bank import Bank
from supsup.inference.search import inner
torch.set_num_threads({wanted})
bank = Bank({{"w": torch.Size((8, 8))}})
for _ in range(3):
    bank.add({{"w": torch.rand(8, 8) > 0.5}})
inner({{"w": torch.rand(1, 8, 8)}}, bank)
from numba.np.ufunc import parallel
print(torch.get_num_threads(), int(parallel._is_initialized))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == [str(wanted), str(layers)], done.stderr


def test_as_many_as_torch_has() -> None:
    from supsup.kernels.numba_loops import thread_count

    before = torch.get_num_threads()
    try:
        for wanted in (1, before):
            torch.set_num_threads(wanted)
            assert thread_count() == min(wanted, numba.config.NUMBA_NUM_THREADS)
            assert torch.get_num_threads() == wanted
    finally:
        torch.set_num_threads(before)
