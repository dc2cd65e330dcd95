"""The search from few bytes on a CPU: more bytes of all masks are added, until one mask is far ahead.

The bytes of one mask lie far apart, so that to read all of some candidates costs more than a few bytes of all masks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from supsup.kernels import numba_short
from supsup.kernels.numba_short import Bytes, Floats, Indices, Ranks

_SCANS = (1, 1, 2)  # how many times the bytes asked for are read each time: as many again as before
_FAR_AHEAD = 4  # standard deviations


def numba_nearest(query: Tensor, wanted: Sequence[Some], blocks: Sequence[Tensor], alive: Tensor | None) -> Tensor:
    """Whole numbers rank the masks; the first is far ahead or, in the end, the exact inner product decides.

    It is if the bytes that are left, and what was rounded, could make up for the difference only by so many
    deviations, for random masks.
    """
    numbers, masks = query.numpy(), [block.numpy() for block in blocks]
    scores = np.zeros(sum(block.shape[1] for block in masks), np.float32)
    if alive is not None:
        scores[~alive.numpy()] = -np.inf
    ranks, unread = numba_short.ranked(numbers)
    near = np.empty(0, np.int64)
    for times in _SCANS:
        chosen = _largest(ranks, [(start, stop, times * count) for start, stop, count in wanted])
        values = numba_short.rounded(numbers, chosen)
        found = [numba_short.numba_scan(values.whole, chosen, block) for block in masks]
        scores += np.float32(values.unit) * np.concatenate(found)
        unread += values.blurred - values.energy
        best = numba_short.best(scores, CANDIDATES)
        near = best[scores[best] >= scores[best[0]] - _FAR_AHEAD * (0.5 * max(0.0, unread)) ** 0.5]
        if len(near) == 1:
            return torch.tensor(near[0])
    ranks, _ = numba_short.ranked(numbers)
    everything = _largest(ranks, [(start, stop, stop - start) for start, stop, _ in wanted])
    return torch.tensor(near[np.argmax(_products(numbers, everything, masks, near))])


def _largest(ranks: Ranks, wanted: Sequence[Some]) -> Indices:
    """The largest bytes that have not been read, so many of each layer where there are."""
    return np.concatenate([numba_short.take(ranks, *some) for some in wanted])


def _products(query: Floats, chosen: Indices, masks: Sequence[Bytes], candidates: Indices) -> Floats:
    """The inner products of the candidates over the chosen bytes."""
    out, first = np.zeros(len(candidates), np.float32), 0
    for block in masks:
        here = (candidates >= first) & (candidates < first + block.shape[1])
        if here.any():
            out[here] = numba_short.numba_columns(query, chosen, block, candidates[here] - first)
        first += block.shape[1]
    return out


# MERGED MODULE DOC: What the ways of a search from few bytes have in common: how many candidates there are, and from where.
Some = tuple[int, int, int]  # of the bytes from one to another, so many

CANDIDATES = 16  # masks among which the exact inner product decides
_GROUPS = 256  # of tasks: the best of each may become a candidate


def group_size(tasks: int) -> int:
    """How many tasks, neighbours in the bank, there are in a group."""
    return -(-tasks // _GROUPS)
