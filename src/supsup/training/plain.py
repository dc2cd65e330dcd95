"""Training on any module with autograd, one task at a time: the path that defines what is right.

A `Trainable` is a state of named tensors and the outputs it gives: masks are one kind, the rivals of the paper another.
One plain loop and one captured loop serve both. Layers may draw random numbers in training (dropout). They draw from
torch's generator, of which a process has one. Training such a network holds `RANDOM_LOCK` for each step, and restores
the generator's state from its own last step: so the numbers depend on the seed and the task's name alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from supsup.data import Part, Task
from supsup.masks import philox
from supsup.masks.bank import pack_columns
from supsup.masks.frozen import FrozenNet
from supsup.masks.scores import hard_mask, soft_mask
from supsup.runtime.locks import new_lock
from supsup.runtime.progress import Advance, report_step
from supsup.training.executors import Executor, Job, Trained, batch_positions, first_scores
from supsup.training.recipe import Recipe

RANDOM_LOCK = new_lock()  # held while layers may draw


class TaskRandom:
    """The generators as one task's training finds them from step to step."""

    def __init__(self, seed: int, task: str, device: torch.device) -> None:
        self._device = device
        with RANDOM_LOCK, seeded(seed, task, device):
            self._states = generator_states(device)  # after the last step

    def run(self, step: Callable[[], None]) -> None:
        """One step, drawing on from the last one."""
        with RANDOM_LOCK, _restored(self._device):
            torch.set_rng_state(self._states[0])
            for state in self._states[1:]:
                torch.cuda.set_rng_state(state, self._device)
            step()
            self._states = generator_states(self._device)


@contextmanager
def seeded(seed: int, task: str, device: torch.device) -> Iterator[None]:
    """While it lasts, layers draw from a seed and a task's name; hold `RANDOM_LOCK` around it."""
    start = int(philox.words(seed, [f"layers/{task}"], 1))
    with _restored(device):
        torch.default_generator.manual_seed(start)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(start)
        yield


def _restored(device: torch.device) -> AbstractContextManager[None]:
    """Restores the generators that layers on a device may draw from."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [], device_type="cuda")


def generator_states(device: torch.device) -> list[Tensor]:
    """Of the generators that layers on a device may draw from, the device's last."""
    host = [torch.get_rng_state()]
    return [*host, torch.cuda.get_rng_state(device)] if device.type == "cuda" else host


State = dict[str, Tensor]


class Trainable(Protocol):
    """What an executor for any module needs to know of what it trains."""

    device: torch.device
    seed: int
    draws: bool  # whether its layers may draw random numbers in training

    def trained_names(self, state: State) -> list[str]:
        """Which tensors of a state the optimiser moves."""

    def training(self) -> AbstractContextManager[nn.Module]:
        """A module for `run` whose layers behave as in training."""

    def run(self, state: State, x: Tensor, module: nn.Module | None = None) -> Tensor:
        """Outputs [images, s] of a state; `module` is that of `training`, or None to answer."""

    def penalty(self, state: State) -> Tensor | None:
        """What is added to the loss."""
        return None

    def before_update(self, state: State) -> None:
        """Called between the gradient and the optimiser's step."""
        return

    def after_update(self, state: State) -> None:
        """Called after the optimiser's step."""
        return


class TrainableMask(Trainable):
    """A mask: scores and the task's head, if it has one, which are trained; and statistics, which follow the batches.

    weights  the frozen ones, where their layout in memory differs from the network's
    """

    def __init__(self, net: FrozenNet, recipe: Recipe, weights: Mapping[str, Tensor] | None = None) -> None:
        self.net, self.recipe = net, recipe
        self._weights = net.weights if weights is None else weights
        self.device, self.seed, self.draws = net.device, net.seed, not net.is_known

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

    def scores(self, state: State) -> State:
        """The trained tensors of a state: the scores, and the task's head if it has one."""
        return {name: state[name] for name in self.trained_names(state)}

    def statistics(self, state: State) -> State:
        """The task's statistics in a state, and its head if it has one."""
        return {name: state[name] for name in self.net.statistics}

    def result(self, task: Task, state: State) -> Trained:
        """A trained state as executors give it back."""
        packed = pack_columns({name: bits[None] for name, bits in self.mask(state).items()})
        statistics, scores = (
            {name: value.detach()[None] for name, value in found.items()}
            for found in (self.statistics(state), self.scores(state))
        )
        return Trained([task], packed, statistics, scores)

    @torch.no_grad()
    def mask(self, state: State) -> State:
        """The mask of a state, as booleans."""
        return {name: hard_mask(state[name], self.recipe.kept(shape)) for name, shape in self.net.shapes.items()}


