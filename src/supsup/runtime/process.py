"""Settings of the whole process: `tune_process`, which commands call and programs may, and what forks and loading need.

Importing or using the library changes none of these settings. This module does not import torch by itself, so that
`tune_process` can come first.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial

SLEEPING_TEAM = "supsup's sleeping team"  # the name of the thread
_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # variables that say how OpenMP's threads wait
_MALLOC = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
_KEPT = 256 << 20  # free bytes that may stay at the end of a heap; each thread has a heap
_LARGE = 32 << 20  # bytes from which glibc maps an allocation by itself; the largest threshold that glibc accepts
_ALL_THREADS = 1 << 20  # elements in an operation for which torch uses all of its threads


@cache
def tune_process() -> None:
    """Tune this process for work on a CPU that is shared with other programs; settings of the user take precedence.

    - Threads that wait for one another sleep instead of spinning. By default libgomp spins for 300,000 turns (about
      3 ms) at every layer, and a busy machine comes to a halt; on an idle machine spinning is a little faster. Before
      torch is imported this is the variable `OMP_WAIT_POLICY=PASSIVE`. Afterwards, on Linux, a second team of torch's
      threads is started and left asleep: with more threads than cores, libgomp spins for 100 turns only.
    - glibc keeps up to 256 MB of freed memory for each heap (`mallopt`). By default it returns memory to the system,
      which fills every page with zeros before it hands the page out again: for tensors of a megabyte that takes many
      times longer than computing with them.

    Every `supsup` command calls this. In a program of your own call it before torch is imported, if you want it.
    """
    if not any(name in os.environ for name in _WAITING):
        if "torch" not in sys.modules:
            os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        elif sys.platform == "linux":
            _start_sleeping_team()
    if not any(name in os.environ for name in _MALLOC) and "glibc.malloc" not in os.environ.get("GLIBC_TUNABLES", ""):
        _keep_freed_memory()


def _start_sleeping_team() -> None:
    """A thread that has used torch's threads once and sleeps until the process ends; its team lives as long."""
    import torch

    asleep = threading.Event()

    def sleep() -> None:
        torch.ones(_ALL_THREADS).add_(1)
        asleep.set()
        threading.Event().wait()

    if torch.get_num_threads() > 1:
        threading.Thread(target=sleep, name=SLEEPING_TEAM, daemon=True).start()
        asleep.wait()


def _keep_freed_memory() -> None:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return
    mallopt(_MMAP_THRESHOLD, _LARGE)
    mallopt(_TRIM_THRESHOLD, _KEPT)


@cache
def one_thread_when_forked() -> None:
    """Give torch one thread in every process forked from now on: it would wait forever for threads that are gone."""
    import torch

    os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Python's garbage collector does not run inside: it would only cost time, or free something at a bad moment."""
    enabled = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if enabled:
            gc.enable()
