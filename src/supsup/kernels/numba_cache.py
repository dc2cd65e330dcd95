"""Compiled loops that are kept on disk where that is possible, and compiled anew in each process where it is not."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import update_wrapper
from typing import Any

import numba

Loop = Callable[..., Any]
ANY_ORDER = {"reassoc", "contract"}  # `fastmath` for sums that may be taken in any order, and so in vectors


def compiled(**options: Any) -> Callable[[Loop], Loop]:
    """`numba.njit(cache=True, …)`, but a cache that is missing, full, read-only or damaged costs time and nothing else.

    For loops that raise nothing of their own: an error means that the cache failed, before the loop has begun.
    """

    def decorate(loop: Loop) -> Loop:
        return update_wrapper(_Compiled(loop, options), loop)

    return decorate


class _Compiled:
    def __init__(self, loop: Loop, options: dict[str, Any]) -> None:
        self._loop, self._options = loop, options
        self._kept = _cached(loop, options)
        self._run = self._kept or self._anew()

    def __call__(self, *arguments: Any) -> Any:
        try:
            return self._run(*arguments)
        except Exception:
            if self._kept is None:
                raise
            self._kept, self._run = None, self._anew()
            return self._run(*arguments)

    def _anew(self) -> Loop:
        made: Loop = numba.njit(**self._options)(self._loop)
        return made


def _cached(loop: Loop, options: dict[str, Any]) -> Loop | None:
    """The loop with a cache, None where no folder for one can be written."""
    if os.path.expanduser("~").startswith("~") and "NUMBA_CACHE_DIR" not in os.environ:
        return None  # numba would make a folder called ~ where the program was started
    try:
        made: Loop = numba.njit(cache=True, **options)(loop)
    except (RuntimeError, OSError):
        return None
    return made
