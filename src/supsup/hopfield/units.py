"""Masks on hidden units (HopSupSup), of many networks at once: training one for a task, and recovering it.

Recovery goes from images of an unknown task to the mask that was stored for it, with Ψ and μ alone. It is gradient
descent on a string z per hidden layer: at first on the entropy of the outputs, which leads towards the right mask, in
the end on the Hopfield energy, which leads to a stored one. Of several results, the one whose mask leaves the lowest
entropy on the images is taken; no labels are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from supsup.data import Part
from supsup.hopfield.memory import energy, settle, to_bipolar
from supsup.inference.objectives import entropy
from supsup.masks import philox
from supsup.masks.scores import soft_mask
from supsup.nets.fully_connected import many_outputs
from supsup.runtime.validation import CheckedFields, real, whole
from supsup.training.executors import batch_positions

_MOST = 10**9  # epochs or images of a batch
Procedure = Literal["paper", "best-of"]
_MOST_STARTS, _MOST_STEPS = 256, 100_000  # a file may ask for any number
_JUDGED = 4  # batches of images used to compare combinations


@dataclass(frozen=True)
class UnitRecipe(CheckedFields):
    """How a mask on units is trained: SGD on scores that start at 0. The defaults are the paper's."""

    learning_rate: Annotated[float, real(above=0)] = 0.1
    momentum: Annotated[float, real(0, below=1)] = 0.9
    weight_decay: Annotated[float, real(0)] = 1e-4
    epochs: Annotated[int, whole(1, _MOST)] = 1
    batch_size: Annotated[int, whole(2, _MOST)] = 128

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


@dataclass(frozen=True)
class Recovery(CheckedFields):
    """How a mask is recovered. All defaults but `procedure`, `starts` and `least_steps` are the paper's.

    procedure      "paper": one descent from μ. "best-of": `starts` descents, from μ and from strings around it; each
                   end settles into a minimum of the energy, and of all combinations of ends, one per layer, the one
                   with the lowest entropy is taken
    energy_weight  γ: the weight of the energy in the last step
    batch_size     images per step; the steps make one pass over the images
    least_steps    make several passes if one has fewer steps than this
    """

    procedure: Procedure = "best-of"
    starts: Annotated[int, whole(1, _MOST_STARTS)] = 8
    learning_rate: Annotated[float, real(above=0)] = 500.0
    momentum: Annotated[float, real(0, below=1)] = 0.9
    weight_decay: Annotated[float, real(0)] = 1e-4
    energy_weight: Annotated[float, real()] = 1.5e-3
    batch_size: Annotated[int, whole(2)] = 64
    least_steps: Annotated[int, whole(1, _MOST_STEPS)] = 30


@dataclass(frozen=True)
class Recovered:
    """The masks that n networks recovered from the same images.

    units    booleans [n, width] for each hidden layer
    entropy  [n], mean over all images with that mask, in nats
    energy   [n], summed over the layers
    start    [n], the start whose end has the lowest entropy (0 is μ)
    history  if asked for, the units after every step of the descent from that start: booleans [steps, n, all units]
    """

    units: list[Tensor]
    entropy: Tensor
    energy: Tensor
    start: Tensor
    history: Tensor | None = field(default=None, repr=False)


def recover(
    weights: Sequence[Tensor], psi: Sequence[Tensor], mean: Sequence[Tensor], x: Tensor, how: Recovery, history: bool
) -> Recovered:
    """The mask of the task that images x [m, inputs] come from, for each of n networks.

    For each layer weights [n, out, in]; for each hidden layer Ψ [n, d, d] and μ [n, d].
    """
    starts = start_strings(mean, 1 if how.procedure == "paper" else how.starts)
    ends, path = _descend(weights, psi, x, starts, how, history)
    if how.procedure == "best-of":
        ends = [settle(matrix, z) for matrix, z in zip(psi, ends)]
    levels = mean_entropy(weights, x, ends, how.batch_size)
    network = torch.arange(len(levels), device=levels.device)
    start = levels.argmin(1)
    chosen = [z[network, start] for z in ends]
    if how.procedure == "best-of":
        chosen = recombined(weights, x, ends, how.batch_size)
    level = mean_entropy(weights, x, [z[:, None] for z in chosen], how.batch_size)[:, 0]
    energies = torch.stack([energy(matrix, z[:, None])[:, 0] for matrix, z in zip(psi, chosen)]).sum(0)
    return Recovered(
        units=[z > 0 for z in chosen],
        entropy=level,
        energy=energies,
        start=start,
        history=path[:, network, start] if path is not None else None,
    )


