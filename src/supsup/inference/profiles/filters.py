"""What random filters see of a picture: one layer of small patches, nothing of it learned, the same for every task.

The filters are drawn at random and then whitened as if neighbouring pixels and colours were alike to the degree that
they usually are, so that edges and colours count and not brightness. Features hardly change when pixels are scaled.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d, conv2d, interpolate

from supsup.kernels import available
from supsup.masks import philox
from supsup.runtime.devices import on_device

if available.NUMBA:
    from supsup.kernels import numba_filters

PLACES = 8  # features of a filter: its positive and its negative answers in each quarter of the picture
_PATCH, _LARGEST, _SMALLEST = 6, 32, 12  # pixels along a side: of a filter, and of pictures as they are looked at
_MOST_COLOURS = 4
_REACH, _COLOURS, _NOISE = 8.0, 0.8, 0.1  # how alike pixels are by distance, how alike colours are, and what is not
_FAINT, _LEAST = 0.1, 0.5  # contrast of a patch that counts as little; of an answer, what counts at all
_AT_ONCE, _MORE = 1 << 20, 256  # answers in memory on a CPU, about what its cache holds; times as many on a GPU


def is_picture(shape: torch.Size | tuple[int, ...]) -> bool:
    """Whether inputs of this shape, [channels, height, width], can be looked at."""
    return len(shape) == 3 and shape[0] <= _MOST_COLOURS and min(shape[1:]) >= _SMALLEST


def seen_by_filters(pictures: Tensor, filters: int) -> Tensor:
    """[n, 8 · filters] for pictures [n, channels, height, width]."""
    height, width = pictures.shape[-2:]
    if max(height, width) > _LARGEST:
        shrunk = [max(_SMALLEST, round(side * _LARGEST / max(height, width))) for side in (height, width)]
        pictures = interpolate(pictures.float(), shrunk, mode="area")
    weights = on_device(_filters(pictures.shape[1], filters), pictures.device)
    at_once = max(1, _AT_ONCE // (filters * pictures[0, 0].numel()))
    if pictures.device.type != "cpu":
        at_once *= _MORE
    if available.NUMBA and pictures.device.type == "cpu" and pictures.shape[1] == 1:
        grey = pictures.detach()[:, 0].float().contiguous()
        found = numba_filters.seen_by_filters(grey, weights[:, 0], _FAINT, _LEAST, at_once)
    else:
        found = torch.cat([_seen(piece.float(), weights) for piece in pictures.split(at_once)])
    return found.flatten(1).sqrt()


def _seen(x: Tensor, weights: Tensor) -> Tensor:
    """[n, 2 · filters, 2, 2]: what answers are above the least in each quarter, of positive ones and of negative."""
    level, square = (avg_pool2d(part.mean(1, keepdim=True), _PATCH, stride=1) for part in (x, x.square()))
    contrast = ((square - level.square()).clamp(min=0) + _FAINT**2).sqrt()
    answers = conv2d(x, weights).div_(contrast)
    positive = adaptive_avg_pool2d((answers - _LEAST).relu_(), 2)
    negative = adaptive_avg_pool2d(answers.neg_().sub_(_LEAST).relu_(), 2)
    return torch.cat([positive, negative], 1)


@cache
def _filters(channels: int, count: int) -> Tensor:
    """[count, channels, patch, patch], blind to the mean of a patch."""
    size = channels * _PATCH**2
    drawn = philox.uniform(0, [f"filter {i}" for i in range(count)], size, 1.0).double()
    drawn = drawn / drawn.norm(dim=1, keepdim=True)
    white = drawn @ _whitening(channels)
    white = white - white.mean(1, keepdim=True)
    found: Tensor = white.float().view(count, channels, _PATCH, _PATCH)
    return found


def _whitening(channels: int) -> Tensor:
    """What makes pixels of different places and colours independent, [size, size]."""
    line = torch.arange(_PATCH).double()
    places = torch.cartesian_prod(line, line)
    alike = torch.exp(-torch.cdist(places, places) / _REACH)
    colours = _COLOURS + (1 - _COLOURS) * torch.eye(channels).double()
    values, vectors = torch.linalg.eigh(torch.kron(colours, alike))
    found: Tensor = (vectors * (values + _NOISE).rsqrt()) @ vectors.T
    return found
