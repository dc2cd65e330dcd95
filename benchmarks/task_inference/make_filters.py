"""The filters for pictures: whitened patches of synthetic ones, in which no task's data is.

    python -m benchmarks make_filters     writes src/supsup/inference/profiles/filters.safetensors

They are shipped as bytes, so that they are the same on every machine: profiles in model files hold statistics of their
responses. Run on another machine, a few bytes may round differently: then tasks learned before would not be found.

Strokes, 7 × 7 pixels and the three whitenings were chosen on held-back training images of Omniglot and of rotated
MNIST, features alone: random filters found 74.5 and 79.8 % of the tasks, dead leaves 79.7 and 81.6 %, strokes whitened
with 0.03 alone 76.6 and 85.4 %, with 1 alone 81.8 and 67.3 %, with all three 81.6 and 85.5 %. Filters for colours are
patches of dead leaves: of held-back images of SplitCIFAR100 they find 44.4 % of the labels, random ones 40.4 %.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d, unfold

OUT = Path(__file__).parents[2] / "src" / "supsup" / "inference" / "profiles" / "filters.safetensors"
FILTERS, PATCH, SIDE, PICTURES = 400, 7, 28, 400
WHITENING = (0.03, 0.1, 1.0)  # variance added in every direction: sharp filters to smooth ones
COLOUR_FILTERS = 1600  # for large profiles; others take the first 400
COLOUR_PATCH, COLOUR_SIDE, COLOUR_PICTURES, DISCS = 6, 64, 48, 400
FAINT = 0.1  # contrast that counts as little, as in features.py
JUDGED = 40  # pictures whose responses have deviation 1


def main() -> None:
    found = {}
    grey, colours = strokes(PICTURES)[:, None], leaves(COLOUR_PICTURES)
    for name, pictures, count, patch, whitening in (
        ("grey", grey, FILTERS, PATCH, WHITENING),
        ("colours", colours, COLOUR_FILTERS, COLOUR_PATCH, WHITENING[:1]),
    ):
        filters = whitened_patches(pictures, count, patch, whitening)
        weights = filters.float() - filters.float().mean((1, 2, 3), keepdim=True)
        found[name] = filters
        found[f"{name} deviations"] = responses(pictures[:JUDGED], weights).std((0, 2, 3))
    save_file(found, OUT)
    print(f"{OUT}: {OUT.stat().st_size:,} bytes")


def leaves(count: int) -> Tensor:
    """Dead leaves [count, 3, side, side]: discs of power-law radii and random colours, one over the other."""
    generator, side = torch.Generator().manual_seed(0), 2 * COLOUR_SIDE
    out = torch.zeros(count, 3, side, side)
    y, x = torch.meshgrid(torch.arange(side).float(), torch.arange(side).float(), indexing="ij")
    for picture in out:
        light, colour = torch.rand(DISCS, 1, generator=generator), torch.rand(DISCS, 3, generator=generator)
        radii = (2 / torch.rand(DISCS, generator=generator).clamp(min=0.004).sqrt()).clamp(max=side)
        across, down = torch.rand(2, DISCS, generator=generator) * side
        for disc in range(DISCS):
            inside = (x - across[disc]).square() + (y - down[disc]).square() <= radii[disc] ** 2
            picture[:, inside] = (0.7 * light[disc] + 0.3 * colour[disc])[:, None]
    return avg_pool2d(out, 2)


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


def whitened_patches(pictures: Tensor, count: int, side: int, whitening: tuple[float, ...]) -> Tensor:
    """Filters as bytes: random patches, whitened, by the whitenings in turn, and whitened again for raw patches."""
    channels = pictures.shape[1]
    patches = unfold(pictures, side, stride=2).mT.reshape(-1, channels * side**2)
    patches = patches - patches.mean(1, keepdim=True)
    variance = patches.square().mean(1, keepdim=True)
    seen = variance[:, 0] > 1e-4
    patches = patches[seen] / (variance[seen] + FAINT**2).sqrt()
    values, vectors = torch.linalg.eigh((patches.T @ patches / len(patches)).double())
    chosen = patches[torch.randperm(len(patches), generator=torch.Generator().manual_seed(1))[:count]]
    found = torch.empty(count, patches.shape[1])
    for number, added in enumerate(whitening):
        white = ((vectors * (values + added).rsqrt()) @ vectors.T).float()
        filters = torch.nn.functional.normalize(chosen[number :: len(whitening)] @ white) @ white
        found[number :: len(whitening)] = filters - filters.mean(1, keepdim=True)
    whole = (found / found.abs().amax(1, keepdim=True) * 127).round().to(torch.int8)
    return whole.view(-1, channels, side, side)


def responses(pictures: Tensor, weights: Tensor) -> Tensor:
    """[n, filters, h, w], divided by the contrast of each patch."""
    side = weights.shape[-1]
    patches, places = unfold(pictures, side), pictures.shape[-1] - side + 1
    contrast = (patches.var(1, correction=0) + FAINT**2).sqrt().view(-1, 1, places, places)
    return conv2d(pictures, weights) / contrast


if __name__ == "__main__":
    main()
