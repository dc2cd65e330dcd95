"""The filters for grey pictures: whitened patches of synthetic pen strokes, in which no task's data is.

    python -m benchmarks make_filters     writes src/supsup/inference/profiles/filters.safetensors

They are shipped as bytes, so that they are the same on every machine: profiles in model files hold statistics of their
responses. Run on another machine, a few bytes may round differently: then tasks learned before would not be found.

Strokes, 7 × 7 pixels and the three whitenings were chosen on held-back training images of Omniglot and of rotated
MNIST, features alone: random filters found 74.5 and 79.8 % of the tasks, dead leaves 79.7 and 81.6 %, strokes whitened
with 0.03 alone 76.6 and 85.4 %, with 1 alone 81.8 and 67.3 %, with all three 81.6 and 85.5 %.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import conv2d, unfold

OUT = Path(__file__).parents[2] / "src" / "supsup" / "inference" / "profiles" / "filters.safetensors"
FILTERS, PATCH, SIDE, PICTURES = 400, 7, 28, 400
WHITENING = (0.03, 0.1, 1.0)  # variance added in every direction: sharp filters to smooth ones
FAINT = 0.1  # contrast that counts as little, as in features.py
JUDGED = 40  # pictures whose responses have deviation 1


def main() -> None:
    pictures = strokes(PICTURES)
    filters = whitened_patches(pictures)
    weights = filters.float() - filters.float().mean((1, 2), keepdim=True)
    deviations = responses(pictures[:JUDGED], weights).std((0, 2, 3))
    save_file({"filters": filters, "deviations": deviations}, OUT)
    print(f"{OUT}: {OUT.stat().st_size:,} bytes")


def strokes(count: int) -> Tensor:
    """Pictures [count, side, side] of 1 to 4 Bézier curves, as a pen draws them, from 0 to 1."""
    generator, out = torch.Generator().manual_seed(0), torch.zeros(count, SIDE, SIDE)
    y, x = torch.meshgrid(torch.arange(SIDE).float(), torch.arange(SIDE).float(), indexing="ij")
    t = torch.linspace(0, 1, 60)[:, None]
    for picture in out:
        nearest = torch.full((SIDE, SIDE), torch.inf)
        for _ in range(int(torch.randint(1, 5, (1,), generator=generator))):
            a, b, c, d = torch.rand(4, 2, generator=generator) * (SIDE - 6) + 3
            curve = (1 - t) ** 3 * a + 3 * t * (1 - t) ** 2 * b + 3 * t**2 * (1 - t) * c + t**3 * d
            distance = (x[..., None] - curve[:, 0]).square() + (y[..., None] - curve[:, 1]).square()
            nearest = torch.minimum(nearest, distance.amin(-1))
        picture.copy_((1.4 - nearest.sqrt()).clamp(0, 1))
    return out


def whitened_patches(pictures: Tensor) -> Tensor:
    """Filters as bytes: random patches, whitened, by the whitenings in turn, and whitened again for raw patches."""
    patches = unfold(pictures[:, None], PATCH, stride=2).mT.reshape(-1, PATCH**2)
    patches = patches - patches.mean(1, keepdim=True)
    variance = patches.square().mean(1, keepdim=True)
    seen = variance[:, 0] > 1e-4
    patches = patches[seen] / (variance[seen] + FAINT**2).sqrt()
    values, vectors = torch.linalg.eigh((patches.T @ patches / len(patches)).double())
    chosen = patches[torch.randperm(len(patches), generator=torch.Generator().manual_seed(1))[:FILTERS]]
    found = torch.empty(FILTERS, PATCH**2)
    for number, added in enumerate(WHITENING):
        whitening = ((vectors * (values + added).rsqrt()) @ vectors.T).float()
        white = torch.nn.functional.normalize(chosen[number :: len(WHITENING)] @ whitening) @ whitening
        found[number :: len(WHITENING)] = white - white.mean(1, keepdim=True)
    return (found / found.abs().amax(1, keepdim=True) * 127).round().to(torch.int8).view(-1, PATCH, PATCH)


def responses(pictures: Tensor, weights: Tensor) -> Tensor:
    """[n, filters, h, w], divided by the contrast of each patch."""
    patches = unfold(pictures[:, None], PATCH)
    side = SIDE - PATCH + 1
    contrast = (patches.var(1, correction=0) + FAINT**2).sqrt().view(-1, 1, side, side)
    return conv2d(pictures[:, None], weights[:, None]) / contrast


if __name__ == "__main__":
    main()
