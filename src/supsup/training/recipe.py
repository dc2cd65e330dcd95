"""How a mask is trained: optimiser, length, learning rate, and how scores become a mask.

The defaults are the paper's for MNIST; `SPLIT_CIFAR100` and `SPLIT_IMAGENET` are its other two. A model without a
recipe chooses one for each task (`auto_recipe.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from supsup.data import Part, Task
from supsup.data.rotations import ROTATIONS
from supsup.kernels.rule import Rule
from supsup.masks.frozen import FrozenNet
from supsup.masks.scores import weights_kept
from supsup.runtime.errors import SupSupError
from supsup.runtime.progress import Advance
from supsup.runtime.validation import CheckedFields, real, whole
from supsup.training.executors import Job, Trained, executors_for, prepare_task, train_masks

Optimiser = Literal["rmsprop", "adam", "sgd"]
Schedule = Literal["constant", "cosine"]
Selection = Literal["threshold", "edge-popup"]
Transfer = Literal["none", "masks", "scores"]
Start = Literal["random", "kept"]
SelfLabels = Literal["rotations"]
_MOST = 10**9  # steps, epochs or images of a batch

FirstScores = Callable[[str, "Recipe"], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Recipe(CheckedFields):
    """How a mask is trained. All fields are plain values, so that a file keeps them as they are.

    Optimiser
      optimiser      "rmsprop", "adam" or "sgd"
      learning_rate  at its highest
      momentum       for "sgd" only
      weight_decay   of the scores
      first_decay    the share of the mean gradient that stays at each step: Adam's β₁
      second_decay   the share of the mean squared gradient that stays: Adam's β₂ (0.999 if None), RMSprop's α (0.99)
      epsilon        what Adam and RMSprop add to the root they divide by
      schedule       "constant", or "cosine" from `learning_rate` down to 0
      warm_up        the share of the steps in which the rate first rises from 0
    Length
      steps, epochs  the number of batches of `batch_size` images, or of epochs of ⌈images / batch_size⌉ batches
    Selection: how scores become a mask
      selection      "threshold": weights whose score is at least 0 are kept. "edge-popup": in each layer those whose
                     score is largest in size; s·(in + out) of them for `budget` s but at most half, or `density` of all
    Start: where a task's scores start
      score_bound    between −score_bound and score_bound; None: ±1/√fan_in of each layer, as in the paper
      start          "random": from the seed. "kept": all at score_bound, so that every weight is kept at first.
                     None: "kept" for a pretrained network whose masks a threshold makes, else "random"
      transfer       "none", "masks": from the mean of all earlier masks, "scores": from the mean of all earlier scores
                     (as the authors' scripts do; that mean is not saved with a model)
    Images
      self_labels    "rotations": learn every image in four rotations, each rotation of a class as a class, and average
                     answers over the four; takes four outputs per class, and an epoch is four times as long
      crops          how far random crops reach, as a share of what the data say, rounded up to pixels; None: all of it
    """

    optimiser: Optimiser = "rmsprop"
    learning_rate: Annotated[float, real(above=0)] = 1e-4
    steps: Annotated[int, whole(1, _MOST)] = 1000
    batch_size: Annotated[int, whole(1, _MOST)] = 128
    momentum: Annotated[float, real(0, below=1)] = 0.0
    weight_decay: Annotated[float, real(0)] = 0.0
    epochs: Annotated[int, whole(1, _MOST)] | None = None
    schedule: Schedule = "constant"
    warm_up: Annotated[float, real(0, below=1)] = 0.0
    selection: Selection = "threshold"
    budget: Annotated[float, real(above=0)] | None = None
    density: Annotated[float, real(above=0, most=1)] | None = None
    transfer: Transfer = "none"
    first_decay: Annotated[float, real(0, below=1)] = 0.9
    second_decay: Annotated[float, real(0, below=1)] | None = None
    epsilon: Annotated[float, real(above=0)] = 1e-8
    score_bound: Annotated[float, real(above=0)] | None = None
    start: Start | None = None
    self_labels: SelfLabels | None = None
    crops: Annotated[float, real(0, most=1)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum and self.optimiser != "sgd":
            raise SupSupError(f"momentum goes with optimiser 'sgd', not {self.optimiser!r}")
        given = [value for value in (self.budget, self.density) if value is not None]
        if self.selection == "threshold" and given:
            raise SupSupError("budget and density go with selection 'edge-popup'")
        if self.selection == "edge-popup" and len(given) != 1:
            raise SupSupError("selection 'edge-popup' needs either budget (the paper's s) or density")
        if self.selection == "edge-popup" and self.start == "kept":
            raise SupSupError("start 'kept' goes with selection 'threshold': edge-popup never keeps every weight")

    @property
    def differing(self) -> dict[str, str | int | float | None]:
        """The fields that differ from `Recipe()`, whose defaults are the paper's and never change."""
        usual = asdict(Recipe())
        return {name: value for name, value in asdict(self).items() if value != usual[name]}

    @property
    def stepwise(self) -> Recipe:
        """The recipe of `observe`, which does not know how many images a task will have."""
        return self

    def most_steps(self, task: Task, pretrained: bool) -> int:
        """The number of steps that a task is trained for at most."""
        return self.steps_for(len(task.train) * (1 if self.self_labels is None else ROTATIONS))

    def tasks_at_once(self, net: FrozenNet, task: Task, precision: torch.dtype | None) -> int:
        """How many tasks like this one fill the network's device."""
        job = self.job(task)
        return next(executors_for(net, [job], precision)).tasks_at_once(net, job, precision)

    def train(
        self,
        net: FrozenNet,
        tasks: Sequence[Task],
        precision: torch.dtype | None = None,
        advance: Advance = lambda _: None,
        first_scores: FirstScores | None = None,
    ) -> Generator[Trained, None, None]:
        """Tasks in order, in groups as they are finished.

        first_scores  where a task's scores start, for `transfer`; called after all earlier tasks have been yielded
        """
        for group in [tasks] if self.transfer == "none" else [[task] for task in tasks]:
            jobs, waiting = [self.job(task, first_scores) for task in group], group
            with closing(train_masks(net, jobs, precision, advance)) as finished:
                for trained in finished:
                    some, waiting = waiting[: len(trained.tasks)], waiting[len(trained.tasks) :]
                    yield trained._replace(tasks=some, rotated=self.self_labels is not None)

    def job(self, task: Task, first_scores: FirstScores | None = None) -> Job:
        """A task to train by this recipe."""
        first = None if self.transfer == "none" or first_scores is None else first_scores(task.name, self)
        return Job(prepare_task(task, self), self, first, keep_scores=self.transfer == "scores")

    def keeps_all_of(self, pretrained: bool) -> bool:
        """Whether a task starts with every weight kept, on a network with trained weights or not."""
        return self.start == "kept" or (self.start is None and pretrained and self.selection == "threshold")

    def steps_for(self, images: int) -> int:
        """The number of batches for a task of this many images."""
        return self.steps if self.epochs is None else self.epochs * math.ceil(images / self.batch_size)

    def seen(self, part: Part) -> float:
        """How often each image of a part is trained on, on average."""
        return self.steps_for(len(part)) * self.batch_size / len(part)

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
    def rule(self) -> Rule:
        """The optimiser's constants; `second_decay` is the usual one of the optimiser where none is given."""
        usual = 0.99 if self.optimiser == "rmsprop" else 0.999
        second = usual if self.second_decay is None else self.second_decay
        return Rule(self.optimiser, self.weight_decay, self.momentum, self.first_decay, second, self.epsilon)

    def build(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        """The torch optimiser over these tensors."""
        rate, (kind, decay, momentum, first, second, epsilon) = self.learning_rate, self.rule
        if kind == "rmsprop":
            return torch.optim.RMSprop(parameters, rate, second, epsilon, decay)
        if kind == "adam":
            return torch.optim.Adam(parameters, rate, (first, second), epsilon, decay)
        return torch.optim.SGD(parameters, rate, momentum, weight_decay=decay)


MNIST = Recipe()
SPLIT_CIFAR100 = Recipe(
    "adam", 1e-3, epochs=250, weight_decay=1e-4, schedule="cosine", selection="edge-popup", budget=8
)
SPLIT_IMAGENET = Recipe(
    "adam", 1e-3, batch_size=256, epochs=100, schedule="cosine", warm_up=0.05, selection="edge-popup", budget=8
)
