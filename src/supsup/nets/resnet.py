"""Residual networks without biases and with parameter-free normalisation: the paper's, and a small one.

`nets/imagenet.py` builds those for photographs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, max_pool2d

from supsup.nets.architecture import architecture, check_size, check_sizes, check_weights
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import flag

_MOST_BLOCKS = 10_000  # of a stage


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut, which is a 1×1 convolution where the shape changes."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = _convolution(inputs, width, 3, stride), nn.BatchNorm2d(width, affine=False)
        self.conv2, self.norm2 = _convolution(width, width, 3), nn.BatchNorm2d(width, affine=False)
        self.shortcut = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(self.conv1(x)).relu()
        y = self.norm2(self.conv2(y))
        out: Tensor = (y + self.shortcut(x)).relu()
        return out


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions, the last four times as wide, beside a shortcut.

    affine  normalisation has a learned scale and shift, as in published weights
    """

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, affine: bool = False) -> None:
        super().__init__()
        self.conv1, self.norm1 = _convolution(inputs, width, 1), nn.BatchNorm2d(width, affine=affine)
        self.conv2, self.norm2 = _convolution(width, width, 3, stride), nn.BatchNorm2d(width, affine=affine)
        self.conv3, self.norm3 = _convolution(width, 4 * width, 1), nn.BatchNorm2d(4 * width, affine=affine)
        self.shortcut = _shortcut(inputs, 4 * width, stride, affine)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(self.conv1(x)).relu()
        y = self.norm2(self.conv2(y)).relu()
        y = self.norm3(self.conv3(y))
        out: Tensor = (y + self.shortcut(x)).relu()
        return out


def _shortcut(inputs: int, outputs: int, stride: int, affine: bool = False) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(_convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs, affine=affine))


def residual_stages(
    kind: type[BasicBlock | Bottleneck], before: int, blocks: Sequence[int], widths: Sequence[int], **options: bool
) -> Iterator[list[nn.Module]]:
    """The blocks of each stage, after `before` channels; every stage but the first halves height and width."""
    for number, (count, width) in enumerate(zip(blocks, widths)):
        stage: list[nn.Module] = []
        for place in range(count):
            stage.append(kind(before, width, 2 if number and not place else 1, **options))
            before = width * kind.expansion
        yield stage


@architecture
class ResNet(nn.Module):
    """Stages of residual blocks; every stage but the first halves height and width.

    blocks, widths  of each stage
    bottleneck      the blocks of ResNet-50 in place of those of ResNet-18
    large_images    a 7×7 stem of stride 2 and max-pooling, in place of a 3×3 stem
    """

    def __init__(
        self,
        outputs: int,
        blocks: Sequence[int],
        widths: Sequence[int],
        bottleneck: bool = False,
        large_images: bool = False,
        channels: int = 3,
    ) -> None:
        super().__init__()
        outputs, channels = check_size(outputs, "outputs"), check_size(channels, "channels")
        bottleneck, large_images = flag(bottleneck, "bottleneck"), flag(large_images, "large_images")
        blocks, widths = check_sizes(blocks, "blocks"), check_sizes(widths, "widths")
        if len(blocks) != len(widths) or not blocks or max(blocks) > _MOST_BLOCKS:
            raise SupSupError(
                f"blocks {list(blocks)} and widths {list(widths)} must be equally many, blocks {_MOST_BLOCKS} at most"
            )
        kind = Bottleneck if bottleneck else BasicBlock
        check_weights(4 * max(widths), max(4 * max(widths), channels, outputs), 49)
        stem = 64 if large_images else widths[0]
        self.large_images = large_images
        self.conv = _convolution(channels, stem, 7, 2) if large_images else _convolution(channels, stem, 3)
        self.norm = nn.BatchNorm2d(stem, affine=False)
        self.stages = nn.Sequential(*(nn.Sequential(*stage) for stage in residual_stages(kind, stem, blocks, widths)))
        self.classifier = nn.Linear(widths[-1] * kind.expansion, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).relu()
        if self.large_images:
            x = max_pool2d(x, 3, stride=2, padding=1)
        x = self.stages(x)
        out: Tensor = self.classifier(avg_pool2d(x, x.shape[-2:]).flatten(1))
        return out


@architecture
def gem_resnet18(outputs: int = 5) -> ResNet:
    """The narrow ResNet-18 of SplitCIFAR100: widths 20-40-80-160 and, with 5 outputs, 1,090,940 weights."""
    return ResNet(outputs, (2, 2, 2, 2), (20, 40, 80, 160))


@architecture
def small_resnet(outputs: int = 100, channels: int = 3) -> ResNet:
    """Four blocks of widths 16-32-64-128, for small pictures on a machine without a GPU."""
    return ResNet(outputs, (1, 1, 1, 1), (16, 32, 64, 128), channels=channels)
