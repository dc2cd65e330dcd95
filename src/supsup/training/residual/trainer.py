"""Residual networks of many tasks trained in step: forward, backward, optimiser and selection by hand, on all at once.

Activations are in bfloat16, scores and moments of the optimiser in float32. Weights of all layers lie end to end, so
that update and selection are one launch each for the whole network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import triton
from torch import Tensor, nn

from supsup.frozen import FrozenNet
from supsup.kernels import triton_selection as k
from supsup.kernels.triton_convolution import _gather
from supsup.nets.resnet import ResNet
from supsup.scores import hard_mask
from supsup.training.feed import Feed
from supsup.training.operations import loss_gradient
from supsup.training.recipe import Recipe
from supsup.training.residual.layers import (
    BLOCK,
    Buffers,
    border_of,
    convolve,
    convolve_back,
    padded,
    weight_gradient,
)
from supsup.training.residual.network import Block, Normalised, network_of
from supsup.training.residual.normalisation import Normal, Running, backward, moments, relu, slope_sums
from supsup.training.residual.pooling import Pooled, pool, pool_back

_CHUNK = 4096  # scores in one program of the selection
_PIXELS = 4096  # numbers of one image in one program that fetches it
_PASSES = 6  # of the selection, which find the 31 bits of a score from the highest on


class ResidualTrainer:
    """Scores of t tasks and their optimiser state, and one training step for all of them.

    kept  for each task the number of weights kept of each tensor, None where a threshold decides
    """

    def __init__(
        self,
        net: FrozenNet,
        image: tuple[int, int, int],
        kept: Sequence[Sequence[int | None]],
        recipe: Recipe,
        batch_size: int,
        steps: int,
        precision: torch.dtype = torch.bfloat16,
    ) -> None:
        assert isinstance(net.module, ResNet)
        self.net, self.recipe, self.kept = net, recipe, kept
        self.tasks, self.batch_size, self.precision = len(kept), batch_size, precision
        channels, height, width = image
        self._network = network_of(net.module, height, width, batch_size)
        self.layers = self._network.layers
        self._tables(net.device)
        total = sum(layer.blocks for layer in self.layers) * BLOCK

        def state(dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(self.tasks, total, dtype=dtype, device=net.device)

        self.weight = torch.cat([layer.to_flat(net.weights[layer.name][None])[0] for layer in self.layers])
        self.scores, self.masked = state(), state(precision)
        self.first = state() if recipe.optimiser == "adam" or recipe.momentum else None
        self.second = None if recipe.optimiser == "sgd" else state()
        self._buffer = Buffers(self.tasks, batch_size, precision, net.device)
        self.x = self._buffer("images", height, width, padded(channels), self._network.stem.layer.border)
        self.y = torch.zeros(self.tasks, batch_size, dtype=torch.int32, device=net.device)
        self.step_count = torch.zeros(1, dtype=torch.int32, device=net.device)
        self.factors = _factors(recipe, steps).to(net.device)
        self.running: dict[str, Running] = {}
        for name, layer in net.module.named_modules():
            if isinstance(layer, nn.BatchNorm2d):
                assert layer.momentum is not None
                mean, variance = torch.zeros(2, self.tasks, padded(layer.num_features), device=net.device)
                self.running[name] = Running(mean, variance, layer.eps, layer.momentum)

    def _tables(self, device: torch.device) -> None:
        """What the launches over all layers need to know of each block, chunk and layer."""

        def table(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        numbered = list(enumerate(self.layers))
        self._layer_of = table([i for i, layer in numbered for _ in range(layer.blocks)])
        self._offset_of = table([BLOCK * block for layer in self.layers for block in range(layer.blocks)])
        chunks = [(i, start, layer) for i, layer in numbered for start in range(0, layer.weights, _CHUNK)]
        self._chunk_layer = table([i for i, _, _ in chunks])
        self._chunk_start = table([layer.first + start for _, start, layer in chunks])
        self._chunk_stop = table([layer.first + layer.weights for _, _, layer in chunks])
        self._sizes = table([layer.weights for layer in self.layers])
        self._splits = table([layer.splits for layer in self.layers])
        self._gradient_start = table([layer.gradient_first for layer in self.layers])
        self.gradients = torch.zeros(
            self.tasks, sum(layer.splits * layer.weights for layer in self.layers), device=device
        )
        self._selects = self.kept[0][0] is not None
        self._keep = torch.tensor([[n or 1 for n in task] for task in self.kept], dtype=torch.int32, device=device)
        self._least = torch.zeros_like(self._keep)
        self._counts = torch.zeros(self.tasks, len(self.layers), _PASSES, 64, dtype=torch.int32, device=device)

    def start(self, scores: Mapping[str, Tensor]) -> None:
        """Begin anew from scores [t, …] of each weight."""
        for layer in self.layers:
            span = slice(layer.first, layer.first + layer.blocks * BLOCK)
            self.scores[:, span] = layer.to_flat(scores[layer.name].float())
        for value in (self.first, self.second, self.step_count):
            if value is not None:
                value.zero_()
        for name, running in self.running.items():
            for buffer, kind in ((running.mean, "running_mean"), (running.variance, "running_var")):
                fresh = self.net.statistics[f"{name}.{kind}"]
                buffer.zero_()
                buffer[:, : len(fresh)] = fresh
        self._select()

    def step_from(self, feed: Feed) -> None:
        """One step on the feed's next batch."""
        tasks, batch, _, _, channels = self.x.shape
        height, width = feed.part.images.shape[2:]
        size = height * width * channels
        block = min(_PIXELS, triton.next_power_of_2(size))
        _gather[(batch, tasks, triton.cdiv(size, block))](
            feed.part.images,
            feed.rows,
            feed.labels,
            feed.rows if feed.crops is None else feed.crops,
            feed.channel_gain,
            feed.channel_offset,
            self.step_count,
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
        self.step()

    def step(self) -> None:
        """One optimiser step on the batch in x and y."""
        self._backward(self._forward())
        self._update()
        self._select()
        self.step_count += 1

    def _forward(self) -> _Trace:
        """What the backward pass needs."""

        def normalised(each: Normalised, x: Tensor) -> Normal:
            z, sums = convolve(each.layer, x, self.masked)
            return moments(z, sums, self.running[each.norm])

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
            traces.append(_BlockTrace(block, inputs, normals, shortcut, x))
        return _Trace(stem, pooled, traces)

    def _backward(self, trace: _Trace) -> None:
        classifier, stem = self._network.classifier, self._network.stem.layer
        last = trace.blocks[-1]
        border = border_of(last.out, last.normals[-1].z.shape[2])
        x = last.out[:, :, border : last.out.shape[2] - border, border : last.out.shape[3] - border]
        shape = x.shape
        pooled = x.mean((2, 3))
        masked = classifier.matrices(self.masked)
        outputs = torch.bmm(pooled, masked).float()
        loss_gradient(outputs, self.y, classifier.channels[1])
        outputs = outputs.to(self.precision)
        span = slice(classifier.gradient_first, classifier.gradient_first + classifier.weights)
        self.gradients[:, span] = torch.bmm(pooled.transpose(1, 2), outputs).flatten(1)
        slope = torch.bmm(outputs, masked.transpose(1, 2)).div_(shape[2] * shape[3])
        slope = slope[:, :, None, None, :].expand(shape).contiguous()
        for block in reversed(trace.blocks):
            slope = self._block_back(block, slope)
        if trace.pooled is not None:
            slope = pool_back(trace.pooled, slope, stem.out_height, stem.out_width)
        slope = self._normal_back(slope, trace.stem, slope_sums(slope, trace.stem), stem.border, gated=False)
        weight_gradient(stem, self.x, slope, self.gradients)

    def _block_back(self, trace: _BlockTrace, slope: Tensor) -> Tensor:
        """The gradient at a block's input from that at its output; its weights' gradients on the way."""
        layers = [each.layer for each in trace.block.path]
        sums = slope_sums(slope, trace.normals[-1], gate=trace.out, shortcut=trace.shortcut)
        beside = slope
        if trace.block.shortcut is not None:
            assert trace.shortcut is not None
            layer = trace.block.shortcut.layer
            back = self._normal_back(slope, trace.shortcut, sums, layer.border, gated=True, which=2)
            weight_gradient(layer, trace.inputs[0], back, self.gradients)
            beside = convolve_back(layer, back, self.masked)
        back = self._normal_back(slope, trace.normals[-1], sums, layers[-1].border, gated=True)
        for i in range(len(layers) - 1, 0, -1):
            weight_gradient(layers[i], trace.inputs[i], back, self.gradients)
            inner, normal = convolve_back(layers[i], back, self.masked), trace.normals[i - 1]
            back = self._normal_back(inner, normal, slope_sums(inner, normal), layers[i - 1].border, gated=False)
        weight_gradient(layers[0], trace.inputs[0], back, self.gradients)
        return convolve_back(layers[0], back, self.masked, extra=beside)

    def _normal_back(
        self, slope: Tensor, normal: Normal, sums: Tensor, border: int, gated: bool, which: int = 1
    ) -> Tensor:
        _, _, height, width, channels = slope.shape
        return backward(slope, normal, sums, self._buffer("slope", height, width, channels, border), gated, which)

    def _update(self) -> None:
        k._update[(len(self._layer_of), self.tasks)](
            self.weight,
            self.scores,
            self.scores if self.first is None else self.first,
            self.scores if self.second is None else self.second,
            self.gradients,
            self._layer_of,
            self._offset_of,
            self._gradient_start,
            self._splits,
            self._sizes,
            self.factors,
            self.step_count,
            self.recipe.weight_decay,
            self.recipe.momentum,
            self.scores.shape[1],
            self.gradients.shape[1],
            optimiser=self.recipe.optimiser,
            has_first=self.first is not None,
            signed=self._selects,
            first_decay=self.recipe.first_decay,
            second_decay=self.recipe.squares_decay,
            epsilon=self.recipe.epsilon,
            block=BLOCK,
        )

    def _select(self) -> None:
        """Masked weights from the scores: in each layer the k-th largest is found bit by bit, without sorting."""
        layers = len(self.layers)
        if self._selects:
            self._counts.zero_()
            for number in range(_PASSES):
                k._count[(len(self._chunk_layer), self.tasks)](
                    self.scores,
                    self._keep,
                    self._counts,
                    self._chunk_layer,
                    self._chunk_start,
                    self._chunk_stop,
                    self.scores.shape[1],
                    layers,
                    number=number,
                    block=_CHUNK,
                )
            k._least[(layers, self.tasks)](self._keep, self._counts, self._least, layers)
        k._mask[(len(self._layer_of), self.tasks)](
            self.weight,
            self.scores,
            self.masked,
            self._least,
            self._layer_of,
            self.scores.shape[1],
            layers,
            signed=self._selects,
            block=BLOCK,
        )

    def final_scores(self) -> dict[str, Tensor]:
        """The scores as they stand, [t, …] by weight, in the network's order."""
        by_name = {layer.name: layer for layer in self.layers}
        out = {}
        for name in self.net.shapes:
            layer = by_name[name]
            out[name] = layer.from_flat(self.scores[:, layer.first : layer.first + layer.blocks * BLOCK])
        return out

    def masks(self) -> dict[str, Tensor]:
        """The masks as they stand, exactly as many weights as are to be kept: booleans [t, …] by weight."""
        keep = {layer.name: [task[i] for task in self.kept] for i, layer in enumerate(self.layers)}
        return {
            name: torch.stack([hard_mask(task, count) for task, count in zip(values, keep[name])])
            for name, values in self.final_scores().items()
        }

    def statistics(self) -> dict[str, Tensor]:
        """The running moments of all tasks, [t, channels] by name."""
        out = {}
        for name, running in self.running.items():
            channels = len(self.net.statistics[f"{name}.running_mean"])
            out[f"{name}.running_mean"] = running.mean[:, :channels].clone()
            out[f"{name}.running_var"] = running.variance[:, :channels].clone()
        return out


@dataclass(frozen=True)
class _BlockTrace:
    """What one block's backward pass needs: the inputs of its convolutions, what they gave, and what came out."""

    block: Block
    inputs: list[Tensor]
    normals: list[Normal]
    shortcut: Normal | None
    out: Tensor


@dataclass(frozen=True)
class _Trace:
    """What the backward pass needs of the forward pass."""

    stem: Normal
    pooled: Pooled | None
    blocks: list[_BlockTrace]


def _factors(recipe: Recipe, steps: int) -> Tensor:
    """For each step the rate and, for Adam, its corrections of the moments: [steps, 2].

    That is the rate over the first moment's, and one over the root of the second's.
    """
    adam = recipe.optimiser == "adam"
    first, second = (recipe.first_decay, recipe.squares_decay) if adam else (0.0, 0.0)
    rows = [
        (recipe.rate(step, steps) / (1 - first ** (step + 1)), (1 - second ** (step + 1)) ** -0.5)
        for step in range(steps)
    ]
    return torch.tensor([*rows, rows[-1]], dtype=torch.float32)
