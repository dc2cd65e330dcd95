"""A residual network as the kernels read it: layers in order of use, their places in flat memory, their launches.

Convolutions, batch normalisation without learned parameters with its relu, max-pooling: forward and backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
from torch import Tensor, nn

from supsup.kernels.triton_training import exact
from supsup.nets.resnet import Bottleneck, ResNet
from supsup_paper.residual import kernels as k
from supsup_paper.residual.blocks import unmodified_blocks

BLOCK = 1024  # weights in one program of the update; every layer is padded to whole blocks
_PROGRAMS = 96  # for the weight gradient of one task, about
_TILE = 4096  # values in one program of the normalisation
_CHANNELS = 512  # in one program at most: more do not fit into registers
_POOLING = {"block_rows": 32, "block": 64}  # rows and channels in one program of the pooling


def pad_channels(channels: int) -> int:
    """Channels are padded with zeros to a multiple of 4, so that 8 bytes are read at a time."""
    return -(-channels // 4) * 4


@dataclass(frozen=True)
class Layer:
    """One convolution (or the classifier, as a 1×1 convolution of one pixel) and its place in flat memory.

    first           of its weights [taps, in, out] within those of a task
    gradient_first  of its gradients within those of a task: `splits` of them, one after the other
    """

    name: str
    module: nn.Conv2d | nn.Linear
    height: int  # of its inputs
    width: int
    first: int
    gradient_first: int
    splits: int

    @property
    def size(self) -> int:
        return self.module.kernel_size[0] if isinstance(self.module, nn.Conv2d) else 1

    @property
    def stride(self) -> int:
        return self.module.stride[0] if isinstance(self.module, nn.Conv2d) else 1

    @property
    def border(self) -> int:
        """The width of the border of zeros around its inputs, and around the gradient at its outputs."""
        return self.size // 2

    @property
    def is_product(self) -> bool:
        """Whether it is a matrix product for each pixel."""
        return self.size == self.stride == 1

    @property
    def channels(self) -> tuple[int, int]:
        """In and out, as they are."""
        out, into = self.module.weight.shape[:2]
        return into, out

    @property
    def padded(self) -> tuple[int, int]:
        return pad_channels(self.channels[0]), pad_channels(self.channels[1])

    @property
    def weights(self) -> int:
        """How many, with padding of channels."""
        return self.size**2 * self.padded[0] * self.padded[1]

    @property
    def blocks(self) -> int:
        return -(-self.weights // BLOCK)

    @property
    def out_height(self) -> int:
        return -(-self.height // self.stride)

    @property
    def out_width(self) -> int:
        return -(-self.width // self.stride)

    def to_flat(self, values: Tensor) -> Tensor:
        """[t, out, in, …] as the module has them to [t, blocks · BLOCK]."""
        into, out = self.channels
        taps = values.reshape(len(values), out, into, -1).permute(0, 3, 2, 1)
        more = (0, self.padded[1] - out, 0, self.padded[0] - into)
        flat = nn.functional.pad(taps, more).flatten(1)
        return nn.functional.pad(flat, (0, self.blocks * BLOCK - flat.shape[1]))

    def from_flat(self, flat: Tensor) -> Tensor:
        """The inverse of `to_flat`."""
        into, out = self.channels
        taps = flat[:, : self.weights].view(len(flat), self.size**2, *self.padded)[:, :, :into, :out]
        return taps.permute(0, 3, 2, 1).reshape(len(flat), *self.module.weight.shape)

    def matrices(self, masked: Tensor) -> Tensor:
        """The weights of a product among all weights [t, all]: [t, in, out]."""
        return masked[:, self.first : self.first + self.weights].view(-1, *self.padded)


class Tables(NamedTuple):
    """What launches over all layers need: for each block its layer and its offset there, and three for each layer."""

    layer_of: Tensor
    offset_of: Tensor
    gradient_start: Tensor
    splits: Tensor
    sizes: Tensor

    @classmethod
    def build(cls, layers: Sequence[Layer], device: torch.device) -> Tables:
        values = (
            [i for i, layer in enumerate(layers) for _ in range(layer.blocks)],
            [BLOCK * block for layer in layers for block in range(layer.blocks)],
            [layer.gradient_first for layer in layers],
            [layer.splits for layer in layers],
            [layer.weights for layer in layers],
        )
        return cls(*(torch.tensor(each, dtype=torch.int32, device=device) for each in values))


def border_of(x: Tensor, height: int) -> int:
    """The width of the border of images [t, b, …] whose height without it is `height`."""
    return (x.shape[2] - height) // 2


def splits_for(layer: nn.Conv2d, rows: int) -> int:
    """The number of shares of pixels for the weight gradient of a layer."""
    size, into, out = layer.kernel_size[0], pad_channels(layer.in_channels), pad_channels(layer.out_channels)
    if size == layer.stride[0] == 1:
        return 1
    return max(1, min(_PROGRAMS // gradient_tiles(size, into, out), rows // 256))


def gradient_tiles(size: int, into: int, out: int) -> int:
    """How many tiles the weights of a layer are divided into for their gradient."""
    tile = gradient_tile(size, into, out)
    return size * -(-size * into // tile["block_in"]) * -(-out // tile["block_out"])


def gradient_tile(size: int, into: int, out: int) -> dict[str, int]:
    """Tile sizes of the weight gradient; the best found on an H200 for `gem_resnet18`, and for wide layers."""
    line = size * into
    if out % 128 == 0 and line >= 128:
        block_in, block_out = 128, 128
    elif out <= 64:
        block_in, block_out = k.power(line, 128), k.power(out, 64)
    elif out <= 128:
        block_in, block_out = k.power(line, 64), 128
    else:
        block_in, block_out = k.power(line, 128 if line > 256 else 64), 64
    block_rows = 128 if line <= 64 else 64
    return {"block_in": block_in, "block_out": block_out, "block_rows": block_rows, "num_warps": 4, "num_stages": 3}


def convolution_tile(line: int, out: int, dtype: torch.dtype) -> dict[str, int]:
    """Tile sizes of a convolution with `line` numbers in a line of taps; found in the same way.

    In float32, whose products no tensor core takes, the inner loop is unrolled: of wide layers it is kept short.
    """
    exact = dtype == torch.float32
    stages = 1 if out <= 64 else 2 if out < 128 or exact else 3 if out == 128 else 4
    return {
        "block_rows": 256 if line <= 16 else 128,
        "block_out": k.power(out, 128),
        "block_in": k.power(line, 16 if exact and line > 64 else 64),
        "num_warps": 4,
        "num_stages": stages,
    }


def convolve(layer: Layer, x: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs of a layer, and partial sums [t, parts, 2, out] for their moments; x has a border of zeros."""
    tasks, batch = x.shape[:2]
    into, out = layer.padded
    result = x.new_empty(tasks, batch, layer.out_height, layer.out_width, out)
    rows = batch * layer.out_height * layer.out_width
    tile = convolution_tile(layer.size * into, out, x.dtype)
    partial = torch.empty(tasks, triton.cdiv(rows, tile["block_rows"]), 2, out, device=x.device)
    _launch(layer, x, masked, result, None, partial, rows, False, tile)
    return result, partial


