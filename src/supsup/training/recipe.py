"""How a mask is trained: optimiser, length, learning rate, and how scores become a mask.

The defaults are the paper's for MNIST; `SPLIT_CIFAR100` and `SPLIT_IMAGENET` are its other two. A model that is given
none chooses a recipe for each task: `training/auto_recipe.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from supsup.masks.scores import weights_kept
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import check_fields, choice, optional, real, whole

Optimiser = Literal["rmsprop", "adam", "sgd"]
Schedule = Literal["constant", "cosine"]
Selection = Literal["threshold", "edge-popup"]
Transfer = Literal["none", "masks", "scores"]
Start = Literal["random", "kept"]
SelfLabels = Literal["rotations"]
_MOST = 10**9  # steps, epochs or images of a batch


@dataclass(frozen=True)
class Recipe:
    """How a mask is trained.

    steps, epochs  so many batches of `batch_size` images, or so many epochs of ⌈images / batch_size⌉ batches
    momentum       for "sgd" only
    first_decay    the share of the mean gradient that stays at each step: Adam's β₁
    second_decay   the share of the mean squared gradient that stays: Adam's β₂ (0.999 if None), RMSprop's α (0.99)
    epsilon        what Adam and RMSprop add to the root they divide by
    score_bound    scores start between −score_bound and score_bound; None: ±1/√fan_in of each layer, as in the paper
    start          "random": there, from the seed. "kept": all at score_bound, so that every weight is kept at first.
                   None: "kept" for a pretrained network whose masks a threshold makes, else "random"
    self_labels    "rotations": every image is learned in four rotations, each rotation of a class as one of its own,
                   and answers are averaged over the four; it takes four outputs a class, and four times the epoch
    crops          how far random crops reach, as a share of what the data say, rounded up to pixels; None: all of it
    schedule       "constant", or "cosine" from `learning_rate` down to 0
    warm_up        the share of the steps in which the rate first rises from 0
    selection      "threshold": weights whose score is at least 0 are kept. "edge-popup": in each layer those whose
                   score is largest in size; s·(in + out) of them for `budget` s but at most half, or `density` of all
    transfer       where a task's scores start: "none" at random, "masks" from the mean of all earlier masks, "scores"
                   from the mean of all earlier scores (as the authors' scripts do; that mean is not saved with a model)
    """

    optimiser: Optimiser = "rmsprop"
    learning_rate: float = 1e-4
    steps: int = 1000
    batch_size: int = 128
    momentum: float = 0.0
    weight_decay: float = 0.0
    epochs: int | None = None
    schedule: Schedule = "constant"
    warm_up: float = 0.0
    selection: Selection = "threshold"
    budget: float | None = None
    density: float | None = None
    transfer: Transfer = "none"
    first_decay: float = 0.9
    second_decay: float | None = None
    epsilon: float = 1e-8
    score_bound: float | None = None
    start: Start | None = None
    self_labels: SelfLabels | None = None
    crops: float | None = None

    def __post_init__(self) -> None:
        check_fields(
            self,
            optimiser=choice(*get_args(Optimiser)),
            learning_rate=real(above=0),
            steps=whole(1, _MOST),
            batch_size=whole(1, _MOST),
            momentum=real(0, below=1),
            weight_decay=real(0),
            epochs=optional(whole(1, _MOST)),
            schedule=choice(*get_args(Schedule)),
            warm_up=real(0, below=1),
            selection=choice(*get_args(Selection)),
            budget=optional(real(above=0)),
            density=optional(real(above=0, most=1)),
            transfer=choice(*get_args(Transfer)),
            first_decay=real(0, below=1),
            second_decay=optional(real(0, below=1)),
            epsilon=real(above=0),
            score_bound=optional(real(above=0)),
            start=optional(choice(*get_args(Start))),
            self_labels=optional(choice(*get_args(SelfLabels))),
            crops=optional(real(0, most=1)),
        )
        if self.momentum and self.optimiser != "sgd":
            raise SupSupError(f"momentum goes with optimiser 'sgd', not {self.optimiser!r}")
        self._check_selection()

    def _check_selection(self) -> None:
        given = [value for value in (self.budget, self.density) if value is not None]
        if self.selection == "threshold" and given:
            raise SupSupError("budget and density go with selection 'edge-popup'")
        if self.selection == "edge-popup" and len(given) != 1:
            raise SupSupError("selection 'edge-popup' needs either budget (the paper's s) or density")
        if self.selection == "edge-popup" and self.start == "kept":
            raise SupSupError("start 'kept' goes with selection 'threshold': edge-popup never keeps every weight")

    @property
    def differing(self) -> dict[str, str | int | float | None]:
        """The fields that are not as in `Recipe()`, whose defaults are the paper's and stay."""
        usual = asdict(Recipe())
        return {name: value for name, value in asdict(self).items() if value != usual[name]}

    def keeps_all_of(self, pretrained: bool) -> bool:
        """Whether a task starts with every weight kept, on a network with trained weights or not."""
        return self.start == "kept" or (self.start is None and pretrained and self.selection == "threshold")

    def steps_for(self, images: int) -> int:
        """How many batches a task of so many images is trained for."""
        return self.steps if self.epochs is None else self.epochs * math.ceil(images / self.batch_size)

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of step number `step` (from 0) of `steps`."""
        rising = self.warm_up * steps
        if step < rising:
            return self.learning_rate * min(1.0, (step + 1) / rising)
        if self.schedule == "constant":
            return self.learning_rate
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - rising) / (steps - rising)))

    def kept(self, shape: torch.Size) -> int | None:
        """How many weights of a tensor a mask keeps; None where the scores decide."""
        return None if self.selection == "threshold" else weights_kept(shape, self.budget, self.density)

    @property
    def squares_decay(self) -> float:
        """`second_decay`, or what is usual for the optimiser."""
        usual = 0.99 if self.optimiser == "rmsprop" else 0.999
        return usual if self.second_decay is None else self.second_decay

    def build(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        """The torch optimiser over these tensors."""
        rate, decay = self.learning_rate, self.weight_decay
        if self.optimiser == "rmsprop":
            return torch.optim.RMSprop(
                parameters, lr=rate, alpha=self.squares_decay, eps=self.epsilon, weight_decay=decay
            )
        if self.optimiser == "adam":
            betas = (self.first_decay, self.squares_decay)
            return torch.optim.Adam(parameters, lr=rate, betas=betas, eps=self.epsilon, weight_decay=decay)
        return torch.optim.SGD(parameters, lr=rate, momentum=self.momentum, weight_decay=decay)


MNIST = Recipe()
SPLIT_CIFAR100 = Recipe(
    "adam", 1e-3, epochs=250, weight_decay=1e-4, schedule="cosine", selection="edge-popup", budget=8
)
SPLIT_IMAGENET = Recipe(
    "adam", 1e-3, batch_size=256, epochs=100, schedule="cosine", warm_up=0.05, selection="edge-popup", budget=8
)
