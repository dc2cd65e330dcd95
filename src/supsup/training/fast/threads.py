"""Python threads in each of which torch has one thread: as many trainings side by side as a CPU has cores."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from supsup.runtime.interrupts import uninterrupted
from supsup.runtime.locks import new_lock
from supsup.training.jobs import Job, Trained

_STARTING = new_lock()
_AHEAD = 2  # jobs for each thread, of which one waits


class ThreadsOfOne(ThreadPoolExecutor):
    """So many threads, all started at once.

    The number of torch's threads belongs to the thread that sets it, but is also what threads begin with that come
    later, wherever they belong to: so it is one only for the moment in which these here start. What it was is asked and
    set back in a new thread: the calling one may have a number of its own, and may itself have begun in such a moment.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        started = threading.Barrier(threads + 1)

        def begin() -> None:
            torch.set_num_threads(1)
            torch.get_num_threads()  # a thread takes over the number when it first asks
            started.wait()

        def start() -> None:
            before = torch.get_num_threads()
            try:
                for _ in range(threads):
                    self.submit(int)
                started.wait()
            except BaseException:
                started.abort()
                raise
            finally:
                torch.set_num_threads(before)

        super().__init__(threads, initializer=begin)
        with _STARTING, uninterrupted(), ThreadPoolExecutor(1) as other:
            other.submit(start).result()


def in_threads_of_one(
    train: Callable[[Job, threading.Event], Trained], jobs: Sequence[Job]
) -> Generator[Trained, None, None]:
    """Jobs, as many at a time as torch has threads, in order; `train` gives up when its event is set.

    Few are begun before the first of them is asked for, so that what takes them has the cores in its turn: a mask that
    nobody has kept yet is lost when somebody interrupts.
    """
    stop = threading.Event()
    with ThreadsOfOne(min(torch.get_num_threads(), len(jobs))) as pool:
        begun: deque[Future[Trained]] = deque()
        try:
            for job in jobs:
                begun.append(pool.submit(train, job, stop))
                if len(begun) > _AHEAD * pool.threads:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
