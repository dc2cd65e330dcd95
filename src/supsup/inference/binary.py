"""Binary and gamma: keep the best part of the candidates, again and again, until one is left."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from supsup.inference.candidates import Candidates, Decision, Margin, equal_rows


def decide_binary(candidates: Candidates) -> Decision:
    """Halve the candidates until one is left."""
    return _narrow(candidates, 0.5)


def decide_gamma(candidates: Candidates) -> Decision:
    """Keep the best fraction `gamma` each time: 1/2 is binary, 1/k is One-Shot."""
    return _narrow(candidates, candidates.settings.gamma)


def _narrow(candidates: Candidates, gamma: float) -> Decision:
    """Keep the best ⌈γ·n⌉ of n candidates, always fewer than n.

    Decisions with the same candidates left share one superposition. The margin comes from the first gradient.
    """
    first: Tensor | None = None
    alive = candidates.membership.expand(len(candidates.views[0].x), -1)  # [r, k]
    while (remaining := int(alive[0].sum())) > 1:
        keep = min(remaining - 1, max(1, math.ceil(gamma * remaining - 1e-9)))
        still = torch.zeros_like(alive)
        for decisions, left in equal_rows(alive):
            g = candidates.gradient(left / remaining, decisions).masked_fill(~left, -torch.inf)
            still[decisions] = torch.zeros_like(g, dtype=torch.bool).scatter_(1, g.topk(keep, dim=1).indices, True)
            first = g if first is None else first  # all decisions begin with the same candidates
        alive = still
    index = alive.int().argmax(1)
    assert first is not None
    return Decision(index, Margin.of(first.gather(1, index[:, None])[:, 0], first[:, candidates.membership]))
