"""How many threads compiled loops use: as many as torch, whose number they would otherwise change."""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import update_wrapper
from typing import Any

import numba
import torch

from supsup.kernels.numba_cache import compiled

Loop = Callable[..., None]


def thread_count() -> int:
    """The number of threads for the next compiled loop of this Python thread.

    The first such loop starts numba's threads, one for each core, and with them sets the number of OpenMP threads that
    torch shares. Where somebody asked for fewer, torch would suddenly use all of them: on a busy machine that makes it
    many times slower. For one thread none is started: a forked process, which may have one only, could not use them.
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
    """A decorator for a loop over threads: what it gives takes the number of threads and gives the compiled loop.

    For one thread it is compiled as an ordinary loop, which starts no threads and keeps no other from running.
    """

    def decorate(loop: Loop) -> Callable[[int], Loop]:
        together = compiled(parallel=True, **options)(loop)
        alone = compiled(nogil=True, **options)(_renamed(loop, f"{loop.__name__}_alone"))

        def choose(threads: int) -> Loop:
            return alone if threads == 1 else together

        return update_wrapper(choose, loop)

    return decorate


def _renamed(loop: Loop, name: str) -> Loop:
    """The same function under another name, since numba keeps compiled ones by name."""
    assert isinstance(loop, types.FunctionType)
    other = types.FunctionType(loop.__code__, loop.__globals__, name, loop.__defaults__, loop.__closure__)
    other.__qualname__, other.__module__ = name, loop.__module__
    return other