def convolve_back(layer: Layer, slope: Tensor, masked: Tensor, extra: Tensor | None = None) -> Tensor:
    """The gradient at the inputs of a layer from that at its outputs, which has a border.

    extra  is added, and may be overwritten
    """
    tasks, batch = slope.shape[:2]
    into, out = layer.padded
    if layer.is_product:
        slopes, matrices = slope.flatten(1, 3), layer.matrices(masked).transpose(1, 2)
        if extra is not None:
            extra.view(tasks, -1, into).baddbmm_(slopes, matrices)
            return extra
        return torch.bmm(slopes, matrices).view(tasks, batch, layer.height, layer.width, into)
    result = slope.new_empty(tasks, batch, layer.height, layer.width, into)
    if layer.stride == 1:
        rows = batch * layer.height * layer.width
        tile = convolution_tile(layer.size * out, into, slope.dtype)
        _launch(layer, slope, masked, result, extra, None, rows, True, tile)
        return result
    rows = batch * triton.cdiv(layer.height, 2) * triton.cdiv(layer.width, 2)
    tile = convolution_tile(out, into, slope.dtype)
    k._convolve_back_halved[(triton.cdiv(rows, tile["block_rows"]), triton.cdiv(into, tile["block_out"]), 4 * tasks)](
        slope,
        masked,
        result,
        result if extra is None else extra,
        masked.shape[1],
        layer.first,
        rows,
        **_sides((layer.out_height, layer.out_width, out), "in_"),
        **_sides((layer.height, layer.width, into), "out_"),
        size=layer.size,
        border=layer.border,
        adds=extra is not None,
        precision=exact(slope),
        **tile,
    )
    return result


def _sides(images: Sequence[int], prefix: str = "") -> dict[str, int]:
    """Height, width and channels of images, as kernels take them."""
    return {f"{prefix}{side}": size for side, size in zip(("height", "width", "channels"), images)}