def recombined(weights: Sequence[Tensor], x: Tensor, ends: Sequence[Tensor], batch_size: int) -> list[Tensor]:
    """Of the ends [n, k, d] of all layers, the combination with the lowest entropy: [n, d] for each layer.

    A descent often ends in one task's mask in one layer and in another task's in the next. A few batches decide.
    """
    k = ends[0].shape[1]
    images = x[torch.linspace(0, len(x) - 1, min(len(x), _JUDGED * batch_size), device=x.device).long()]
    choices = torch.cartesian_prod(*[torch.arange(k, device=x.device)] * len(ends)).view(-1, len(ends))
    levels = [
        mean_entropy(weights, images, [z[:, part[:, layer]] for layer, z in enumerate(ends)], batch_size)
        for part in choices.split(k)
    ]
    best = choices[torch.cat(levels, dim=1).argmin(1)]
    network = torch.arange(len(best), device=x.device)
    return [z[network, best[:, layer]] for layer, z in enumerate(ends)]


def start_strings(mean: Sequence[Tensor], starts: int) -> list[Tensor]:
    """Where descents begin, [n, starts, d] for each layer: at μ and at fixed random strings around it."""
    strings = []
    for layer, mu in enumerate(mean):
        labels = [f"recovery/{layer}/{start}" for start in range(1, starts)]
        noise = philox.uniform(0, labels, mu.shape[-1], 1.0, mu.device) if labels else mu.new_empty(0, mu.shape[-1])
        strings.append(torch.cat([mu[:, None], mu[:, None] + noise], dim=1))
    return strings


@torch.no_grad()
def mean_entropy(weights: Sequence[Tensor], x: Tensor, z: Sequence[Tensor], batch_size: int) -> Tensor:
    """The mean entropy of the outputs for images x [m, inputs] with masks of ±1 [n, k, d], in nats: [n, k]."""
    units = [(string + 1) / 2 for string in z]
    pieces = x.tensor_split(-(-len(x) // batch_size))
    totals = [entropy(many_outputs(weights, piece[None, None], units), 0).sum(-1) for piece in pieces]
    return torch.stack(totals).sum(0) / len(x)


def _descend(
    weights: Sequence[Tensor], psi: Sequence[Tensor], x: Tensor, starts: Sequence[Tensor], how: Recovery, history: bool
) -> tuple[list[Tensor], Tensor | None]:
    """The paper's descent from each start: its end as ±1, and the units after each step if asked for."""
    steps, size = max(how.least_steps, -(-len(x) // how.batch_size)), min(how.batch_size, len(x))
    strings = [start.clone().requires_grad_() for start in starts]
    optimiser = torch.optim.SGD(strings, lr=how.learning_rate, momentum=how.momentum, weight_decay=how.weight_decay)
    path = []
    for step in range(1, steps + 1):
        images = x[(torch.arange(size, device=x.device) + (step - 1) * size) % len(x)]
        bits = [soft_mask(string, None) for string in strings]
        z = [bit + (bit.detach() - 1) for bit in bits]  # ±1; the gradient of a bit is that of z
        outputs = many_outputs(weights, images[None, None], [(string + 1) / 2 for string in z])
        entropies = entropy(outputs, 0).mean(-1)
        energies = torch.stack([energy(matrix, string) for matrix, string in zip(psi, z)]).sum(0)
        late = step / steps
        loss = (how.energy_weight * late * energies + (1 - late) * entropies).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if history:
            path.append(torch.cat([string.detach() >= 0 for string in strings], dim=-1))
    return [to_bipolar(string.detach()) for string in strings], torch.stack(path) if history else None
