"""Training one mask on any module with autograd: the path that defines what is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from supsup import philox
from supsup.data import Part
from supsup.frozen import FrozenNet
from supsup.scores import hard_mask, initial_scores, soft_mask
from supsup.training.order import batch_positions
from supsup.training.recipe import Recipe


class MaskTrainer:
    """The scores of one mask, their optimiser and the task's statistics; the frozen weights are only read.

    steps  how many there will be, for a learning rate that changes
    """

    def __init__(self, net: FrozenNet, scores: Mapping[str, Tensor], recipe: Recipe, steps: int | None = None) -> None:
        self.net, self.recipe = net, recipe
        self.steps = recipe.steps if steps is None else steps
        self.done = 0
        self.scores = {name: value.clone().requires_grad_() for name, value in scores.items()}
        self.statistics = {name: value.clone() for name, value in net.statistics.items()}
        self.optimiser = recipe.build(self.scores.values())

    def step(self, x: Tensor, y: Tensor) -> None:
        """One batch."""
        for group in self.optimiser.param_groups:
            group["lr"] = self.recipe.rate(self.done, self.steps)
        masks = {name: soft_mask(value, self.recipe.kept(value.shape)) for name, value in self.scores.items()}
        with self.net.training():
            loss = cross_entropy(self.net.run(x, self.net.masked(masks | self.statistics)), y)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.done += 1

    @torch.no_grad()
    def mask(self) -> dict[str, Tensor]:
        """The mask as the scores stand now."""
        return {name: hard_mask(value, self.recipe.kept(value.shape)) for name, value in self.scores.items()}


def train_mask(
    net: FrozenNet,
    task: str,
    part: Part,
    recipe: Recipe,
    after_step: Callable[[], None] | None = None,
    scores: Mapping[str, Tensor] | None = None,
) -> MaskTrainer:
    """A trained mask: a function of the network's seed, the task's name and images, the recipe and first scores alone.

    scores  where they start (`initial_scores` by default)
    """
    steps = recipe.steps_for(len(part))
    start = initial_scores(net.seed, task, net.shapes, net.device) if scores is None else scores
    trainer = MaskTrainer(net, start, recipe, steps)
    order = batch_positions(net.seed, task, len(part), recipe.batch_size, steps)
    with _randomness(net.seed, task, net.device):
        for x, y in part.on(net.device).training_batches(order, net.seed, task):
            trainer.step(x, y)
            if after_step is not None:
                after_step()
    return trainer


@contextmanager
def _randomness(seed: int, task: str, device: torch.device) -> Iterator[None]:
    """Layers that draw numbers in training (dropout) draw them from the seed and the task's name alone."""
    start = int(philox.words(seed, [f"layers/{task}"], 1))
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(start)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(start)
        yield