def _launch(
    layer: Layer,
    x: Tensor,
    masked: Tensor,
    result: Tensor,
    extra: Tensor | None,
    partial: Tensor | None,
    rows: int,
    backwards: bool,
    tile: dict[str, int],
) -> None:
    out, height, width = result.shape[4], layer.height, layer.width
    if backwards:
        height, width = layer.out_height, layer.out_width
    k._convolve[(triton.cdiv(rows, tile["block_rows"]), triton.cdiv(out, tile["block_out"]), len(x))](
        x,
        masked,
        result,
        result if extra is None else extra,
        result if partial is None else partial,
        masked.shape[1],
        layer.first,
        rows,
        **_sides((height, width, x.shape[4]), "in_"),
        **_sides(result.shape[2:], "out_"),
        size=layer.size,
        stride=layer.stride,
        border=border_of(x, height),
        backwards=backwards,
        adds=extra is not None,
        sums_up=partial is not None,
        even=rows % tile["block_rows"] == 0,
        precision=exact(x),
        **tile,
    )


def weight_gradient(layer: Layer, x: Tensor, slope: Tensor, gradients: Tensor) -> None:
    """Put the gradient of a layer's weights in its place among all gradients [t, all]."""
    tasks, batch = x.shape[:2]
    into, out = layer.padded
    if layer.is_product and border_of(x, layer.height) == 0:
        place = slice(layer.gradient_first, layer.gradient_first + layer.weights)
        gradients[:, place] = torch.bmm(x.flatten(1, 3).transpose(1, 2), slope.flatten(1, 3)).flatten(1)
        return
    rows = batch * layer.out_height * layer.out_width
    tile = gradient_tile(layer.size, into, out)
    if x.dtype == torch.float32 and layer.size * into > 64:
        tile["block_rows"] = 32
    share = triton.cdiv(triton.cdiv(rows, layer.splits), tile["block_rows"]) * tile["block_rows"]
    k._weight_gradient[(gradient_tiles(layer.size, into, out), layer.splits, tasks)](
        x,
        slope,
        gradients,
        gradients.shape[1],
        layer.gradient_first,
        layer.weights,
        rows,
        share,
        **_sides((layer.height, layer.width, into), "in_"),
        **_sides((layer.out_height, layer.out_width, out), "out_"),
        size=layer.size,
        stride=layer.stride,
        border=border_of(x, layer.height),
        slope_border=layer.border,
        even=rows % share == 0,
        precision=exact(x),
        **tile,
    )


class Normal(NamedTuple):
    """What was convolved, [t, b, height, width, channels], and the moments it is normalised by, [t, channels]."""

    z: Tensor
    mean: Tensor
    spread: Tensor

    @property
    def rows(self) -> int:
        return self.z[0].numel() // self.z.shape[-1]


class RunningMoments(NamedTuple):
    """Running moments of one layer for all tasks, [t, channels], padded, and the layer's ε and momentum."""

    mean: Tensor
    variance: Tensor
    epsilon: float
    momentum: float


def moments(z: Tensor, sums: Tensor, running: RunningMoments) -> Normal:
    """Moments from the partial sums [t, parts, 2, channels] that a convolution made; the running ones follow them."""
    tasks, parts, _, channels = sums.shape
    normal = Normal(z, *(torch.empty(tasks, channels, device=z.device) for _ in range(2)))
    k._moments[(tasks, triton.cdiv(channels, 8))](
        sums,
        *normal[1:],
        *running[:2],
        parts,
        normal.rows,
        channels=channels,
        epsilon=running.epsilon,
        momentum=running.momentum,
        block_parts=min(512, max(1, triton.next_power_of_2(parts))),
        block=8,
    )
    return normal


def relu(normal: Normal, out: Tensor, shortcut: Tensor | Normal | None = None) -> Tensor:
    """relu(normalised z + shortcut), which is an activation with the border of `out`, or is normalised too."""
    z, channels = normal.z, normal.z.shape[-1]
    kind = 0 if shortcut is None else 2 if isinstance(shortcut, Normal) else 1
    other = shortcut if isinstance(shortcut, Normal) else normal
    tile = _tile(channels)
    k._normalise[_grid(normal.rows, len(z), channels, tile)](
        *normal,
        shortcut if isinstance(shortcut, Tensor) else other.z,
        *other[1:],
        out,
        normal.rows,
        **_sides(z.shape[2:]),
        border=border_of(out, z.shape[2]),
        kind=kind,
        **tile,
    )
    return out


