"""User-defined networks for benchmarks; supsup knows nothing about them.

`supsup bench train --net benchmarks.networks.own_networks:residual` measures one; the other is `:transformer`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Two convolutions with learned normalisation beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 or inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = (self.body(x) + self.shortcut(x)).relu()
        return out


def residual(outputs: int = 10, channels: int = 1) -> nn.Module:
    """A residual network of eight blocks, with biases and affine normalisation: 700,000 weights."""
    widths = (32, 32, 64, 64, 128, 128)
    stem = nn.Sequential(nn.Conv2d(channels, widths[0], 3, 1, 1), nn.BatchNorm2d(widths[0]), nn.ReLU())
    blocks, before = [], widths[0]
    for width in widths:
        blocks.append(Block(before, width, 1 if width == before else 2))
        before = width
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs))


class Transformer(nn.Module):
    """A small vision transformer: patches, learned places, layers of attention, the mean of all patches."""

    def __init__(self, outputs: int, channels: int = 1, size: int = 28, patch: int = 4, width: int = 128) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, width, patch, patch)
        self.places = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.places
        out: Tensor = self.head(self.layers(tokens).mean(1))
        return out


def transformer(outputs: int = 10, channels: int = 1) -> nn.Module:
    """Four layers of width 128: 530,000 weights."""
    return Transformer(outputs, channels)
