"""How long OpenMP's threads spin while they wait for one another: shortly, or a busy machine comes to a halt.

Who imports supsup before torch has it said in the environment (`supsup/__init__.py`). With torch first it is too late
for that, and libgomp spins for 300,000 turns, about 3 ms, at every layer. But where it has more threads than there are
cores it gives up after 100 (its manual, `GOMP_SPINCOUNT`): while the machine is busy, a team of threads sleeps beside.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from supsup.concurrency.locks import new_lock

NAME = "supsup's sleeping team"
_SAID = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # by the user, or by us in time
_BUSY = 1.5  # processes that want to run, for each core: no time to spin. On an idle machine spinning is faster
_EVERY = 1.0  # seconds between two looks at that
_NUMBERS = 1 << 20  # enough for torch to take all of its threads
_LOOKING = new_lock()
_looked = -_EVERY
_team: _Team | None = None


def heed_load() -> None:
    """Have threads that wait go to sleep soon while the machine is busy, unless the environment says how they wait."""
    global _looked, _team
    if time.monotonic() - _looked < _EVERY or not _may_choose():
        return
    with _LOOKING:
        _looked = time.monotonic()
        busy = os.getloadavg()[0] > _BUSY * len(os.sched_getaffinity(0))
        if _team is not None and not _team.is_alive():
            _team = None  # of the process that this one was forked from
        if busy and _team is None and torch.get_num_threads() > 1:
            _team = _Team()
        elif not busy and _team is not None:
            _team.wake()
            _team = None


@contextmanager
def without_spinning() -> Iterator[None]:
    """The same while it lasts, busy or not: more threads will work here than there are cores."""
    team = _Team() if _may_choose() and torch.get_num_threads() > 1 else None
    try:
        yield
    finally:
        if team is not None:
            team.wake()


def _may_choose() -> bool:
    return sys.platform == "linux" and not any(name in os.environ for name in _SAID)


class _Team(threading.Thread):
    """A thread with a team of torch's threads, all asleep; the team lasts as long as the thread."""

    def __init__(self) -> None:
        super().__init__(name=NAME, daemon=True)
        self._asleep, self._awake = threading.Event(), threading.Event()
        self.start()
        self._asleep.wait()

    def run(self) -> None:
        torch.ones(_NUMBERS).add_(1)
        self._asleep.set()
        self._awake.wait()

    def wake(self) -> None:
        """Let the thread end."""
        self._awake.set()
        self.join()