def loss_and_accuracy(outputs: Tensor, y: Tensor) -> tuple[float, float]:
    """Loss and accuracy of a batch."""
    return float(cross_entropy(outputs, y)), float((outputs.argmax(1) == y).float().mean())


class PlainTraining:
    """A state in training, and its optimiser.

    steps  how many there will be, for a learning rate that changes
    draws  the random numbers of layers that draw some; None: torch's generator as it is
    """

    draws: TaskRandom | None = None

    def __init__(self, trainable: Trainable, state: Mapping[str, Tensor], recipe: Recipe, steps: int) -> None:
        self.trainable, self.recipe, self.steps, self.done = trainable, recipe, steps, 0
        self.state: State = {name: value.clone() for name, value in state.items()}
        trained = [self.state[name].requires_grad_() for name in trainable.trained_names(self.state)]
        self.optimiser = recipe.build(trained)

    def step(self, x: Tensor, y: Tensor) -> None:
        """One batch."""
        if not self.trainable.draws:
            self._step(x, y)
        elif self.draws is not None:
            self.draws.run(partial(self._step, x, y))
        else:
            with RANDOM_LOCK:
                self._step(x, y)

    def _step(self, x: Tensor, y: Tensor) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = self.recipe.rate(self.done, self.steps)
        with self.trainable.training() as module, torch.enable_grad():
            outputs = self.trainable.run(self.state, x, module)
            loss = cross_entropy(outputs, y)
            penalty = self.trainable.penalty(self.state)
            total = loss if penalty is None else loss + penalty
        self.optimiser.zero_grad()
        total.backward()
        self.trainable.before_update(self.state)
        self.optimiser.step()
        self.trainable.after_update(self.state)
        self.done += 1
        self._last = outputs.detach(), y

    def figures(self) -> tuple[float, float]:
        """Loss and accuracy of the last batch, before its step."""
        return loss_and_accuracy(*self._last)

    def run(
        self, task: str, part: Part, offset: int = 0, after_step: Callable[[PlainTraining], None] | None = None
    ) -> None:
        """All batches of a task, whose name and size decide their order; `offset` is added to the labels."""
        order = batch_positions(self.trainable.seed, task, len(part), self.recipe.batch_size, self.steps)
        for x, y in part.on(self.trainable.device).training_batches(order, self.trainable.seed, task):
            self.step(x, y + offset if offset else y)
            if after_step is not None:
                after_step(self)


class MaskTraining(PlainTraining):
    """The same for a mask: scores, their optimiser and the task's statistics; the frozen weights are only read."""

    trainable: TrainableMask

    def __init__(
        self,
        net: FrozenNet,
        scores: Mapping[str, Tensor],
        recipe: Recipe,
        steps: int | None = None,
        statistics: Mapping[str, Tensor] | None = None,
    ) -> None:
        state = {**net.statistics, **scores, **(statistics or {})}
        super().__init__(TrainableMask(net, recipe), state, recipe, recipe.steps if steps is None else steps)

    @property
    def scores(self) -> State:
        """The scores as they stand."""
        return self.trainable.scores(self.state)

    @property
    def statistics(self) -> State:
        """The task's statistics as they stand, its head among them."""
        return {name: value.detach() for name, value in self.trainable.statistics(self.state).items()}

    def mask(self) -> State:
        """The mask as the scores stand now."""
        return self.trainable.mask(self.state)


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
    if training.trainable.draws:
        training.draws = TaskRandom(net.seed, task, net.device)
    training.run(task, part, after_step=after_step)
    return training


class Plain(Executor):
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
                report_step(advance, task, training.done, steps, training.figures)
                advance(1 / steps)

            training = train_mask(net, task.name, task.train, job.recipe, after_step, job.scores)
            yield training.trainable.result(task, training.state)
