"""How long OpenMP's threads spin while they wait for one another: shortly, or a busy machine comes to a halt.

Who imports supsup before torch has it said in the environment (`supsup/__init__.py`). With torch first it is too late
for that, and libgomp spins for 300,000 turns, about 3 ms, at every layer. But where it has more threads than there are
cores it gives up after 100 (its manual, `GOMP_SPINCOUNT`): while the machine is busy, a team of threads sleeps beside.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

from supsup.runtime.locks import new_lock

NAME = "supsup's sleeping team"
_SAID = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # by the user, or by us in time
_BUSY = 1.5  # processes that want to run, for each core: no time to spin. On an idle machine spinning is faster
_EVERY = 1.0  # seconds between two looks at that
_NUMBERS = 1 << 20  # enough for torch to take all of its threads
_LOOKING = new_lock()
_looked = -_EVERY
_team: _Team | None = None


def yield_when_busy() -> None:
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


# MERGED MODULE DOC: A process forked from one in which torch has computed: its threads are gone, and waiting for them would never end.
# MERGED MODULE DOC: Python's collector of garbage, kept away where it would spoil something or only cost time.
# MERGED MODULE DOC: Memory that one step frees and the next one needs again stays with the process. By default glibc soon gives it back to the system, which hands it out again page by page, each filled with zeros first: for tensors of a megabyte that takes many times longer than to compute with them.
@cache
def one_thread_when_forked() -> None:
    """Torch has one thread in every process that is forked from now on."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_one_thread)


def _one_thread() -> None:
    torch.set_num_threads(1)


@contextmanager
def no_collecting() -> Iterator[None]:
    """Python's collector of garbage, which may come along anywhere, stays away inside."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


_TRIM, _MAPPED = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
_KEPT = 256 << 20  # bytes that are free at the end of a heap; a thread has a heap of its own
_LARGE = 32 << 20  # bytes from which on a piece of memory is the system's own affair; glibc takes no more


@cache
def keep_freed_memory() -> None:
    """From now on, unless somebody has told glibc what to do; elsewhere nothing happens."""
    replaced = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"} & set(os.environ)
    if replaced or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_MAPPED, _LARGE)
    mallopt(_TRIM, _KEPT)
