"""Masks of residual networks of many tasks trained in step: optimiser and selection by hand, on all at once.

Scores and moments of the optimiser are in float32. Like the weights of all layers they lie end to end, so that update
and selection are one launch each for the whole network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from supsup.kernels import triton_selection as k
from supsup.masks.frozen import FrozenNet
from supsup.masks.scores import hard_mask
from supsup.nets.resnet import ResNet
from supsup.training.batches import Feed
from supsup.training.fast.operations import loss_gradient
from supsup.training.fast.residual.layers import BLOCK
from supsup.training.fast.residual.passes import Passes
from supsup.training.recipe import Recipe

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
        self.net, self.recipe, self.kept, self.tasks = net, recipe, kept, len(kept)
        self.passes = Passes(net.module, image, self.tasks, batch_size, precision, net.device)
        self.layers, self.masked, self.gradients = self.passes.layers, self.passes.weights, self.passes.gradients
        self._tables(net.device)

        def state() -> Tensor:
            return torch.zeros(self.masked.shape, device=net.device)

        self.weight = torch.cat([layer.to_flat(net.weights[layer.name][None])[0] for layer in self.layers])
        self.scores = state()
        self.first = state() if recipe.optimiser == "adam" or recipe.momentum else None
        self.second = None if recipe.optimiser == "sgd" else state()
        self.step_count = torch.zeros(1, dtype=torch.int32, device=net.device)
        self.factors = _factors(recipe, steps).to(net.device)

    def _tables(self, device: torch.device) -> None:
        """What the selection needs to know of each chunk and layer."""

        def table(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        chunks = [(i, start, each) for i, each in enumerate(self.layers) for start in range(0, each.weights, _CHUNK)]
        self._chunk_layer = table([i for i, _, _ in chunks])
        self._chunk_start = table([layer.first + start for _, start, layer in chunks])
        self._chunk_stop = table([layer.first + layer.weights for _, _, layer in chunks])
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
        for name, statistic in self.passes.statistics.items():
            statistic[:] = self.net.statistics[name]
        self._select()

    def step_from(self, feed: Feed) -> None:
        """One step on the feed's next batch."""
        self.passes.gather(feed, self.step_count)
        self.step()

    def step(self) -> None:
        """One optimiser step on the batch in x and y of the passes."""
        self.differentiate()
        self._update()
        self._select()
        self.step_count += 1

    def differentiate(self) -> None:
        """The gradients of the masked weights on that batch."""
        trace = self.passes.forward()
        loss_gradient(trace.outputs, self.passes.y, self.passes.outputs)
        self.passes.backward(trace, trace.outputs)

    def _update(self) -> None:
        tables = self.passes.tables
        k._update[(len(tables.layer_of), self.tasks)](
            self.weight,
            self.scores,
            self.scores if self.first is None else self.first,
            self.scores if self.second is None else self.second,
            self.gradients,
            tables.layer_of,
            tables.offset_of,
            tables.gradient_start,
            tables.splits,
            tables.sizes,
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
        layer_of = self.passes.tables.layer_of
        k._mask[(len(layer_of), self.tasks)](
            self.weight,
            self.scores,
            self.masked,
            self._least,
            layer_of,
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
        return {name: statistic.clone() for name, statistic in self.passes.statistics.items()}


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
