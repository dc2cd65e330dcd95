"""A few small images of a task, kept among its extras so that a visitor sees what the task is about."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from supsup.serve.uploads import Array

_KEPT, _SIDE = 6, 64  # how many, and their longest side in pixels


def chosen(images: Array, labels: Sequence[object]) -> Tensor:
    """Some of the images [n, channels, height, width], of as many classes as can be, small."""
    seen: Counter[object] = Counter()
    turns = []  # how many of its class came before each image
    for label in labels:
        turns.append(seen[label])
        seen[label] += 1
    rows = sorted(range(len(labels)), key=turns.__getitem__)[:_KEPT]
    return torch.stack([_small(images[row]) for row in rows])


def data_url(image: Tensor) -> str:
    """An image [channels, height, width] for a page."""
    content = io.BytesIO()
    _picture(image.cpu().numpy()).save(content, "PNG")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"


def _small(image: Array) -> Tensor:
    picture = _picture(image)
    picture.thumbnail((_SIDE, _SIDE))
    pixels = np.array(picture, np.uint8)
    return torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy())


def _picture(image: Array) -> Image.Image:
    return Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0))
