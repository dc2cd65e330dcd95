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

_FURTHER = 4  # times as many bytes are read of candidates before all of them are
_LAST = 4  # candidates at most of which all bytes are read
_FAR_AHEAD = 5  # standard deviations


def numba_nearest(query: Tensor, wanted: Sequence[Some], blocks: Sequence[Tensor], alive: Tensor | None) -> Tensor:
    """Whole numbers rank the masks; then more and more of the candidates' bytes are read, until one is far ahead.

    It is if what the bytes that are left could add to a random mask makes a difference of so many deviations.
    """
    numbers, masks = query.numpy(), [block.numpy() for block in blocks]
    steps = _steps(numbers, wanted)
    scores = np.concatenate([numba_short.scan(numbers, steps[0][0], block) for block in masks])
    if alive is not None:
        scores[~alive.numpy()] = -np.inf
    candidates = numba_short.shortlist(scores, group_size(len(scores)), CANDIDATES)
    total = np.zeros(len(candidates), np.float32)
    for number, (chosen, _) in enumerate(steps):
        total += _products(numbers, chosen, masks, candidates)
        order = np.argsort(-total, kind="stable")[: _LAST if number else CANDIDATES]
        unread = sum(squares for _, squares in steps[number + 1 :])
        near = order[total[order] >= total[order[0]] - _FAR_AHEAD * (0.5 * unread) ** 0.5]
        candidates, total = candidates[near], total[near]
        if len(candidates) == 1:
            break
    return torch.tensor(candidates[0])


def _steps(query: Floats, wanted: Sequence[Some]) -> list[tuple[Indices, float]]:
    """The bytes that are read of all masks, those that are read next of candidates, and the rest; Σ q² of each."""
    falling = [numba_short.falling(query, start, stop) for start, stop, _ in wanted]
    ends = [(0, count, _FURTHER * count, stop - start) for start, stop, count in wanted]
    steps = []
    for step in range(3):
        cuts = [slice(*end[step : step + 2]) for end in ends]
        order = np.concatenate([order[cut] for (order, _), cut in zip(falling, cuts)])
        steps.append((order, sum(float(squares[cut].sum()) for (_, squares), cut in zip(falling, cuts))))
    return steps


def _products(query: Floats, chosen: Indices, masks: Sequence[Bytes], candidates: Indices) -> Floats:
    """The inner products of the candidates over the chosen bytes."""
    out, first = np.zeros(len(candidates), np.float32), 0
    for block in masks:
        here = (candidates >= first) & (candidates < first + block.shape[1])
        if here.any():
            out[here] = numba_short.columns(query, chosen, block, candidates[here] - first)
        first += block.shape[1]
    return out
