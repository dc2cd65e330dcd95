"""When an answer is replayed and when it is computed; graphs themselves need a GPU (`test_gpu`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from supsup.kernels import graphs as replays
from supsup.kernels.graphs import Replays


class OnGPU(Tensor):
    """A tensor that says it lies on a GPU."""

    is_cuda = True

    @staticmethod
    def __new__(cls, values: list[float]) -> "OnGPU":
        return torch.tensor(values).as_subclass(cls)


class Recorded:
    """In place of a CUDA graph: it computes again from the tensor that it was captured with."""

    def __init__(self, work: "Work") -> None:
        self.work = work

    def replay(self) -> None:
        self.work.replayed += 1
        self.work.captured[1].copy_(2 * self.work.captured[0])


class Work:
    """Doubles a tensor; counts how often it is computed and how often replayed."""

    def __init__(self) -> None:
        self.computed = self.replayed = 0
        self.captured: tuple[Tensor, Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        self.computed += 1
        self.captured = (x, 2 * x)
        return self.captured[1]


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    work = Work()

    @contextmanager
    def capture() -> Iterator[Any]:
        yield Recorded(work)

    monkeypatch.setattr(replays, "capture", capture)
    return work


def test_from_the_second_time_on_an_answer_is_replayed(work: Work) -> None:
    """Each replay must read the image it is asked about, and its answer must not change with the next one."""
    cache = Replays()
    answers = [cache.answer("double", work, OnGPU([value]), lambda: True) for value in (1.0, 2.0, 3.0, 4.0)]
    assert [float(answer) for answer in answers] == [2, 4, 6, 8]
    assert (work.computed, work.replayed) == (2, 3)
    cache.answer("another", work, OnGPU([1.0]), lambda: True)
    assert (work.computed, work.replayed) == (3, 3)
    cache.clear()
    assert float(cache.answer("double", work, OnGPU([5.0]), lambda: True)) == 10
    assert (work.computed, work.replayed) == (4, 3)


@pytest.mark.parametrize(("x", "capturable"), [(torch.ones(1), True), (OnGPU([1.0, 2.0]), True), (OnGPU([1.0]), False)])
def test_what_is_never_replayed(work: Work, x: Tensor, capturable: bool) -> None:
    """On a CPU there are no graphs, many images need none, and not every module can be captured."""
    cache = Replays()
    for _ in range(4):
        assert torch.equal(cache.answer("double", work, x, lambda: capturable), 2 * x)
    assert (work.computed, work.replayed) == (4, 0)
