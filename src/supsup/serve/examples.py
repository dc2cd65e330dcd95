"""A few small images of a task, kept among its extras, so that visitors of the page see what the task is about."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from supsup.serve.requests import Array

_KEPT, _SIDE = 6, 64  # images, and their longest side in pixels


def choose_examples(images: Array, labels: Sequence[object]) -> Tensor:
    """Small copies of a few images of [n, channels, height, width], from as many classes as possible."""
    counts: Counter[object] = Counter()
    ranks = []  # for each image, how many of its class come before it
    for label in labels:
        ranks.append(counts[label])
        counts[label] += 1
    rows = sorted(range(len(labels)), key=ranks.__getitem__)[:_KEPT]
    return torch.stack([_thumbnail(images[row]) for row in rows])


def data_url(image: Tensor) -> str:
    """An image [channels, height, width] as a data: URL."""
    content = io.BytesIO()
    _to_pillow(image.cpu().numpy()).save(content, "PNG")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"


def _thumbnail(image: Array) -> Tensor:
    small = _to_pillow(image)
    small.thumbnail((_SIDE, _SIDE))
    pixels = np.array(small, np.uint8)
    return torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy())


def _to_pillow(image: Array) -> Image.Image:
    return Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0))
