"""Contexts of parameter superposition: a random orthogonal turn of a layer's inputs for each task, from a seed.

rotation  any orthogonal matrix with equal probability (in × in numbers to compute, none to store)
complex   neighbouring inputs as complex numbers, each multiplied by a random number of size 1
binary    every input times +1 or −1
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from supsup.masks import philox
from supsup_paper.rivals.initial import normal

Kind = Literal["rotation", "complex", "binary"]


def context(kind: Kind, seed: int, label: str, width: int, device: torch.device) -> Tensor:
    """What `turn` needs: [width, width], [width // 2] or [width], a function of the seed and the label alone."""
    if kind == "binary":
        return philox.signs(seed, label, width).to(device)
    if kind == "complex":
        return philox.uniform(seed, [label], width // 2, math.pi, device)[0]
    gaussian = normal(seed, [label], width * width, device).view(width, width)
    q, r = torch.linalg.qr(gaussian)
    rotation: Tensor = q * r.diagonal().sign()  # without the signs some rotations would be likelier than others
    return rotation


def turn(kind: Kind, by: Tensor, rows: Tensor, back: bool = False) -> Tensor:
    """Rows [..., width] turned by their context, or back; contexts [n, …] turn rows [n, b, width] one by one."""
    if kind == "rotation":
        return rows @ (by if back else by.mT)
    if rows.ndim == 3 and by.ndim == 2:
        by = by[:, None]
    if kind == "binary":
        return rows * by
    width = 2 * by.shape[-1]
    cosine, sine = by.cos(), -by.sin() if back else by.sin()
    even, odd = rows[..., 0:width:2], rows[..., 1:width:2]
    turned = torch.stack([cosine * even - sine * odd, sine * even + cosine * odd], -1).flatten(-2)
    return torch.cat([turned, rows[..., width:]], -1)


def folded(kind: Kind, by: Tensor, weight: Tensor) -> Tensor:
    """The weight [out, in, …] that gives for plain inputs what `weight` gives for turned ones."""
    return turn(kind, by, weight.movedim(1, -1), back=True).movedim(-1, 1)
