"""How loops are compiled by numba: cached on disk where possible, and run on as many threads as torch has."""

from __future__ import annotations

import os
import types
from collections.abc import Callable
from functools import update_wrapper
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
        return update_wrapper(_Compiled(loop, options), loop)

    return decorate


class _Compiled:
    def __init__(self, loop: Loop, options: dict[str, Any]) -> None:
        self._loop, self._options = loop, options
        self._cached = _with_cache(loop, options)
        self._run = self._cached or self._compile()

    def __call__(self, *arguments: Any) -> Any:
        try:
            return self._run(*arguments)
        except Exception:
            if self._cached is None:
                raise
            self._cached, self._run = None, self._compile()
            return self._run(*arguments)

    def _compile(self) -> Loop:
        made: Loop = numba.njit(**self._options)(self._loop)
        return made


def _with_cache(loop: Loop, options: dict[str, Any]) -> Loop | None:
    """The loop with a cache, None if no folder for a cache can be written."""
    if os.path.expanduser("~").startswith("~") and "NUMBA_CACHE_DIR" not in os.environ:
        return None  # numba would create a folder called ~ in the current directory
    try:
        made: Loop = numba.njit(cache=True, **options)(loop)
    except (RuntimeError, OSError):
        return None
    return made


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

        def choose(threads: int) -> Loop:
            return alone if threads == 1 else together

        return update_wrapper(choose, loop)

    return decorate


def _renamed(loop: Loop, name: str) -> Loop:
    """The same function under another name, since numba's cache is keyed by name."""
    assert isinstance(loop, types.FunctionType)
    other = types.FunctionType(loop.__code__, loop.__globals__, name, loop.__defaults__, loop.__closure__)
    other.__qualname__, other.__module__ = name, loop.__module__
    return other
