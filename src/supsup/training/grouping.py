"""Which jobs are trained together: neighbours that are alike, as many as the device has memory for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

Item = TypeVar("Item")

_FILLED = 0.7  # the share of the free memory that may be filled


def free_memory(device: torch.device) -> int:
    """Bytes on a GPU that torch could still take."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def fitting(bytes_each: int, memory: int, most: int) -> int:
    """How many of a size fit into memory: at least 1, at most `most`."""
    return max(1, min(most, int(_FILLED * memory) // max(1, bytes_each)))


def groups(
    items: Sequence[Item],
    alike: Callable[[Item, Item], bool],
    bytes_each: Callable[[Item], int],
    memory: int,
    most: int,
) -> list[list[Item]]:
    """Items in order, in groups of about equal size; all of a group are like its first and fit into memory together."""
    return groups_of(items, alike, lambda first: fitting(bytes_each(first), memory, most))


def groups_of(
    items: Sequence[Item], alike: Callable[[Item, Item], bool], most: Callable[[Item], int]
) -> list[list[Item]]:
    """The same where it is known how many go at most with such a first item."""
    runs: list[list[Item]] = []
    for item in items:
        if runs and alike(runs[-1][0], item):
            runs[-1].append(item)
        else:
            runs.append([item])
    out = []
    for run in runs:
        count = math.ceil(len(run) / most(run[0]))
        size = math.ceil(len(run) / count)
        out += [run[start : start + size] for start in range(0, len(run), size)]
    return out
