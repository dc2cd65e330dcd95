"""Many masks of a fully connected network trained in step, without autograd: forward, backward and update by hand.

With one task on a CPU this is simply a faster way to train one mask; with thousands on a GPU it fills the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn.functional import pad

from supsup.frozen import FrozenNet
from supsup.nets import FullyConnected
from supsup.training.operations import Feed, LayerState, backward, forward, gather, loss_gradient, update
from supsup.training.recipe import Recipe


def supports(net: FrozenNet, recipe: Recipe) -> bool:
    """Whether this executor knows the network's forward pass and how the recipe goes."""
    simple = recipe.selection == "threshold" and recipe.schedule == "constant" and not recipe.warm_up
    return type(net.module) is FullyConnected and simple


def padded(width: int) -> int:
    """Widths are rounded up to a multiple of 8, with weights of 0, so that rows of half-precision numbers align."""
    return -(-width // 8) * 8


class BatchedTrainer:
    """Scores of t tasks and their optimiser state, and one training step for all of them.

    precision  of the matrix products; scores and optimiser state are float32 always
    """

    def __init__(
        self, net: FrozenNet, tasks: int, recipe: Recipe, batch_size: int, precision: torch.dtype | None = None
    ) -> None:
        self.net, self.recipe = net, recipe
        device = net.device
        if precision is None:
            precision = torch.bfloat16 if device.type == "cuda" else torch.float32
        shapes = list(net.shapes.values())
        self.widths = [padded(shapes[0][1]), *(padded(shape[0]) for shape in shapes)]
        self.outputs = shapes[-1][0]
        self.precision = precision
        self.step_count = torch.zeros(1, dtype=torch.int32, device=device)
        self.layers = [self._layer(weight, tasks, precision) for weight in net.weights.values()]
        self.resize(tasks, batch_size)

    def resize(self, tasks: int, batch_size: int) -> None:
        """Make room for batches of another size."""

        def room(width: int) -> Tensor:
            return torch.zeros(tasks, batch_size, width, dtype=self.precision, device=self.net.device)

        self.x, *self.hidden = (room(width) for width in self.widths)
        self.y = torch.zeros(tasks, batch_size, dtype=torch.int32, device=self.net.device)

    def _layer(self, weight: Tensor, tasks: int, precision: torch.dtype) -> LayerState:
        rows, columns = weight.shape
        weight = pad(weight, (0, padded(columns) - columns, 0, padded(rows) - rows))

        def state() -> Tensor:
            return torch.zeros(tasks, *weight.shape, device=weight.device)

        kind = self.recipe.optimiser
        return LayerState(
            weight=weight,
            scores=state(),
            masked=torch.zeros(tasks, *weight.shape, dtype=precision, device=weight.device),
            first=state() if kind == "adam" or self.recipe.momentum else None,
            second=state() if kind in ("rmsprop", "adam") else None,
        )

    def start(self, scores: Callable[[str], Iterable[Tensor]]) -> None:
        """Begin anew from the scores of each weight, given as pieces [some tasks, out, in] that follow each other."""
        self.step_count.zero_()
        for name, layer in zip(self.net.weights, self.layers):
            rows, columns = self.net.shapes[name]
            filled = 0
            for piece in scores(name):
                layer.scores[filled : filled + len(piece), :rows, :columns] = piece
                filled += len(piece)
            layer.masked.copy_(layer.weight * (layer.scores >= 0))
            for moment in (layer.first, layer.second):
                if moment is not None:
                    moment.zero_()

    def load(self, x: Tensor, y: Tensor) -> None:
        """Put one batch of images for one task in place."""
        if len(x) != self.x.shape[1]:
            self.resize(1, len(x))
        self.x[0, :, : x[0].numel()] = x.flatten(1)
        self.y[0].copy_(y)

    def step(self) -> None:
        """One optimiser step on the batch in x [t, b, features] and y [t, b]."""
        inputs = [self.x, *self.hidden[:-1]]
        for i, (layer, h, z) in enumerate(zip(self.layers, inputs, self.hidden)):
            forward(h, layer.masked, z, relu=i < len(self.layers) - 1)
        delta = self.hidden[-1]
        loss_gradient(delta, self.y, self.outputs)
        for i in reversed(range(len(self.layers))):
            below = None
            if i > 0:
                below = backward(delta, self.layers[i].masked, inputs[i])
            update(self.layers[i], delta, inputs[i], self.recipe, self.step_count)
            if below is not None:
                delta = below
        self.step_count += 1

    def state(self) -> list[Tensor]:
        """All that training changes, to be copied and put back."""
        tensors = [self.step_count]
        for layer in self.layers:
            tensors += [t for t in (layer.scores, layer.masked, layer.first, layer.second) if t is not None]
        return tensors

    def step_from(self, feed: Feed) -> None:
        """One step on the feed's next batch."""
        gather(feed, self.x, self.y)
        self.step()
        feed.step += 1

    def masks(self) -> dict[str, Tensor]:
        """The masks as they stand: booleans [t, out, in] for each weight."""
        return {
            name: layer.scores[:, :rows, :columns] >= 0
            for (name, (rows, columns)), layer in zip(self.net.shapes.items(), self.layers)
        }
