"""What is trained, as an executor for any module sees it: a state of named tensors and the outputs it gives.

Masks are one kind of trainee, the rivals another; one plain loop and one captured loop serve both.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor, nn

from supsup.masks.frozen import FrozenNet
from supsup.masks.scores import hard_mask, soft_mask
from supsup.training.recipe import Recipe

State = dict[str, Tensor]


class Trainee(Protocol):
    """What an executor needs to know of anything that is trained."""

    @property
    def device(self) -> torch.device: ...

    @property
    def seed(self) -> int: ...

    @property
    def draws(self) -> bool:
        """Whether its layers may draw random numbers in training."""

    def trained_names(self, state: State) -> list[str]:
        """Which tensors of a state the optimiser moves."""

    def training(self) -> AbstractContextManager[nn.Module]:
        """A module for `run` whose layers behave as in training."""

    def run(self, state: State, x: Tensor, module: nn.Module | None = None) -> Tensor:
        """Outputs [images, s] of a state; `module` is that of `training`, or None to answer."""

    def penalty(self, state: State) -> Tensor | None:
        """What is added to the loss."""

    def before_update(self, state: State) -> None:
        """Called between the gradient and the optimiser's step."""

    def after_update(self, state: State) -> None:
        """Called after the optimiser's step."""


class MaskTrainee:
    """A mask: scores and a head of the task's own, if any, which are trained, and statistics, which are seen.

    weights  the frozen ones, where they lie in memory in another way than the network's
    """

    def __init__(self, net: FrozenNet, recipe: Recipe, weights: Mapping[str, Tensor] | None = None) -> None:
        self.net, self.recipe = net, recipe
        self._weights = net.weights if weights is None else weights
        self.device, self.seed, self.draws = net.device, net.seed, not net.is_known

    def begin(self, scores: Mapping[str, Tensor], statistics: Mapping[str, Tensor] | None = None) -> State:
        """The state of a task before its first step, with fresh statistics, and a fresh head, if none are given."""
        return {**self.net.statistics, **scores, **(statistics or {})}

    def trained_names(self, state: State) -> list[str]:
        return [*self.net.weights, *self.net.head]

    def training(self) -> AbstractContextManager[nn.Module]:
        return self.net.training()

    def run(self, state: State, x: Tensor, module: nn.Module | None = None) -> Tensor:
        masked = {
            name: weight * soft_mask(state[name], self.recipe.kept(weight.shape))
            for name, weight in self._weights.items()
        }
        return self.net.run(x, masked | self.statistics(state), module)

    def penalty(self, state: State) -> Tensor | None:
        return None

    def before_update(self, state: State) -> None:
        pass

    def after_update(self, state: State) -> None:
        pass

    def scores(self, state: State) -> State:
        """What is trained in a state: the scores, and the head if the task has its own."""
        return {name: state[name] for name in self.trained_names(state)}

    def statistics(self, state: State) -> State:
        """What the task has of its own in a state beside its mask."""
        return {name: state[name] for name in self.net.statistics}

    @torch.no_grad()
    def mask(self, state: State) -> State:
        """The mask of a state, as booleans."""
        return {name: hard_mask(state[name], self.recipe.kept(shape)) for name, shape in self.net.shapes.items()}
