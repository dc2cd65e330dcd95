"""Descent: gradient descent on the coefficients α of the masks."""

from __future__ import annotations

import torch

from supsup.inference.candidates import Candidates, Decision, equal_rows, highest_mask


def decide_descent(candidates: Candidates) -> Decision:
    """α ← α − η∇; negative coefficients become 0, the rest is renormalised. After all steps the largest decides."""
    membership, settings = candidates.membership, candidates.settings
    alive = membership.expand(len(candidates.views[0].x), -1)  # [r, k]
    alpha = alive / alive.sum(1, keepdim=True)
    for _ in range(settings.steps):
        moved = torch.zeros_like(alpha)
        for decisions, shared in equal_rows(alpha):
            step = settings.step_size * candidates.gradient(shared, decisions)
            moved[decisions] = (shared + step).clamp(min=0) * alive[decisions]
        total = moved.sum(1, keepdim=True)
        alpha = torch.where(total > 0, moved / total.clamp(min=torch.finfo(total.dtype).tiny), alpha)
    return highest_mask(alpha.masked_fill(~alive, -torch.inf), membership)
