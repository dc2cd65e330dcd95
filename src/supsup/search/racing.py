"""The search from few bytes on a CPU: candidates race, since the bytes of one mask lie far apart.

To read all of some candidates would cost more than the few bytes of all masks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from supsup.kernels import numba_short
from supsup.kernels.numba_short import Bytes, Floats, Indices, Ranks
from supsup.search.candidates import CANDIDATES, Some, group_size

_ROUNDS = 3  # before all bytes are read: each reads as many again as were read before, of half the candidates
_FAR_AHEAD = 4  # standard deviations


def numba_nearest(query: Tensor, wanted: Sequence[Some], blocks: Sequence[Tensor], alive: Tensor | None) -> Tensor:
    """Whole numbers rank the masks; then more bytes of fewer candidates are read, until one is far ahead.

    It is if the bytes that are left, and what was rounded, could make up for the difference only by so many
    deviations, for random masks.
    """
    numbers, masks = query.numpy(), [block.numpy() for block in blocks]
    ranks, energy = numba_short.ranked(numbers)
    chosen = _more(ranks, wanted)
    values = numba_short.rounded(numbers, chosen)
    scores = np.concatenate([numba_short.scan(values.whole, chosen, block) for block in masks])
    if alive is not None:
        scores[~alive.numpy()] = -np.inf
    candidates, unread = numba_short.shortlist(scores, group_size(len(scores)), CANDIDATES), energy - values.energy
    about = scores[candidates] * np.float32(values.unit)
    candidates = candidates[_near(about, CANDIDATES, unread + values.blurred)]
    if len(candidates) == 1:
        return torch.tensor(candidates[0])
    total = _products(numbers, chosen, masks, candidates)
    for step in range(_ROUNDS + 1):
        near = _near(total, CANDIDATES >> (step + 1), unread)
        candidates, total = candidates[near], total[near]
        if len(candidates) == 1:
            break
        again = [(start, stop, count << step if step + 1 < _ROUNDS else stop - start) for start, stop, count in wanted]
        chosen = _more(ranks, again)
        unread -= numba_short.rounded(numbers, chosen).energy
        total += _products(numbers, chosen, masks, candidates)
    return torch.tensor(candidates[0])


def _more(ranks: Ranks, wanted: Sequence[Some]) -> Indices:
    """The largest bytes that have not been read, so many of each layer where there are."""
    return np.concatenate([numba_short.take(ranks, *some) for some in wanted])


def _near(total: Floats, most: int, unread: float) -> Indices:
    """Those that are not far behind the best, the best first."""
    order: Indices = np.argsort(-total, kind="stable")[:most]
    near: Indices = order[total[order] >= total[order[0]] - _FAR_AHEAD * (0.5 * max(0.0, unread)) ** 0.5]
    return near


def _products(query: Floats, chosen: Indices, masks: Sequence[Bytes], candidates: Indices) -> Floats:
    """The inner products of the candidates over the chosen bytes."""
    out, first = np.zeros(len(candidates), np.float32), 0
    for block in masks:
        here = (candidates >= first) & (candidates < first + block.shape[1])
        if here.any():
            out[here] = numba_short.columns(query, chosen, block, candidates[here] - first)
        first += block.shape[1]
    return out
