"""A Hopfield network as a memory of constant size: patterns of ±1 become minima of the energy −½ zᵀΨz.

Pure functions of tensors: Ψ is [..., d, d], patterns are [..., k, d]. Leading dimensions are independent memories.
Ψ is symmetric, so Ψz is computed as zᵀΨ: one matrix product for all k.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from supsup.masks import philox

LOST = 0.01  # a pattern is lost if more than this share of its units is not recalled
Rule = Callable[[Tensor, Tensor], Tensor]


def hebb(psi: Tensor, z: Tensor) -> Tensor:
    """Ψ + (zzᵀ − I)/d for a new pattern z [..., d]: symmetric, and the diagonal stays zero."""
    return psi + (z[..., :, None] * z[..., None, :] - _identity(z)) / z.shape[-1]


def storkey(psi: Tensor, z: Tensor) -> Tensor:
    """Ψ + (zzᵀ − z(Ψz)ᵀ − (Ψz)zᵀ − I)/d, the paper's form: symmetric; the diagonal is zero for one pattern only."""
    pattern, pull = z[..., :, None], psi @ z[..., :, None]
    return psi + (pattern * pattern.mT - (pattern * pull.mT + pull * pattern.mT) - _identity(z)) / z.shape[-1]


RULES: dict[str, Rule] = {"hebb": hebb, "storkey": storkey}


def running_mean(mean: Tensor, z: Tensor, count: int) -> Tensor:
    """μ over `count` patterns, of which z is the last."""
    return mean * ((count - 1) / count) + z / count


def to_bipolar(values: Tensor) -> Tensor:
    """+1 where a value is at least 0, else −1."""
    return (values >= 0).to(values.dtype) * 2 - 1


def energy(psi: Tensor, z: Tensor) -> Tensor:
    """−½ zᵀΨz, [..., k]."""
    return -0.5 * (z * (z @ psi)).sum(-1)


def settle(psi: Tensor, z: Tensor, most_sweeps: int = 100) -> Tensor:
    """Asynchronous updates, one unit after the other, until none flips: a minimum of the energy.

    A unit takes the sign of the field of all *other* units (and stays where that is 0), so no update raises the energy.
    """
    z = z.clone()
    diagonal = _diagonal(psi)
    for _ in range(most_sweeps):
        field = z @ psi
        flipping = ((field - diagonal * z) * z < 0).flatten(0, -2).any(0).nonzero().flatten().tolist()
        if not flipping:
            break
        for unit in flipping:
            old = z[..., unit]
            others = field[..., unit] - diagonal[..., unit] * old
            change = torch.where(others * old < 0, -2 * old, 0.0)
            z[..., unit] = old + change
            field += change[..., None] * psi[..., None, unit, :]
    return z


def overfull(rule: str, psi: Tensor, mean: Tensor, z: Tensor, count: int) -> bool:
    """Whether a memory holds more patterns than it can recall, after z [d] was stored as number `count`.

    Hebb's rule loses new patterns with the old ones, so recalling the newest is the test. Storkey's rule always keeps
    the newest and slowly loses the oldest, which are no longer known: the test is their number and their overlap.
    """
    if lost(psi, z) > LOST:
        return True
    return rule == "storkey" and count > storkey_capacity(len(z), overlap(mean, count))


def storkey_capacity(units: int, overlap: float) -> int:
    """About how many patterns Storkey's rule recalls with 20 % of their units flipped, at least 19 times in 20.

    A fit to what benchmarks/hopfield/capacity.py measures: 0.155 d for unrelated patterns, fewer with a higher mean
    overlap (0 to 1), and about 10 from an overlap of 1/4 on.
    """
    return int(max(0.155 * units * (1 - 4 * overlap), min(10, 0.155 * units)))


def overlap(mean: Tensor, count: int) -> float:
    """The mean of zᵢᵀzⱼ/d over all pairs of `count` patterns, from their mean alone."""
    if count < 2:
        return 0.0
    return (count * mean.square().mean().item() - 1) / (count - 1)


def lost(psi: Tensor, z: Tensor, flipped: float = 0.2, draws: int = 8) -> float:
    """The share of a stored pattern z [d] that is not recalled after a share `flipped` of its units was flipped.

    Near 0 until the memory is full; then it jumps.
    """
    labels = [f"lost/{draw}" for draw in range(draws)]
    damaged = philox.uniform(0, labels, len(z), 1.0, z.device) < 2 * flipped - 1
    recalled = torch.where(damaged, -z, z)
    for _ in range(20):
        recalled = to_bipolar(recalled @ psi - _diagonal(psi) * recalled)
    return (recalled != z).float().mean().item()


def _diagonal(psi: Tensor) -> Tensor:
    return psi.diagonal(dim1=-2, dim2=-1)[..., None, :]


def _identity(z: Tensor) -> Tensor:
    return torch.eye(z.shape[-1], dtype=z.dtype, device=z.device)
