"""The search from few bytes on a CPU: candidates race, since the bytes of one mask lie far apart.

To read all of some candidates would cost more than the few bytes of all masks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from supsup.kernels import numba_short
from supsup.kernels.numba_short import Bytes, Floats, Indices
from supsup.search.candidates import CANDIDATES, Some, group_size

_ROUNDS = 3  # before all bytes are read: each reads as many again as were read before, of half the candidates
_FAR_AHEAD = 4  # standard deviations


def numba_nearest(query: Tensor, wanted: Sequence[Some], blocks: Sequence[Tensor], alive: Tensor | None) -> Tensor:
    """Whole numbers rank the masks; then more bytes of fewer candidates are read, until one is far ahead.

    It is if the bytes that are left could make up for the difference only by so many deviations, for random masks.
    """
    numbers, masks = query.numpy(), [block.numpy() for block in blocks]
    falling = [numba_short.falling(numbers, start, stop) for start, stop, _ in wanted]
    read, until = [0] * len(wanted), [count for _, _, count in wanted]
    candidates, total = np.empty(0, np.int64), np.empty(0, np.float32)
    for step in range(_ROUNDS + 1):
        chosen = np.concatenate([order[a:b] for (order, _), a, b in zip(falling, read, until)])
        if step == 0:
            candidates = _shortlist(numbers, chosen, masks, alive)
            total = np.zeros(len(candidates), np.float32)
        total += _products(numbers, chosen, masks, candidates)
        order = np.argsort(-total, kind="stable")[: CANDIDATES >> (step + 1)]
        unread = sum(float(squares[b:].sum()) for (_, squares), b in zip(falling, until))
        near = order[total[order] >= total[order[0]] - _FAR_AHEAD * (0.5 * unread) ** 0.5]
        candidates, total = candidates[near], total[near]
        if len(candidates) == 1:
            break
        read, until = until, [2 * b if step + 1 < _ROUNDS else len(order) for b, (order, _) in zip(until, falling)]
    return torch.tensor(candidates[0])


def _shortlist(query: Floats, chosen: Indices, masks: Sequence[Bytes], alive: Tensor | None) -> Indices:
    """The candidates, by the chosen bytes of all masks."""
    scores = np.concatenate([numba_short.scan(query, chosen, block) for block in masks])
    if alive is not None:
        scores[~alive.numpy()] = -np.inf
    return numba_short.shortlist(scores, group_size(len(scores)), CANDIDATES)


def _products(query: Floats, chosen: Indices, masks: Sequence[Bytes], candidates: Indices) -> Floats:
    """The inner products of the candidates over the chosen bytes."""
    out, first = np.zeros(len(candidates), np.float32), 0
    for block in masks:
        here = (candidates >= first) & (candidates < first + block.shape[1])
        if here.any():
            out[here] = numba_short.columns(query, chosen, block, candidates[here] - first)
        first += block.shape[1]
    return out
