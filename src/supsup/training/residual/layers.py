"""Where the weights of a residual network lie in flat memory, and the kernels launched for one layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor, nn

from supsup.training.residual import kernels as k

BLOCK = 1024  # weights in one program of the update; every layer is padded to whole blocks
_PROGRAMS = 96  # for the weight gradient of one task, about


def padded(channels: int) -> int:
    """Channels are padded with zeros to a multiple of 8, so that 16 bytes are read at a time."""
    return -(-channels // 8) * 8


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
    def channels(self) -> tuple[int, int]:
        """In and out, as they are."""
        out, into = self.module.weight.shape[:2]
        return into, out

    @property
    def padded(self) -> tuple[int, int]:
        return padded(self.channels[0]), padded(self.channels[1])

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
        """The way back."""
        into, out = self.channels
        taps = flat[:, : self.weights].view(len(flat), self.size**2, *self.padded)[:, :, :into, :out]
        return taps.permute(0, 3, 2, 1).reshape(len(flat), *self.module.weight.shape)


def splits_for(layer: nn.Conv2d, rows: int) -> int:
    """Into how many shares the pixels are divided for the weight gradient of a layer."""
    size, into, out = layer.kernel_size[0], padded(layer.in_channels), padded(layer.out_channels)
    tile = gradient_tile(size, into, out)
    lines = size * size // min(3, tile["taps"]) if size > 1 else 1
    tiles = lines * triton.cdiv(into, tile["block_in"]) * triton.cdiv(out, tile["block_out"])
    return max(1, min(_PROGRAMS // tiles, rows // 256))


def gradient_tile(size: int, into: int, out: int) -> dict[str, int]:
    """Tile sizes of the weight gradient: narrow layers take the three taps of a line together."""
    line = size == 3 and into <= 64
    return {
        "taps": 4 if line else 1,
        "block_in": k.power(into, 64 if line else 128 if into <= 128 else 64),
        "block_out": k.power(out, 64 if line or out > 128 else 128),
        "block_rows": 64,
        "num_warps": 8 if line and into > 32 else 4,
    }


def convolve(
    layer: Layer, x: Tensor, masked: Tensor, sums: bool, extra: Tensor | None = None, backwards: bool = False
) -> tuple[Tensor, Tensor]:
    """The outputs of a layer and partial sums for their moments; backwards the gradient at its inputs.

    extra  is added to the result
    """
    tasks, batch = x.shape[:2]
    into, out = reversed(layer.padded) if backwards else layer.padded
    height, width = (layer.height, layer.width) if backwards else (layer.out_height, layer.out_width)
    result = torch.empty(tasks, batch, height, width, out, dtype=x.dtype, device=x.device)
    rows = batch * height * width
    block_out = 32 if out in (80, 160) else k.power(out, 64)
    block_rows = 128
    programs = triton.cdiv(rows, block_rows)
    partial = torch.empty(tasks, programs, 2, out, device=x.device) if sums else result
    k._convolve[(programs, triton.cdiv(out, block_out), tasks)](
        x,
        masked,
        result,
        result if extra is None else extra,
        partial,
        masked.shape[1],
        layer.first,
        rows,
        in_height=x.shape[2],
        in_width=x.shape[3],
        in_channels=into,
        out_height=height,
        out_width=width,
        out_channels=out,
        size=layer.size,
        stride=layer.stride,
        backwards=backwards,
        adds=extra is not None,
        sums_up=sums,
        precision=k.exact(x),
        block_rows=block_rows,
        block_out=block_out,
        block_in=16 if into == 80 else k.power(into, 32 if into > 64 else 64),
        num_warps=4,
        num_stages=3,
    )
    return result, partial


def weight_gradient(layer: Layer, x: Tensor, slope: Tensor, gradients: Tensor) -> None:
    """Put the gradient of a layer's weights in its place among all gradients [t, all]."""
    tasks, batch = x.shape[:2]
    into, out = layer.padded
    rows = batch * layer.out_height * layer.out_width
    tile = gradient_tile(layer.size, into, out)
    groups = layer.size**2 // min(3, tile["taps"])
    tiles = groups * triton.cdiv(into, tile["block_in"]) * triton.cdiv(out, tile["block_out"])
    share = triton.cdiv(triton.cdiv(rows, layer.splits), tile["block_rows"]) * tile["block_rows"]
    k._weight_gradient[(tiles, layer.splits, tasks)](
        x,
        slope,
        gradients,
        gradients.shape[1],
        layer.gradient_first,
        layer.weights,
        rows,
        share,
        in_height=layer.height,
        in_width=layer.width,
        in_channels=into,
        out_height=layer.out_height,
        out_width=layer.out_width,
        out_channels=out,
        size=layer.size,
        stride=layer.stride,
        precision=k.exact(x),
        num_stages=2,
        **tile,  # type: ignore[arg-type]
    )
