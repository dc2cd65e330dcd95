"""Memory that one step frees and the next one needs again stays with the process.

By default glibc soon gives it back to the system, which hands it out again page by page, each filled with zeros first:
for tensors of a megabyte that takes many times longer than to compute with them.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

_TRIM, _MAPPED = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
_KEPT = 256 << 20  # bytes that are free at the end of a heap; a thread has a heap of its own
_LARGE = 32 << 20  # bytes from which on a piece of memory is the system's own affair; glibc takes no more


@cache
def keep_freed_memory() -> None:
    """From now on, unless somebody has told glibc what to do; elsewhere nothing happens."""
    told = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"} & set(os.environ)
    if told or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_MAPPED, _LARGE)
    mallopt(_TRIM, _KEPT)
