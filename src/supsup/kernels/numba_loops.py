"""How loops are compiled by numba: cached on disk where possible, and run on as many threads as torch has."""

from __future__ import annotations

import os
import types
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

import numba
import torch

Loop = Callable[..., Any]
ANY_ORDER = {"reassoc", "contract"}  # `fastmath` for sums that may be taken in any order, and so in vectors


def compiled(**options: Any) -> Callable[[Loop], Loop]:
    """`numba.njit(cache=True, …)`; with a missing, full or damaged cache the loop is compiled in each process.

    Only for loops that never raise: an error means that the cache failed, before the loop began.
    """

    def decorate(loop: Loop) -> Loop:
        uncached: Loop = numba.njit(**options)(loop)  # compiled when it is first called
        cached: Loop | None = None
        # Without a home folder numba would create a folder called ~ in the current directory.
        if not os.path.expanduser("~").startswith("~") or "NUMBA_CACHE_DIR" in os.environ:
            with suppress(RuntimeError, OSError):  # no folder for a cache can be written
                cached = numba.njit(cache=True, **options)(loop)

        @wraps(loop)
        def run(*arguments: Any) -> Any:
            nonlocal cached
            if cached is not None:
                try:
                    return cached(*arguments)
                except Exception:
                    cached = None
            return uncached(*arguments)

        return run

    return decorate


def thread_count() -> int:
    """The number of threads for the next compiled loop of this Python thread.

    The first parallel loop starts numba's threads, one for each core, and sets the number of OpenMP threads that torch
    shares. If the user asked for fewer, torch would suddenly use all cores, which is many times slower on a busy
    machine; so the number is restored. With one thread none is started: a forked process could not use them.
    """
    wanted = torch.get_num_threads()
    usable: int = min(wanted, numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
    if usable == 1:
        return 1
    numba.set_num_threads(usable)
    if torch.get_num_threads() != wanted:
        torch.set_num_threads(wanted)
    return usable


def shared_out(**options: Any) -> Callable[[Loop], Callable[[int], Loop]]:
    """A decorator for a loop over threads: the result takes a number of threads and returns the compiled loop.

    For one thread the loop is compiled without parallelism: it starts no threads and releases Python's lock.
    """

    def decorate(loop: Loop) -> Callable[[int], Loop]:
        together = compiled(parallel=True, **options)(loop)
        alone = compiled(nogil=True, **options)(_renamed(loop, f"{loop.__name__}_alone"))

        @wraps(loop)
        def choose(threads: int) -> Loop:
            return alone if threads == 1 else together

        return choose

    return decorate


def _renamed(loop: Loop, name: str) -> Loop:
    """The same function under another name, since numba's cache is keyed by name."""
    assert isinstance(loop, types.FunctionType)
    other = types.FunctionType(loop.__code__, loop.__globals__, name, loop.__defaults__, loop.__closure__)
    other.__qualname__, other.__module__ = name, loop.__module__
    return other
