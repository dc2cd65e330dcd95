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
    steps = _steps(numbers, wanted)
    scores = np.concatenate([numba_short.scan(numbers, steps[0][0], block) for block in masks])
    if alive is not None:
        scores[~alive.numpy()] = -np.inf
    candidates = numba_short.shortlist(scores, group_size(len(scores)), CANDIDATES)
    total = np.zeros(len(candidates), np.float32)
    for number, (chosen, _) in enumerate(steps, 1):
        total += _products(numbers, chosen, masks, candidates)
        order = np.argsort(-total, kind="stable")[: CANDIDATES >> number]
        unread = sum(squares for _, squares in steps[number:])
        near = order[total[order] >= total[order[0]] - _FAR_AHEAD * (0.5 * unread) ** 0.5]
        candidates, total = candidates[near], total[near]
        if len(candidates) == 1:
            break
    return torch.tensor(candidates[0])


def _steps(query: Floats, wanted: Sequence[Some]) -> list[tuple[Indices, float]]:
    """The bytes that are read of all masks, those that are read next of candidates, …, and the rest; Σ q² of each."""
    falling = [numba_short.falling(query, start, stop) for start, stop, _ in wanted]
    ends = [(0, *(count << round_ for round_ in range(_ROUNDS)), stop - start) for start, stop, count in wanted]
    steps = []
    for step in range(_ROUNDS + 1):
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