def slope_sums(slope: Tensor, normal: Normal, gate: Tensor | None = None, shortcut: Normal | None = None) -> Tensor:
    """Sum the slope at a relu's output as normalisation's backward pass needs: [t, 3, channels].

    gate  the relu's output, where more than the normalised z went into it; the slope then becomes that at its input
    """
    channels, rows = slope.shape[-1], normal.rows
    parts = max(1, min(256, rows // 64))
    tile = _tile(channels)
    share = triton.cdiv(triton.cdiv(rows, parts), tile["block_rows"]) * tile["block_rows"]
    sums = torch.empty(len(slope), parts, 3, channels, device=slope.device)
    other = shortcut or normal
    k._slope_sums[(parts, len(slope), triton.cdiv(channels, tile["block"]))](
        slope,
        slope if gate is None else gate,
        *normal,
        *other,
        sums,
        rows,
        share,
        **_sides(slope.shape[2:]),
        border=0 if gate is None else border_of(gate, slope.shape[2]),
        gated=gate is not None,
        two=shortcut is not None,
        **tile,
    )
    return sums.sum(1)


def normalise_backward(slope: Tensor, normal: Normal, sums: Tensor, out: Tensor, gated: bool, which: int = 1) -> Tensor:
    """The gradient at z, with the border of `out`, from the slope that `slope_sums` left.

    gated  a gate was given there
    which  2 for the sums of the shortcut
    """
    channels = slope.shape[-1]
    tile = _tile(channels)
    k._normalise_back[_grid(normal.rows, len(slope), channels, tile)](
        slope,
        *normal,
        sums,
        out,
        normal.rows,
        which,
        gated=gated,
        **_sides(slope.shape[2:]),
        border=border_of(out, slope.shape[2]),
        **tile,
    )
    return out


def _tile(channels: int) -> dict[str, int]:
    block = min(_CHANNELS, triton.next_power_of_2(channels))
    return {"block_rows": max(8, _TILE // block), "block": block}


def _grid(rows: int, tasks: int, channels: int, tile: dict[str, int]) -> tuple[int, int, int]:
    """How many programs of a tile cover all rows, tasks and channels."""
    return triton.cdiv(rows, tile["block_rows"]), tasks, triton.cdiv(channels, tile["block"])


class Pooled(NamedTuple):
    """What came out, with its border, and for each number which of the nine pixels it was: [t, b, h, w, channels]."""

    out: Tensor
    chosen: Tensor


def pool(x: Tensor, out: Tensor, height: int, width: int) -> Pooled:
    """The largest of 3×3 pixels with stride 2; x ≥ 0, height × width, has a border of one zero."""
    tasks, batch, _, _, channels = x.shape
    out_height, out_width = -(-height // 2), -(-width // 2)
    chosen = torch.empty(tasks, batch, out_height, out_width, channels, dtype=torch.int8, device=x.device)
    rows = batch * out_height * out_width
    k._pool[_grid(rows, tasks, channels, _POOLING)](
        x,
        out,
        chosen,
        rows,
        **_sides((height, width, channels)),
        **_sides((out_height, out_width), "out_"),
        border=border_of(out, out_height),
        **_POOLING,
    )
    return Pooled(out, chosen)


def pool_back(pooled: Pooled, slope: Tensor, height: int, width: int) -> Tensor:
    """The gradient at the inputs, height × width, from that at the outputs; neither has a border."""
    tasks, batch, out_height, out_width, channels = slope.shape
    below = slope.new_empty(tasks, batch, height, width, channels)
    rows = batch * height * width
    k._pool_back[_grid(rows, tasks, channels, _POOLING)](
        slope,
        pooled.chosen,
        below,
        rows,
        **_sides((height, width, channels)),
        **_sides((out_height, out_width), "out_"),
        **_POOLING,
    )
    return below


class Normalised(NamedTuple):
    """A convolution, and the path of the normalisation layer behind it."""

    layer: Layer
    norm: str


class ResidualBlock(NamedTuple):
    """Convolutions one after the other, and the one of the shortcut, if it has any."""

    path: tuple[Normalised, ...]
    shortcut: Normalised | None


@dataclass(frozen=True)
class ResidualLayout:
    """Stem, blocks and classifier; `pools`: there is max-pooling behind the stem."""

    stem: Normalised
    pools: bool
    blocks: tuple[ResidualBlock, ...]
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


def layout_of(module: ResNet, height: int, width: int, batch: int) -> ResidualLayout:
    """The layout of a network for batches of images of this size."""
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
    for block in unmodified_blocks(module) or ():
        before, path = (height, width), []
        third = [(block.conv3, block.norm3)] if isinstance(block, Bottleneck) else []
        for pair in [(block.conv1, block.norm1), (block.conv2, block.norm2), *third]:
            path.append(normalised(*pair, height, width))
            height, width = path[-1].layer.out_height, path[-1].layer.out_width
        beside = block.shortcut
        shortcut = normalised(beside[0], beside[1], *before) if isinstance(beside, nn.Sequential) else None
        blocks.append(ResidualBlock(tuple(path), shortcut))
    return ResidualLayout(stem, module.large_images, tuple(blocks), place(module.classifier, 1, 1))
