"""A mask of any module in training with its scores end to end: masking and the optimiser are one pass over memory.

Autograd gives the gradient of the masked weights, as on the plain path, whose steps these are up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from supsup.frozen import FrozenNet
from supsup.training.operations import LayerState, Rates, step_scores
from supsup.training.plain import figures_of
from supsup.training.recipe import Recipe


class FlatTraining:
    """Scores, their optimiser and the statistics of one task, for masks that a threshold makes.

    channels_last  how images and convolutions lie in memory, which has no meaning but is faster on a CPU
    """

    def __init__(self, net: FrozenNet, recipe: Recipe, steps: int, channels_last: bool) -> None:
        self.net, self.recipe, self.done = net, recipe, 0
        self._rates = Rates(recipe, steps, net.device)
        self._channels_last = channels_last
        sizes = [shape.numel() for shape in net.shapes.values()]

        def zeros() -> Tensor:
            return torch.zeros(1, sum(sizes), device=net.device)

        kind = recipe.optimiser
        self._layer = LayerState(
            weight=zeros()[0],
            scores=zeros(),
            masked=zeros(),
            first=zeros() if kind == "adam" or recipe.momentum else None,
            second=zeros() if kind in ("rmsprop", "adam") else None,
        )
        self._gradient = zeros()
        spans = [slice(stop - size, stop) for size, stop in zip(sizes, accumulate(sizes))]
        self._spans = dict(zip(net.shapes, spans))
        for name, view in self._views(self._layer.weight).items():
            view.copy_(net.weights[name])
        self.masked = {name: view.requires_grad_() for name, view in self._views(self._layer.masked[0]).items()}
        for name, view in self._views(self._gradient[0]).items():
            self.masked[name].grad = view

    def start(self, scores: Mapping[str, Tensor]) -> None:
        """Begin from these scores, with fresh statistics."""
        self.statistics = {name: value.clone() for name, value in self.net.statistics.items()}
        for name, view in self._views(self._layer.scores[0]).items():
            view.copy_(scores[name])
        torch.mul(self._layer.weight, self._layer.scores >= 0, out=self._layer.masked)

    def outputs(self, x: Tensor) -> Tensor:
        """What the network gives in training, to be differentiated by `masked`."""
        if self._channels_last and x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        with self.net.training() as module, torch.enable_grad():
            return self.net.run(x, self.masked | self.statistics, module)

    def step(self, x: Tensor, y: Tensor) -> None:
        """One batch."""
        outputs = self.outputs(x)
        with torch.enable_grad():
            loss = cross_entropy(outputs, y)
        loss.backward()
        step_scores(self._layer, self._gradient, self.recipe, self.done, self._rates)
        self._gradient.zero_()
        self.done += 1
        self._last = outputs.detach(), y

    def figures(self) -> tuple[float, float]:
        """Loss and accuracy of the last batch, before its step."""
        return figures_of(*self._last)

    def scores(self) -> dict[str, Tensor]:
        """The scores as they stand, a copy."""
        views = self._views(self._layer.scores[0])
        return {name: view.clone(memory_format=torch.contiguous_format) for name, view in views.items()}

    def _views(self, flat: Tensor) -> dict[str, Tensor]:
        """Where each weight lies in a tensor of all of them."""
        return {name: self._shaped(flat[span], self.net.shapes[name]) for name, span in self._spans.items()}

    def _shaped(self, flat: Tensor, shape: torch.Size) -> Tensor:
        if self._channels_last and len(shape) == 4:
            outputs, inputs, height, width = shape
            return flat.view(outputs, height, width, inputs).permute(0, 3, 1, 2)
        return flat.view(shape)
