"""The passes of a residual network for many tasks at once, by hand: outputs from weights, and gradients from slopes.

Weights of all layers lie end to end, in the precision of the activations. A pass uses the same buffers again, so what
one pass keeps for the backward pass is overwritten by the next. `ResidualFunction` makes the passes one function for
autograd.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from supsup.nets.resnet import ResNet
from supsup.training.executors import Feed
from supsup_paper.residual import flat_kernels, kernels
from supsup_paper.residual.layers import (
    BLOCK,
    Normal,
    Normalised,
    Pooled,
    ResidualBlock,
    RunningMoments,
    Tables,
    border_of,
    convolve,
    convolve_back,
    layout_of,
    moments,
    normalise_backward,
    pad_channels,
    pool,
    pool_back,
    relu,
    slope_sums,
    weight_gradient,
)

_PIXELS = 4096  # numbers of one image in one program that fetches it


class Passes:
    """Forward and backward pass of t tasks, each with weights and statistics of its own.

    weights     [t, all], where `Layer` places them
    gradients   [t, …] of the last backward pass, in shares
    x, y        the batch: images as kernels read them, and labels [t, b]
    statistics  running moments [t, channels] by name, which every forward pass moves
    """

    def __init__(
        self,
        module: ResNet,
        image: tuple[int, int, int],
        tasks: int,
        batch_size: int,
        precision: torch.dtype,
        device: torch.device,
    ) -> None:
        self.precision = precision
        channels, height, width = image
        self._network = layout_of(module, height, width, batch_size)
        self.layers = self._network.layers
        self.tables = Tables.build(self.layers, device)
        total = sum(layer.blocks for layer in self.layers) * BLOCK
        self.weights = torch.zeros(tasks, total, dtype=precision, device=device)
        self.gradients = torch.zeros(tasks, sum(layer.splits * layer.weights for layer in self.layers), device=device)
        self._batch_size, self._buffers = batch_size, dict[tuple[str, int, int, int, int], Tensor]()
        self.x = self._buffer("images", height, width, pad_channels(channels), self._network.stem.layer.border)
        self.y = torch.zeros(tasks, batch_size, dtype=torch.int32, device=device)
        self._running: dict[str, RunningMoments] = {}
        self.statistics: dict[str, Tensor] = {}
        for name, layer in module.named_modules():
            if isinstance(layer, nn.BatchNorm2d):
                assert layer.momentum is not None
                mean, variance = torch.zeros(2, tasks, pad_channels(layer.num_features), device=device)
                self._running[name] = RunningMoments(mean, variance, layer.eps, layer.momentum)
                self.statistics[f"{name}.running_mean"] = mean[:, : layer.num_features]
                self.statistics[f"{name}.running_var"] = variance[:, : layer.num_features]

    def _buffer(self, use: str, height: int, width: int, channels: int, border: int) -> Tensor:
        """A tensor for one use, with a border of zeros, made once; kernels never write to a border."""
        key = (use, height, width, channels, border)
        if key not in self._buffers:
            size = (height + 2 * border, width + 2 * border)
            self._buffers[key] = self.weights.new_zeros(len(self.weights), self._batch_size, *size, channels)
        return self._buffers[key]

    @property
    def outputs(self) -> int:
        """How many the network has."""
        return self._network.classifier.channels[1]

    def gather(self, feed: Feed, step: Tensor) -> None:
        """Put the feed's batch of this step into x and y."""
        tasks, batch, _, _, channels = self.x.shape
        height, width = feed.part.images.shape[2:]
        size = height * width * channels
        block = min(_PIXELS, triton.next_power_of_2(size))
        by_channel = (
            each.float().view(-1).expand(feed.part.shape[0]).contiguous() for each in (feed.part.gain, feed.part.offset)
        )
        kernels._gather[(batch, tasks, triton.cdiv(size, block))](
            feed.part.images,
            feed.rows,
            feed.labels,
            feed.rows if feed.crops is None else feed.crops,
            *by_channel,
            step,
            self.x,
            self.y,
            feed.rows.shape[1],
            batch,
            0 if feed.part.augmentation is None else feed.part.augmentation.padding,
            height=height,
            width=width,
            channels=feed.part.images.shape[1],
            cropped=int(feed.crops is not None),
            padded=channels,
            border=border_of(self.x, height),
            block=block,
        )

    def forward(self) -> PassState:
        """Outputs for the batch in x, and what the backward pass needs."""

        def normalised(each: Normalised, x: Tensor) -> Normal:
            z, sums = convolve(each.layer, x, self.weights)
            return moments(z, sums, self._running[each.norm])

        def buffer(use: str, normal: Normal, border: int) -> Tensor:
            _, _, height, width, channels = normal.z.shape
            return self._buffer(use, height, width, channels, border)

        network = self._network
        border = network.blocks[0].path[0].layer.border  # of what goes from block to block
        stem = normalised(network.stem, self.x)
        x = relu(stem, buffer("stem", stem, 1 if network.pools else border))
        pooled = None
        if network.pools:
            layer, next_layer = network.stem.layer, network.blocks[0].path[0].layer
            out = self._buffer("pooled", next_layer.height, next_layer.width, layer.padded[1], border)
            pooled = pool(x, out, layer.out_height, layer.out_width)
            x = out
        traces = []
        for block in network.blocks:
            inputs, normals = [x], []
            for each, following in zip(block.path, (*block.path[1:], None)):
                normals.append(normalised(each, inputs[-1]))
                if following is not None:
                    inputs.append(relu(normals[-1], buffer(each.layer.name, normals[-1], following.layer.border)))
            shortcut = None if block.shortcut is None else normalised(block.shortcut, x)
            name = f"{block.path[-1].layer.name} and shortcut"
            x = relu(normals[-1], buffer(name, normals[-1], border), x if shortcut is None else shortcut)
            traces.append(BlockState(block, inputs, normals, shortcut, x))
        _, _, height, width, _ = traces[-1].normals[-1].z.shape
        border = border_of(x, height)
        features = x[:, :, border : border + height, border : border + width].mean((2, 3))
        outputs = torch.bmm(features, network.classifier.matrices(self.weights)).float()
        return PassState(stem, pooled, traces, features, outputs)

    def backward(self, trace: PassState, slope: Tensor, trunk: bool = True) -> None:
        """Gradients of all weights from the slope [t, b, …] at the outputs, padded like them.

        trunk  False: of the classifier's weights alone
        """
        classifier, stem = self._network.classifier, self._network.stem.layer
        slope = slope.to(self.precision)
        span = slice(classifier.gradient_first, classifier.gradient_first + classifier.weights)
        self.gradients[:, span] = torch.bmm(trace.features.transpose(1, 2), slope).flatten(1)
        if not trunk:
            return
        _, _, height, width, _ = trace.blocks[-1].normals[-1].z.shape
        slope = torch.bmm(slope, classifier.matrices(self.weights).transpose(1, 2)).div_(height * width)
        slope = slope[:, :, None, None, :].expand(-1, -1, height, width, -1).contiguous()
        for block in reversed(trace.blocks):
            slope = self._block_back(block, slope)
        if trace.pooled is not None:
            slope = pool_back(trace.pooled, slope, stem.out_height, stem.out_width)
        slope = self._normal_back(slope, trace.stem, slope_sums(slope, trace.stem), stem.border, gated=False)
        weight_gradient(stem, self.x, slope, self.gradients)

    def _block_back(self, trace: BlockState, slope: Tensor) -> Tensor:
        """The gradient at a block's input from that at its output; also computes the gradients of its weights."""
        layers = [each.layer for each in trace.block.path]
        sums = slope_sums(slope, trace.normals[-1], gate=trace.out, shortcut=trace.shortcut)
        beside = slope
        if trace.block.shortcut is not None:
            assert trace.shortcut is not None
            layer = trace.block.shortcut.layer
            back = self._normal_back(slope, trace.shortcut, sums, layer.border, gated=True, which=2)
            weight_gradient(layer, trace.inputs[0], back, self.gradients)
            beside = convolve_back(layer, back, self.weights)
        back = self._normal_back(slope, trace.normals[-1], sums, layers[-1].border, gated=True)
        for i in range(len(layers) - 1, 0, -1):
            weight_gradient(layers[i], trace.inputs[i], back, self.gradients)
            inner, normal = convolve_back(layers[i], back, self.weights), trace.normals[i - 1]
            back = self._normal_back(inner, normal, slope_sums(inner, normal), layers[i - 1].border, gated=False)
        weight_gradient(layers[0], trace.inputs[0], back, self.gradients)
        return convolve_back(layers[0], back, self.weights, extra=beside)

    def _normal_back(
        self, slope: Tensor, normal: Normal, sums: Tensor, border: int, gated: bool, which: int = 1
    ) -> Tensor:
        _, _, height, width, channels = slope.shape
        return normalise_backward(
            slope, normal, sums, self._buffer("slope", height, width, channels, border), gated, which
        )


