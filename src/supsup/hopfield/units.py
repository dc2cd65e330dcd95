"""Training masks on hidden units (HopSupSup): one task on many networks with different weights at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from supsup.data import Part
from supsup.masks.scores import soft_mask
from supsup.nets.hop_mlp import many_outputs
from supsup.runtime.validation import check_fields, real, whole
from supsup.training.executors import batch_positions

_MOST = 10**9  # epochs or images of a batch


@dataclass(frozen=True)
class UnitRecipe:
    """How a mask on units is trained: SGD on scores that start at 0. The defaults are the paper's."""

    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    epochs: int = 1
    batch_size: int = 128

    def __post_init__(self) -> None:
        check_fields(
            self,
            learning_rate=real(above=0),
            momentum=real(0, below=1),
            weight_decay=real(0),
            epochs=whole(1, _MOST),
            batch_size=whole(2, _MOST),
        )

    def steps(self, images: int) -> int:
        """How many batches the epochs make, end to end; one more epoch fills up the last batch."""
        return -(-self.epochs * images // self.batch_size)


def train_units(
    weights: Sequence[Tensor], seeds: Sequence[int], task: str, part: Part, first_output: int, recipe: UnitRecipe
) -> list[Tensor]:
    """A mask for one task on each of n networks: for each hidden layer booleans [n, width].

    weights       one [n, out, in] for each layer
    seeds         of the n networks; with the task's name they decide the order of the images
    first_output  the output that stands for the task's label 0
    """
    device = weights[0].device
    part = part.on(device)
    steps = recipe.steps(len(part))
    orders = [batch_positions(seed, task, len(part), recipe.batch_size, steps) for seed in seeds]
    positions = torch.stack([torch.stack(list(order)) for order in orders], dim=1).to(device)
    scores = [torch.zeros(len(seeds), 1, weight.shape[1], device=device, requires_grad=True) for weight in weights[:-1]]
    optimiser = torch.optim.SGD(
        scores, lr=recipe.learning_rate, momentum=recipe.momentum, weight_decay=recipe.weight_decay
    )
    for chosen in positions:
        images, labels = part.batch(chosen.flatten())
        x = images.flatten(1).view(len(seeds), 1, recipe.batch_size, -1)
        outputs = many_outputs(weights, x, [soft_mask(score, None) for score in scores])
        # The sum of the networks' means: the gradient of one does not depend on how many there are.
        loss = cross_entropy(outputs.flatten(0, 2), labels + first_output, reduction="sum") / recipe.batch_size
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return [score.detach()[:, 0] >= 0 for score in scores]
