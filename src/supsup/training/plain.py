"""Training on any module with autograd, one task at a time: the path that defines what is right."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from supsup.data import Part
from supsup.masks.bank import pack_columns
from supsup.masks.frozen import FrozenNet
from supsup.runtime.progress import Advance, report
from supsup.training.batches import batch_positions
from supsup.training.draws import DRAWING, Draws
from supsup.training.jobs import Job, Trained, first_scores
from supsup.training.recipe import Recipe
from supsup.training.trainee import MaskTrainee, State, Trainee


def figures_of(outputs: Tensor, y: Tensor) -> tuple[float, float]:
    """Loss and accuracy of a batch."""
    return float(cross_entropy(outputs, y)), float((outputs.argmax(1) == y).float().mean())


class PlainTraining:
    """A state of a trainee and its optimiser.

    steps  how many there will be, for a learning rate that changes
    draws  where layers that draw random numbers have them from (None: from torch's generator as it is)
    """

    draws: Draws | None = None

    def __init__(self, trainee: Trainee, state: Mapping[str, Tensor], recipe: Recipe, steps: int) -> None:
        self.trainee, self.recipe, self.steps, self.done = trainee, recipe, steps, 0
        self.state: State = {name: value.clone() for name, value in state.items()}
        trained = [self.state[name].requires_grad_() for name in trainee.trained_names(self.state)]
        self.optimiser = recipe.build(trained)

    def step(self, x: Tensor, y: Tensor) -> None:
        """One batch."""
        if not self.trainee.draws:
            self._step(x, y)
        elif self.draws is not None:
            self.draws.run(partial(self._step, x, y))
        else:
            with DRAWING:
                self._step(x, y)

    def _step(self, x: Tensor, y: Tensor) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = self.recipe.rate(self.done, self.steps)
        with self.trainee.training() as module, torch.enable_grad():
            outputs = self.trainee.run(self.state, x, module)
            loss = cross_entropy(outputs, y)
            penalty = self.trainee.penalty(self.state)
            total = loss if penalty is None else loss + penalty
        self.optimiser.zero_grad()
        total.backward()
        self.trainee.before_update(self.state)
        self.optimiser.step()
        self.trainee.after_update(self.state)
        self.done += 1
        self._last = outputs.detach(), y

    def figures(self) -> tuple[float, float]:
        """Loss and accuracy of the last batch, before its step."""
        return figures_of(*self._last)

    def run(
        self, task: str, part: Part, offset: int = 0, after_step: Callable[[PlainTraining], None] | None = None
    ) -> None:
        """All batches of a task, whose name and size decide their order; `offset` is added to the labels."""
        order = batch_positions(self.trainee.seed, task, len(part), self.recipe.batch_size, self.steps)
        for x, y in part.on(self.trainee.device).training_batches(order, self.trainee.seed, task):
            self.step(x, y + offset if offset else y)
            if after_step is not None:
                after_step(self)


class MaskTraining(PlainTraining):
    """The same for a mask: its scores, their optimiser and the task's statistics; the frozen weights are only read."""

    trainee: MaskTrainee

    def __init__(
        self,
        net: FrozenNet,
        scores: Mapping[str, Tensor],
        recipe: Recipe,
        steps: int | None = None,
        statistics: Mapping[str, Tensor] | None = None,
    ) -> None:
        trainee = MaskTrainee(net, recipe)
        super().__init__(trainee, trainee.begin(scores, statistics), recipe, recipe.steps if steps is None else steps)

    @property
    def scores(self) -> State:
        """The scores as they stand."""
        return self.trainee.scores(self.state)

    @property
    def statistics(self) -> State:
        """The task's statistics as they stand, its head among them."""
        return {name: value.detach() for name, value in self.trainee.statistics(self.state).items()}

    def mask(self) -> State:
        """The mask as the scores stand now."""
        return self.trainee.mask(self.state)


def train_mask(
    net: FrozenNet,
    task: str,
    part: Part,
    recipe: Recipe,
    after_step: Callable[[PlainTraining], None] | None = None,
    scores: Mapping[str, Tensor] | None = None,
) -> MaskTraining:
    """A trained mask: a function of the network's seed, the task's name and images, the recipe and first scores alone.

    scores  where they start (`first_scores` by default)
    """
    if scores is None:
        scores = first_scores(net, task, recipe)
    training = MaskTraining(net, scores, recipe, recipe.steps_for(len(part)))
    training.draws = Draws(net.seed, task, net.device)
    training.run(task, part, after_step=after_step)
    return training


class Plain:
    """The executor that takes everything, in float32."""

    name = "plain"

    def takes(self, net: FrozenNet, jobs: Sequence[Job], precision: torch.dtype | None) -> bool:
        return precision in (None, torch.float32)

    def train(
        self, net: FrozenNet, jobs: Sequence[Job], precision: torch.dtype | None, advance: Advance
    ) -> Generator[Trained, None, None]:
        for job in jobs:
            task, steps = job.task, job.steps

            def after_step(training: PlainTraining, task: str = task.name, steps: int = steps) -> None:
                report(advance, task, training.done, steps, training.figures)
                advance(1 / steps)

            training = train_mask(net, task.name, task.train, job.recipe, after_step, job.scores)
            packed = pack_columns({name: bits[None] for name, bits in training.mask().items()})
            statistics, ended = (
                {name: value.detach()[None] for name, value in found.items()}
                for found in (training.statistics, training.scores)
            )
            yield Trained([task], packed, statistics, ended)
