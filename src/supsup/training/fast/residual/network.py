"""A residual network as the trainer goes through it: its convolutions in the order of their use, with their places."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from supsup.nets.resnet import BasicBlock, Bottleneck, ResNet, plain_blocks
from supsup.training.fast.residual.layers import BLOCK, Layer, splits_for


@dataclass(frozen=True)
class Normalised:
    """A convolution, and the path of the normalisation layer behind it."""

    layer: Layer
    norm: str


@dataclass(frozen=True)
class Block:
    """Convolutions one after the other, and the one of the shortcut, if it has any."""

    path: tuple[Normalised, ...]
    shortcut: Normalised | None


@dataclass(frozen=True)
class Network:
    """Stem, blocks and classifier; `pools`: there is max-pooling behind the stem."""

    stem: Normalised
    pools: bool
    blocks: tuple[Block, ...]
    classifier: Layer

    @property
    def convolutions(self) -> Iterator[Normalised]:
        """In the order of the module's weights."""
        yield self.stem
        for block in self.blocks:
            yield from block.path
            if block.shortcut is not None:
                yield block.shortcut

    @property
    def layers(self) -> list[Layer]:
        """All of them in the order of the module's weights, the classifier last."""
        return [*(each.layer for each in self.convolutions), self.classifier]


def network_of(module: ResNet, height: int, width: int, batch: int) -> Network:
    """The network for batches of images of this size."""
    paths = {id(child): path for path, child in module.named_modules()}
    last: Layer | None = None

    def place(layer: nn.Conv2d | nn.Linear, height: int, width: int) -> Layer:
        nonlocal last
        first = 0 if last is None else last.first + last.blocks * BLOCK
        start = 0 if last is None else last.gradient_first + last.splits * last.weights
        splits = 1
        if isinstance(layer, nn.Conv2d):
            splits = splits_for(layer, batch * -(-height // layer.stride[0]) * -(-width // layer.stride[0]))
        last = Layer(f"{paths[id(layer)]}.weight", layer, height, width, first, start, splits)
        return last

    def normalised(layer: nn.Module, norm: nn.Module, height: int, width: int) -> Normalised:
        assert isinstance(layer, nn.Conv2d)
        return Normalised(place(layer, height, width), paths[id(norm)])

    stem = normalised(module.conv, module.norm, height, width)
    height, width = stem.layer.out_height, stem.layer.out_width
    if module.large_images:
        height, width = -(-height // 2), -(-width // 2)
    blocks = []
    for block in plain_blocks(module) or ():
        before, path = (height, width), []
        for pair in _path(block):
            path.append(normalised(*pair, height, width))
            height, width = path[-1].layer.out_height, path[-1].layer.out_width
        beside = block.shortcut
        shortcut = normalised(beside[0], beside[1], *before) if isinstance(beside, nn.Sequential) else None
        blocks.append(Block(tuple(path), shortcut))
    return Network(stem, module.large_images, tuple(blocks), place(module.classifier, 1, 1))


def _path(block: BasicBlock | Bottleneck) -> list[tuple[nn.Module, nn.Module]]:
    pairs: list[tuple[nn.Module, nn.Module]] = [(block.conv1, block.norm1), (block.conv2, block.norm2)]
    if isinstance(block, Bottleneck):
        pairs.append((block.conv3, block.norm3))
    return pairs
