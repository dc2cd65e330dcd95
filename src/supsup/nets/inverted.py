"""The block of mobile networks: widen, filter each channel by itself, narrow again, beside a shortcut where it fits."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.functional import pad


class PaddedAtTheEnd(nn.Module):
    """Zeros around images for a convolution of stride 2, the odd one behind: as networks trained in TensorFlow want."""

    def __init__(self, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        across, down = (max(0, self.kernel - (2 - size % 2)) for size in (x.shape[-1], x.shape[-2]))
        return pad(x, (across // 2, across - across // 2, down // 2, down - down // 2))


def normalised_convolution(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, *, same: bool = False, eps: float = 1e-5
) -> Iterator[nn.Module]:
    """A convolution without bias and its normalisation; `same`: padded as `PaddedAtTheEnd`."""
    at_the_end = same and stride == 2
    if at_the_end:
        yield PaddedAtTheEnd(kernel)
    padding = 0 if at_the_end else kernel // 2
    yield nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
    yield nn.BatchNorm2d(outputs, eps=eps)


class InvertedResidual(nn.Module):
    """1×1 convolution to `expansion` times the channels, k×k in each channel, 1×1 without activation."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int,
        expansion: int,
        kernel: int = 3,
        *,
        same: bool = False,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        wide = inputs * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers += [*normalised_convolution(inputs, wide, 1, eps=eps), nn.ReLU6()]
        layers += [*normalised_convolution(wide, wide, kernel, stride, wide, same=same, eps=eps), nn.ReLU6()]
        layers += normalised_convolution(wide, outputs, 1, eps=eps)
        self.layers = nn.Sequential(*layers)
        self.has_shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return x + out if self.has_shortcut else out
