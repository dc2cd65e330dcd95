"""Training one mask on any module with autograd: the path that defines what is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor
from torch.nn.functional import cross_entropy

from supsup.data import Part
from supsup.frozen import FrozenNet
from supsup.scores import initial_scores, threshold
from supsup.training.order import batch_positions
from supsup.training.recipe import Recipe


class MaskTrainer:
    """The scores of one mask and their optimiser; the frozen weights are only read."""

    def __init__(self, net: FrozenNet, scores: Mapping[str, Tensor], recipe: Recipe) -> None:
        self.net = net
        self.scores = {name: value.clone().requires_grad_() for name, value in scores.items()}
        self.optimiser = recipe.build(self.scores.values())

    def step(self, x: Tensor, y: Tensor) -> None:
        """One batch."""
        masks = {name: threshold(value) for name, value in self.scores.items()}
        self.net.module.train()
        loss = cross_entropy(self.net.run(x, self.net.masked(masks)), y)
        self.net.module.eval()
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()

    def mask(self) -> dict[str, Tensor]:
        """The mask as the scores stand now."""
        return {name: value.detach() >= 0 for name, value in self.scores.items()}


def train_mask(
    net: FrozenNet, task: str, part: Part, recipe: Recipe, after_step: Callable[[], None] | None = None
) -> dict[str, Tensor]:
    """The mask of one task: a function of the network's seed, the task's name and images, and the recipe alone."""
    trainer = MaskTrainer(net, initial_scores(net.seed, task, net.shapes, net.device), recipe)
    part = part.on(net.device)
    for positions in batch_positions(net.seed, task, len(part), recipe.batch_size, recipe.steps):
        x, y = part.batch(positions.to(net.device))
        trainer.step(x, y)
        if after_step is not None:
            after_step()
    return trainer.mask()
