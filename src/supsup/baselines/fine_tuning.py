"""An ordinary network trained on one task after the other: it forgets, which is what the paper's lower bound shows."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from supsup.data import Task
from supsup.devices import resolve
from supsup.errors import SupSupError
from supsup.learner import Prediction
from supsup.training import Recipe
from supsup.training.order import batch_positions


class FineTuning:
    """All weights are trained all the time, by the same recipe and on the same batches as a mask would be."""

    def __init__(
        self, net: nn.Module, seed: int = 0, *, recipe: Recipe | None = None, device: str | torch.device = "auto"
    ) -> None:
        self.device = resolve(device)
        self.seed = seed
        self.recipe = recipe or Recipe()
        self.net = copy.deepcopy(net)
        generator = torch.Generator().manual_seed(seed)
        for weight in self.net.parameters():
            if weight.ndim > 1:
                nn.init.kaiming_normal_(weight, nonlinearity="relu", generator=generator)
        self.net.to(self.device)
        self.tasks: list[str] = []

    def learn(self, data: Task, /) -> str:
        """Go on training on the next task."""
        optimiser = self.recipe.build(self.net.parameters())
        part = data.train.on(self.device)
        self.net.train()
        steps = batch_positions(self.seed, data.name, len(part), self.recipe.batch_size, self.recipe.steps)
        for positions in steps:
            x, y = part.batch(positions.to(self.device))
            loss = cross_entropy(self.net(x), y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        self.tasks.append(data.name)
        return data.name

    @torch.no_grad()
    def predict(self, x: Tensor, task: str | None = None) -> Prediction:
        """Labels from the one network there is; it knows no tasks, so the newest is named unless one is given."""
        if not self.tasks:
            raise SupSupError("no task has been learned yet; call learn first")
        self.net.eval()
        confidence, labels = self.net(x.to(self.device)).softmax(-1).max(-1)
        return Prediction(labels, [task or self.tasks[-1]] * len(labels), confidence)
