"""Residual networks of many tasks trained in step: forward, backward, Adam and selection by hand, on all tasks at once.

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
from supsup.nets.resnet import BasicBlock, ResNet
from supsup.scores import hard_mask
from supsup.training.feed import Feed
from supsup.training.operations import loss_gradient
from supsup.training.recipe import Recipe
from supsup.training.residual.layers import (
    BLOCK,
    Buffers,
    Layer,
    convolve,
    convolve_back,
    padded,
    splits_for,
    weight_gradient,
)
from supsup.training.residual.normalisation import Normal, Running, backward, moments, relu, slope_sums

_CHUNK = 4096  # scores in one program of the selection
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
        self.net, self.module, self.recipe, self.kept = net, net.module, recipe, kept
        self._blocks = [block for block in net.module.stages.modules() if isinstance(block, BasicBlock)]
        self.tasks, self.batch_size, self.precision = len(kept), batch_size, precision
        channels, height, width = image
        self.layers = _layers(net.module, self._blocks, height, width, batch_size)
        self._tables(net.device)
        total = sum(layer.blocks for layer in self.layers) * BLOCK

        def state(dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(self.tasks, total, dtype=dtype, device=net.device)

        self.weight = torch.cat([layer.to_flat(net.weights[layer.name][None])[0] for layer in self.layers])
        self.scores, self.first, self.second, self.masked = state(), state(), state(), state(precision)
        self._buffer = Buffers(self.tasks, batch_size, precision, net.device)
        self.x = self._buffer("images", height, width, padded(channels))
        self.y = torch.zeros(self.tasks, batch_size, dtype=torch.int32, device=net.device)
        self.step_count = torch.zeros(1, dtype=torch.int32, device=net.device)
        self.factors = _adam_factors(recipe, steps).to(net.device)
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
            value.zero_()
        for name, running in self.running.items():
            for buffer, kind in ((running.mean, "running_mean"), (running.variance, "running_var")):
                fresh = self.net.statistics[f"{name}.{kind}"]
                buffer.zero_()
                buffer[:, : len(fresh)] = fresh
        self._select()

    def step_from(self, feed: Feed) -> None:
        """One step on the feed's next batch."""
        tasks, batch, height, width, channels = self.x.shape
        _gather[(batch, tasks)](
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
            height=height - 2,
            width=width - 2,
            channels=feed.part.images.shape[1],
            cropped=int(feed.crops is not None),
            padded=channels,
            block=triton.next_power_of_2((height - 2) * (width - 2) * channels),
        )
        self.step()

    def step(self) -> None:
        """One optimiser step on the batch in x and y."""
        self._backward(*self._forward())
        self._update()
        self._select()
        self.step_count += 1

    def _forward(self) -> tuple[Normal, list[_Trace], Tensor]:
        """What the backward pass needs: the stem, what went through each block, and what came out in the end."""
        by_module = {id(layer.module): layer for layer in self.layers}
        names = {id(module): name for name, module in self.module.named_modules()}

        def normalised(convolution: nn.Conv2d, norm: nn.Module, x: Tensor) -> Normal:
            z, sums = convolve(by_module[id(convolution)], x, self.masked)
            return moments(z, sums, self.running[names[id(norm)]])

        def buffer(use: str, normal: Normal) -> Tensor:
            return self._buffer(use, *normal.z.shape[2:])

        stem = normalised(self.module.conv, self.module.norm, self.x)
        x = relu(stem, buffer("stem", stem))
        traces = []
        for block in self._blocks:
            one = normalised(block.conv1, block.norm1, x)
            hidden = relu(one, buffer(names[id(block.conv1)], one))
            two = normalised(block.conv2, block.norm2, hidden)
            shortcut = None
            if isinstance(block.shortcut, nn.Sequential):
                shortcut = normalised(block.shortcut[0], block.shortcut[1], x)  # type: ignore[arg-type]
            out = relu(two, buffer(names[id(block)], two), x if shortcut is None else shortcut)
            traces.append(_Trace(block, x, one, hidden, two, shortcut, out))
            x = out
        return stem, traces, x

    def _backward(self, stem: Normal, traces: list[_Trace], x: Tensor) -> None:
        by_module = {id(layer.module): layer for layer in self.layers}
        classifier = self.layers[-1]
        x = x[:, :, 1:-1, 1:-1]
        shape = x.shape
        pooled = x.mean((2, 3))
        masked = self.masked[:, classifier.first : classifier.first + classifier.weights].view(-1, *classifier.padded)
        outputs = torch.bmm(pooled, masked).float()
        loss_gradient(outputs, self.y, classifier.channels[1])
        outputs = outputs.to(self.precision)
        span = slice(classifier.gradient_first, classifier.gradient_first + classifier.weights)
        self.gradients[:, span] = torch.bmm(pooled.transpose(1, 2), outputs).flatten(1)
        slope = torch.bmm(outputs, masked.transpose(1, 2)).div_(shape[2] * shape[3])
        slope = slope[:, :, None, None, :].expand(shape).contiguous()
        for trace in reversed(traces):
            slope = self._block_back(trace, slope, by_module)
        slope = self._normal_back(slope, stem, slope_sums(slope, stem), gated=False)
        weight_gradient(by_module[id(self.module.conv)], self.x, slope, self.gradients)

    def _block_back(self, trace: _Trace, slope: Tensor, by_module: dict[int, Layer]) -> Tensor:
        """The gradient at a block's input from that at its output; its weights' gradients on the way."""
        one, two = by_module[id(trace.block.conv1)], by_module[id(trace.block.conv2)]
        sums = slope_sums(slope, trace.two, gate=trace.out, shortcut=trace.shortcut)
        back = self._normal_back(slope, trace.two, sums, gated=True)
        weight_gradient(two, trace.hidden, back, self.gradients)
        inner = convolve_back(two, back, self.masked)
        beside = slope
        if trace.shortcut is not None:
            assert isinstance(trace.block.shortcut, nn.Sequential)
            layer = by_module[id(trace.block.shortcut[0])]
            back = self._normal_back(slope, trace.shortcut, sums, gated=True, which=2)
            weight_gradient(layer, trace.x, back, self.gradients)
            beside = convolve_back(layer, back, self.masked)
        inner = self._normal_back(inner, trace.one, slope_sums(inner, trace.one), gated=False)
        weight_gradient(one, trace.x, inner, self.gradients)
        return convolve_back(one, inner, self.masked, extra=beside)

    def _normal_back(self, slope: Tensor, normal: Normal, sums: Tensor, gated: bool, which: int = 1) -> Tensor:
        return backward(slope, normal, sums, self._buffer("slope", *slope.shape[2:]), gated, which)

    def _update(self) -> None:
        k._update[(len(self._layer_of), self.tasks)](
            self.weight,
            self.scores,
            self.first,
            self.second,
            self.gradients,
            self._layer_of,
            self._offset_of,
            self._gradient_start,
            self._splits,
            self._sizes,
            self.factors,
            self.step_count,
            self.recipe.weight_decay,
            self.scores.shape[1],
            self.gradients.shape[1],
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
class _Trace:
    """What one block's backward pass needs of its forward pass."""

    block: BasicBlock
    x: Tensor
    one: Normal
    hidden: Tensor
    two: Normal
    shortcut: Normal | None
    out: Tensor


def _layers(module: ResNet, blocks: list[BasicBlock], height: int, width: int, batch: int) -> list[Layer]:
    """All layers in the order of their use, the classifier last, with their places."""
    layers: list[Layer] = []

    def add(name: str, layer: nn.Conv2d | nn.Linear, height: int, width: int) -> Layer:
        first = layers[-1].first + layers[-1].blocks * BLOCK if layers else 0
        start = layers[-1].gradient_first + layers[-1].splits * layers[-1].weights if layers else 0
        splits = 1
        if isinstance(layer, nn.Conv2d):
            splits = splits_for(layer, batch * -(-height // layer.stride[0]) * -(-width // layer.stride[0]))
        layers.append(Layer(name, layer, height, width, first, start, splits))
        return layers[-1]

    add("conv.weight", module.conv, height, width)
    paths = {id(child): path for path, child in module.named_modules()}
    for block in blocks:
        path = paths[id(block)]
        one = add(f"{path}.conv1.weight", block.conv1, height, width)
        add(f"{path}.conv2.weight", block.conv2, one.out_height, one.out_width)
        if isinstance(block.shortcut, nn.Sequential):
            add(f"{path}.shortcut.0.weight", block.shortcut[0], height, width)  # type: ignore[arg-type]
        height, width = one.out_height, one.out_width
    add("classifier.weight", module.classifier, 1, 1)
    return layers


def _adam_factors(recipe: Recipe, steps: int) -> Tensor:
    """For each step the rate over the first moment's correction, and one over the root of the second's: [steps, 2]."""
    first, second = recipe.first_decay, recipe.squares_decay
    rows = [
        (recipe.rate(step, steps) / (1 - first ** (step + 1)), (1 - second ** (step + 1)) ** -0.5)
        for step in range(steps)
    ]
    return torch.tensor([*rows, rows[-1]], dtype=torch.float32)
