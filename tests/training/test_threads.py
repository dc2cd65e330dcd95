"""Trainings in threads of one: in order, a few ahead of who takes them."""

import threading
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch

from supsup.training.executors import Job, Trained
from supsup.training.fast.side_by_side import in_threads_of_one


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def jobs(count: int) -> list[Job]:
    return cast(list[Job], list(range(count)))


def test_few_trainings_are_begun_before_they_are_asked_for() -> None:
    """What was trained and not yet kept is lost when somebody interrupts, and takes the cores of who keeps it."""
    begun: list[int] = []

    def train(job: Any, stop: threading.Event) -> Trained:
        begun.append(job)
        time.sleep(0.001)
        return cast(Trained, job)

    finished = cast(Iterator[int], in_threads_of_one(train, jobs(20)))
    for taken, trained in enumerate(finished, 1):
        time.sleep(0.02)
        assert trained == taken - 1
        assert len(begun) <= taken + 4
    assert sorted(begun) == list(range(20))


def test_what_fails_stops_the_others() -> None:
    stopped: list[bool] = []

    def train(job: Any, stop: threading.Event) -> Trained:
        if job == 2:
            raise ValueError("no such image")
        stopped.append(stop.wait(5 if job == 3 else 0))
        return cast(Trained, job)

    finished = cast(Iterator[int], in_threads_of_one(train, jobs(20)))
    assert [next(finished), next(finished)] == [0, 1]
    with pytest.raises(ValueError, match="no such image"):
        next(finished)
    assert stopped[-1], "the one under way was told to give up"
    assert len(stopped) < 8
