"""Which compilers for kernels are installed; without them the plain torch code runs.

Only the compiler may be missing. A kernel of this package that does not import is an error, not a slow path.
"""

from __future__ import annotations

from importlib.util import find_spec

TRITON = find_spec("triton") is not None  # comes with torch where there is a GPU
NUMBA = find_spec("numba") is not None  # the extra `fast`