class BlockState(NamedTuple):
    """What one block's backward pass needs: the inputs of its convolutions, what they gave, and what came out."""

    block: ResidualBlock
    inputs: list[Tensor]
    normals: list[Normal]
    shortcut: Normal | None
    out: Tensor


class PassState(NamedTuple):
    """What the backward pass needs of the forward pass.

    features  what the classifier sees, [t, b, channels]
    outputs   [t, b, outputs, padded], in float32
    """

    stem: Normal
    pooled: Pooled | None
    blocks: list[BlockState]
    features: Tensor
    outputs: Tensor


class ResidualFunction:
    """Outputs for the batch in x of some passes; call backward before the next outputs are computed.

    The weights are tensors by name: [t, …], or […] where all tasks share them. They are put in their place for the
    passes, and gradients taken from there, in one launch each.
    """

    def __init__(self, passes: Passes) -> None:
        self.passes, self._device = passes, passes.weights.device
        places = []
        for layer in passes.layers:
            shape = layer.module.weight.shape
            numbers = torch.arange(1, shape.numel() + 1, dtype=torch.int32).view(1, *shape)
            places.append(layer.to_flat(numbers)[0] - 1)
        self._place = torch.cat(places).to(self._device)
        self._sizes = [layer.module.weight.numel() for layer in passes.layers]
        self._spans: dict[tuple[bool, ...], tuple[Tensor, Tensor]] = {}  # made once: a capture copies nothing to a GPU

    def __call__(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Outputs [t, b, s] in float32."""
        by_layer = (weights[layer.name] for layer in self.passes.layers)
        outputs: Tensor = _Outputs.apply(self, *by_layer)  # type: ignore[no-untyped-call]
        return outputs

    def shared(self, weights: Sequence[Tensor]) -> tuple[bool, ...]:
        """Which of the layers' tensors all tasks share."""
        return tuple(each.ndim == layer.module.weight.ndim for each, layer in zip(weights, self.passes.layers))

    def pack(self, weights: Sequence[Tensor]) -> None:
        """Put each layer's tensor in its place for the passes."""
        tables, out = self.passes.tables, self.passes.weights
        start, stride = self._span(self.shared(weights))
        values = torch.cat([each.reshape(-1) for each in weights])
        flat_kernels._pack[(len(tables.layer_of), len(out))](
            values, out, self._place, tables.layer_of, start, stride, out.shape[1], block=BLOCK
        )

    def unpack(self) -> list[Tensor]:
        """The gradient [t, …] of each layer from the last backward pass."""
        tables, gradients = self.passes.tables, self.passes.gradients
        tasks = len(gradients)
        start, stride = self._span((False,) * len(self._sizes))
        out = torch.empty(tasks * sum(self._sizes), device=self._device)
        flat_kernels._unpack[(len(tables.layer_of), tasks)](
            gradients, out, self._place, *tables, start, stride, gradients.shape[1], block=BLOCK
        )
        parts = out.split([tasks * size for size in self._sizes])
        return [part.view(tasks, *each.module.weight.shape) for part, each in zip(parts, self.passes.layers)]

    def _span(self, shared: tuple[bool, ...]) -> tuple[Tensor, Tensor]:
        """Where each layer starts among tensors that lie one after the other, and how far apart its tasks are."""
        if shared not in self._spans:
            starts, tasks = [0], len(self.passes.weights)
            for size, once in zip(self._sizes, shared):
                starts.append(starts[-1] + size * (1 if once else tasks))
            strides = [0 if once else size for size, once in zip(self._sizes, shared)]
            self._spans[shared] = (
                torch.tensor(starts[:-1], dtype=torch.int64, device=self._device),
                torch.tensor(strides, dtype=torch.int64, device=self._device),
            )
        return self._spans[shared]


class _Outputs(torch.autograd.Function):
    """The backward pass is short where only the classifier's weights need a gradient."""

    @staticmethod
    def forward(ctx: Any, function: ResidualFunction, *weights: Tensor) -> Tensor:
        function.pack(weights)
        ctx.function, ctx.shared = function, function.shared(weights)
        ctx.trace = function.passes.forward()
        return ctx.trace.outputs[..., : function.passes.outputs].clone()  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        passes = ctx.function.passes
        needed = ctx.needs_input_grad[1:]
        trunk = any(needed[:-1])
        passes.backward(ctx.trace, pad(slope, (0, ctx.trace.outputs.shape[2] - slope.shape[2])), trunk)
        if trunk:
            gradients = ctx.function.unpack()
        else:
            last = passes.layers[-1]
            gradients = [*[None] * len(needed[:-1]), last.from_flat(passes.gradients[:, last.gradient_first :])]
        return None, *(
            None if not wanted or found is None else found.sum(0) if once else found
            for found, wanted, once in zip(gradients, needed, ctx.shared)
        )
