"""The networks of the zoo, as their users would write them: nothing here is known to supsup, and nothing is tuned."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.networks.own_networks import Block


def perceptron(inputs: int, outputs: int, width: int = 128) -> nn.Module:
    """For tables."""
    hidden = nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, outputs))


def convolutional(outputs: int, norm: Callable[[int], nn.Module], widths: tuple[int, ...] = (16, 32, 32)) -> nn.Module:
    """Three convolutions with strides, biases and normalisation, for small grey images."""
    layers, before = [], 1
    for width in widths:
        layers += [nn.Conv2d(before, width, 3, 2, 1), norm(width), nn.ReLU()]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * before, outputs))


def residual(outputs: int) -> nn.Module:
    """Three residual blocks for small colour images."""
    stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU())
    blocks = (Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2))
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, outputs))


def _encoder(width: int, layers: int = 2) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


class VisionTransformer(nn.Module):
    """Patches of 7 × 7, places that are drawn once, two layers of attention."""

    def __init__(self, outputs: int, width: int = 48) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 7, 7)
        self.places = nn.Parameter(torch.randn(1, 16, width, generator=torch.Generator().manual_seed(0)))
        self.encoder, self.head = _encoder(width), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.places
        out: Tensor = self.head(self.encoder(tokens).mean(1))
        return out


def series(outputs: int) -> nn.Module:
    """Convolutions over time."""
    layers = (nn.Conv1d(1, 24, 7, 2, 3), nn.BatchNorm1d(24), nn.ReLU(), nn.Conv1d(24, 48, 5, 2, 2), nn.BatchNorm1d(48))
    deeper = (nn.ReLU(), nn.Conv1d(48, 48, 3, 1, 1), nn.BatchNorm1d(48), nn.ReLU())
    return nn.Sequential(*layers, *deeper, nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(192, outputs))


class RowByRow(nn.Module):
    """A recurrent layer that reads an image line by line."""

    def __init__(self, outputs: int, width: int = 64) -> None:
        super().__init__()
        self.layer, self.head = nn.GRU(28, width, batch_first=True), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.layer(x.view(-1, 28, 28))
        out: Tensor = self.head(states[:, -1])
        return out


class Bag(nn.Module):
    """The mean of a text's words, and two layers."""

    def __init__(self, words: int, outputs: int, width: int = 64) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(words, width, padding_idx=0)
        self.body = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(self.bag(x.long()))
        return out


class Reader(nn.Module):
    """Attention over the words of a text."""

    def __init__(self, words: int, outputs: int, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width, padding_idx=0)
        self.encoder, self.head = _encoder(width, 1), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        there = (x > 0).unsqueeze(2)
        states = self.encoder(self.words(x.long())) * there
        out: Tensor = self.head(states.sum(1) / there.sum(1).clamp(min=1))
        return out
