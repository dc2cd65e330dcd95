"""What the ways of a search from few bytes have in common: how many candidates there are, and from where."""

from __future__ import annotations

Some = tuple[int, int, int]  # of the bytes from one to another, so many

CANDIDATES = 16  # masks among which the exact inner product decides
_GROUPS = 256  # of tasks: the best of each may become a candidate


def group_size(tasks: int) -> int:
    """How many tasks, neighbours in the bank, there are in a group."""
    return -(-tasks // _GROUPS)
