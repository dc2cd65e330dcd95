"""The steps of training many masks at once, each as one Triton kernel and as plain torch operations.

Shapes: t tasks, b images in a batch, f features of an image; a layer has [out, in] weights shared by all tasks.
The torch versions define the meaning and run anywhere; the kernels run on CUDA (in tests: in Triton's interpreter).
With numba, the update is one compiled pass on a CPU where torch has one thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from supsup.data.task import BLACK, GREY
from supsup.kernels import available
from supsup.kernels.rule import ScoreState
from supsup.training.batches import Feed
from supsup.training.recipe import Recipe

if available.NUMBA:
    from supsup.kernels import numba_masks
if available.TRITON:
    from supsup.kernels import triton_training

_FEW_TASKS = 4  # up to this many, small products in one launch each beat those of the library


def gather(feed: Feed, x: Tensor, y: Tensor) -> None:
    """Fill the first features of x [t, b, ≥ f], and y [t, b], with the batch of the feed's present step."""
    assert feed.maps is not None
    images = feed.part.images.flatten(1)
    if x.is_cuda and available.TRITON:
        shared = (images, feed.gain, feed.offset, feed.maps, feed.rows, feed.labels, feed.step)
        triton_training.triton_gather(shared, x, y)
        return
    batch = x.shape[1]
    start = int(feed.step) * batch
    black, grey = feed.maps == BLACK, feed.maps == GREY
    for task in range(len(x)):
        pixels = images[feed.rows[task, start : start + batch].long()].float()
        shown = pixels[:, feed.maps[task].clamp(min=0).long()].masked_fill_(black[task], 0)
        x[task, :, : shown.shape[1]] = shown.mul_(feed.gain).add_(feed.offset).masked_fill_(grey[task], 0)
    y.copy_(feed.labels[:, start : start + batch])


def loss_gradient(outputs: Tensor, y: Tensor, size: int) -> None:
    """Turn the first `size` outputs [t, b, ≥ size] into the gradient of the mean cross-entropy, in place; 0 beyond."""
    if outputs.is_cuda and available.TRITON:
        triton_training.triton_loss_gradient(outputs, y, size)
        return
    batch = outputs.shape[1]
    p = outputs[..., :size].float().softmax(-1)
    p.scatter_add_(2, y.long()[..., None], torch.full_like(p[..., :1], -1.0))
    outputs[..., :size] = p.div_(batch)
    outputs[..., size:] = 0


def forward(inputs: Tensor, masked: Tensor, out: Tensor, relu: bool) -> None:
    """out [t, b, out] = inputs [t, b, in] · masked [t, out, in]ᵀ, with ReLU if `relu`."""
    if out.is_cuda and available.TRITON and len(out) <= _FEW_TASKS:
        triton_training.triton_forward(inputs, masked, out, relu)
        return
    torch.bmm(inputs, masked.transpose(1, 2), out=out)
    if relu:
        out.relu_()


def backward(delta: Tensor, masked: Tensor, inputs: Tensor) -> Tensor:
    """The gradient at the inputs [t, b, in] of a layer, through the ReLU that made them."""
    if delta.is_cuda and available.TRITON and len(delta) <= _FEW_TASKS:
        return triton_training.triton_backward(delta, masked, inputs)
    below = torch.bmm(delta, masked)
    torch.ops.aten.threshold_backward.grad_input(below, inputs, 0, grad_input=below)
    return below


class Rates:
    """The learning rate of every step, for the host and on a device; later steps have that of the last."""

    def __init__(self, recipe: Recipe, steps: int, device: torch.device) -> None:
        constant = recipe.schedule == "constant" and not recipe.warm_up
        self._rates = [recipe.rate(step, steps) for step in range(1 if constant else steps)]
        self.on_device = torch.tensor(self._rates, dtype=torch.float32, device=device)

    def at(self, step: int) -> float:
        """The rate of step number `step`, from 0."""
        return self._rates[min(step, len(self._rates) - 1)]


@dataclass
class LayerState:
    """Scores and optimiser state of one layer for t tasks, and the masked weights they give."""

    weight: Tensor  # [out, in] float32, frozen, shared
    scores: Tensor  # [t, out, in] float32
    masked: Tensor  # [t, out, in] in the precision of the matrix products
    first: Tensor | None  # momentum (SGD) or first moment (Adam)
    second: Tensor | None  # second moment (RMSprop, Adam)

    @classmethod
    def empty(cls, weight: Tensor, tasks: int, recipe: Recipe, precision: torch.dtype = torch.float32) -> LayerState:
        """For a layer's weights, with the moments that the recipe's optimiser needs; all zeros."""

        def state(dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(tasks, *weight.shape, dtype=dtype, device=weight.device)

        first = state() if recipe.optimiser == "adam" or recipe.momentum else None
        return cls(weight, state(), state(precision), first, None if recipe.optimiser == "sgd" else state())

    @property
    def tensors(self) -> ScoreState:
        """All of them, in order."""
        return self.weight, self.scores, self.masked, self.first, self.second


def update(layer: LayerState, delta: Tensor, inputs: Tensor, recipe: Recipe, step: Tensor, rates: Rates) -> None:
    """One optimiser step on a layer's scores from its outputs' gradient [t, b, out] and its inputs [t, b, in].

    `step` holds the number of steps done before this one.
    """
    if delta.is_cuda and available.TRITON:
        triton_training.triton_update(layer.tensors, delta, inputs, step, rates.on_device, recipe.rule)
        return
    g = torch.bmm(delta.transpose(1, 2), inputs).float()
    step_scores(layer, g, recipe, int(step), rates)


def step_scores(layer: LayerState, g: Tensor, recipe: Recipe, done: int, rates: Rates) -> None:
    """The same from the gradient of the masked weights [t, out, in], which may be overwritten; `done` steps before."""
    alone = torch.get_num_threads() == 1  # a compiled loop beside torch's threads is slower
    if available.NUMBA and alone and layer.masked.dtype == torch.float32 and not g.is_cuda:
        numba_masks.numba_update(layer.tensors, g, done + 1, rates.at(done), recipe.rule)
    else:
        plain_update(layer, g, recipe, done + 1, rates.at(done))


def plain_update(layer: LayerState, g: Tensor, recipe: Recipe, count: int, rate: float) -> None:
    """The optimiser's step number `count` from the gradient of the masked weights [t, out, in], which it overwrites."""
    g.mul_(layer.weight)
    scores = layer.scores
    if recipe.weight_decay:
        g.add_(scores, alpha=recipe.weight_decay)
    decay = recipe.rule.second_decay
    if recipe.optimiser == "rmsprop":
        assert layer.second is not None
        layer.second.mul_(decay).addcmul_(g, g, value=1 - decay)
        scores.addcdiv_(g, layer.second.sqrt().add_(recipe.epsilon), value=-rate)
    elif recipe.optimiser == "adam":
        assert layer.first is not None
        assert layer.second is not None
        layer.first.lerp_(g, 1 - recipe.first_decay)
        layer.second.mul_(decay).addcmul_(g, g, value=1 - decay)
        root = (layer.second.sqrt() / (1 - decay**count) ** 0.5).add_(recipe.epsilon)
        scores.addcdiv_(layer.first, root, value=-rate / (1 - recipe.first_decay**count))
    else:
        if layer.first is not None:
            g = layer.first.mul_(recipe.momentum).add_(g)
        scores.add_(g, alpha=-rate)
    layer.masked.copy_(scores >= 0).mul_(layer.weight)
