"""How tasks of baselines are trained: stacked and in step, captured on a GPU, or one by one with autograd.

The first way that can train the tasks is taken. Several seeds of one method, or several independent tasks of one
baseline, are stacked: the state of each becomes one row of tensors [n, …]. Losses add up and optimisers work
elementwise, so rows never influence each other. Fully connected networks can be stacked on any device, residual ones
on a GPU, by the kernels that train masks. On a GPU batches are gathered on the device and steps are captured.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from supsup.data import Part, Task
from supsup.kernels import available
from supsup.nets.resnet import ResNet
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import listed
from supsup.training.executors import CannotTrain, Feed, count_fitting, free_memory, grouped, same_images
from supsup.training.fast.batched import gather
from supsup.training.fast.captured import (
    CapturedTraining,
    ScheduledOptimiser,
    run_captured,
    step_launches,
    warned,
)
from supsup.training.plain import PlainTraining, State
from supsup.training.recipe import Recipe

if available.TRITON:
    from supsup_paper.residual.executor import TOGETHER, addressable, bytes_of_training, feeds
    from supsup_paper.residual.passes import Passes, ResidualFunction

if TYPE_CHECKING:
    from supsup_paper.baselines.baseline import Baseline

_CHAINS = 512  # states of a fully connected network at once at most
_KERNELS = {"cuda": torch.bfloat16}  # devices whose kernels residual networks go through, and the activations there


class StackedFullyConnected:
    """A fully connected network, as the baseline runs it side by side."""

    mapped, at_once = True, 50

    def __init__(self, baseline: Baseline, part: Part, count: int, batch_size: int) -> None:
        self._baseline = baseline
        self._x = torch.zeros(count, batch_size, math.prod(part.shape), device=baseline.device)
        self.y = torch.zeros(count, batch_size, dtype=torch.int32, device=baseline.device)
        self.statistics: State = {}

    def load(self, feed: Feed) -> None:
        """Take the batch of the feed's present step."""
        gather(feed, self._x, self.y)

    def outputs(self, state: State) -> Tensor:
        """Outputs [n, b, s] of states [n, …] for that batch; what all of them share is not stacked."""
        return self._baseline.run_side_by_side(state, self._x)


class StackedResidual:
    """A residual network with the weights that states stand for, through the kernels that train masks."""

    mapped, at_once = False, 10

    def __init__(self, baseline: Baseline, part: Part, count: int, batch_size: int) -> None:
        assert isinstance(baseline.net, ResNet)
        self._baseline, (channels, height, width) = baseline, part.shape
        precision = _KERNELS[baseline.device.type]
        self._passes = Passes(baseline.net, (channels, height, width), count, batch_size, precision, baseline.device)
        self._run = ResidualFunction(self._passes)
        self.y, self.statistics = self._passes.y, self._passes.statistics

    def load(self, feed: Feed) -> None:
        """Take the batch of the feed's present step."""
        self._passes.gather(feed, feed.step)

    def outputs(self, state: State) -> Tensor:
        """Outputs [n, b, s] of states [n, …] for that batch; what all of them share is not stacked."""
        return self._run(self._baseline.effective(state))


def known(baseline: Baseline) -> bool:
    """Whether states of a baseline can be run at once, given the right images."""
    return baseline.stackable or (baseline.residual and baseline.device.type in _KERNELS and available.TRITON)


def stacked_network(baseline: Baseline, part: Part) -> type[StackedFullyConnected] | type[StackedResidual] | None:
    """What runs states of a baseline at once on these images, in its next task; None where nothing does."""
    if baseline.stackable:
        return StackedFullyConnected if part.in_memory and part.augmentation is None else None
    takes = known(baseline) and feeds(part) and addressable(baseline.net, part, baseline.recipe_of_next())
    return StackedResidual if takes else None


def most_at_once(baseline: Baseline, part: Part) -> int:
    """How many states of a baseline can be trained on such images at once, as far as the device has memory for them."""
    network = stacked_network(baseline, part)
    if network is None:
        return 1
    if network is StackedFullyConnected:
        return _CHAINS
    if baseline.device.type != "cuda":
        return TOGETHER
    return count_fitting(
        bytes_of_training(baseline.net, part, baseline.recipe_of_next()), free_memory(baseline.device), TOGETHER
    )


if TYPE_CHECKING:
    from supsup_paper.baselines.baseline import Baseline


class Stack:
    """n states of a baseline, trained together.

    common  names of tensors that all rows share: they are not stacked, and not trained
    """

    def __init__(
        self, baseline: Baseline, states: Sequence[State], recipe: Recipe, part: Part, common: Collection[str] = ()
    ) -> None:
        self.baseline, self.recipe, self.part = baseline, recipe, part
        first, device, count = not baseline.own, baseline.device, len(states)
        kind = stacked_network(baseline, part)
        assert kind is not None
        self.network = kind(baseline, part, count, recipe.batch_size)

        def placed(name: str, value: Tensor) -> Tensor:
            if name in common:
                return value.clone()
            statistic = self.network.statistics.get(name)
            return torch.zeros(count, *value.shape, device=device) if statistic is None else statistic

        self.state: State = {name: placed(name, value) for name, value in states[0].items()}
        self._stacked = [name for name in self.state if name not in common]
        self._trained = [name for name in self._stacked if baseline.trains(name, first)]
        self.steps = recipe.steps_for(len(part))
        self.pace = ScheduledOptimiser(
            recipe, [self.state[name].requires_grad_() for name in self._trained], self.steps
        )
        self.feed = Feed.empty(part, count, self.steps * recipe.batch_size, mapped=self.network.mapped)
        self.launch, self.launches = step_launches(self._step, self.steps, device, self.network.at_once)

    def fits(self, states: Sequence[State], recipe: Recipe, part: Part) -> bool:
        """Whether these states can be trained here."""
        names = [name for name in states[0] if self.baseline.trains(name, not self.baseline.own)]
        same = (len(states), recipe, names) == (len(self.network.y), self.recipe, self._trained)
        return same and same_images(part, self.part) and recipe.steps_for(len(part)) == self.steps

    def _step(self) -> None:
        self.network.load(self.feed)
        outputs, y = self.network.outputs(self.state), self.network.y
        loss = cross_entropy(outputs.flatten(0, 1), y.flatten().long(), reduction="sum") / y.shape[1]
        penalty = self.baseline.penalty(self.state)
        self.pace.optimiser.zero_grad()
        (loss if penalty is None else loss + penalty).backward()
        self.baseline.before_update(self.state)
        self.pace.step()
        self.baseline.after_update(self.state)
        self.feed.step += 1

    @torch.no_grad()
    def start(
        self, states: Sequence[State], tasks: Sequence[Task], seeds: Sequence[int], offsets: Sequence[int]
    ) -> None:
        """Begin from these states and with the tasks' first batches."""
        for row, (state, task) in enumerate(zip(states, tasks)):
            for name in self._stacked:
                self.state[name][row] = state[name]
            self.feed.fill([task], seeds[row], self.recipe.batch_size, [row], offsets[row])
        self.pace.restart()

    def run(self) -> None:
        """Go through all batches."""
        with torch.enable_grad():
            for _ in range(self.launches):
                self.launch()

    def row(self, index: int) -> State:
        """One state as it stands."""
        return {
            name: self.state[name].detach()[index].clone() if name in self._stacked else value.detach()
            for name, value in self.state.items()
        }


def learn_side_by_side(baselines: Sequence[Baseline], tasks: Sequence[Task]) -> None:
    """Each of several baselines, alike but for their seeds, learns its next task; the tasks share their images."""
    baselines, tasks = listed(baselines, "baselines", "baselines"), listed(tasks, "tasks", "tasks")
    if (
        not baselines
        or len(baselines) != len(tasks)
        or not all(hasattr(baseline, "stackable") for baseline in baselines)
    ):
        raise SupSupError(
            f"{len(baselines)} baselines and {len(tasks)} tasks were given; give baselines, and a task for each"
        )
    leader = baselines[0]
    if not known(leader):
        raise SupSupError(
            "baselines learn side by side on fully connected networks (nets.FullyConnected) and, on a GPU, the bounds, "
            "heads and BatchE on residual ones (nets.ResNet) only; call learn for each"
        )
    for baseline, task in zip(baselines, tasks):
        baseline.check(task)
    part = _shared_part(leader, tasks)
    states = [baseline.begin(task) for baseline, task in zip(baselines, tasks)]
    stack, recipe = leader.stack, leader.recipe_of_next()
    if stack is None or not stack.fits(states, recipe, part):  # capturing takes longer than a task
        stack = leader.stack = Stack(leader, states, recipe, part)
    offsets = [baseline.label_offset(task) for baseline, task in zip(baselines, tasks)]
    stack.start(states, tasks, [baseline.seed for baseline in baselines], offsets)
    stack.run()
    for row, (baseline, task) in enumerate(zip(baselines, tasks)):
        baseline.keep(task, stack.row(row))


def learn_stacked(baseline: Baseline, tasks: Sequence[Task]) -> None:
    """One baseline learns tasks that do not depend on each other, all at once."""
    stack = started(baseline, tasks)
    stack.run()
    for row, task in enumerate(tasks):
        baseline.keep(task, stack.row(row))


def started(baseline: Baseline, tasks: Sequence[Task]) -> Stack:
    """Such tasks before their first step; what they share is not stacked."""
    states = [baseline.begin(task) for task in tasks]
    frozen = [
        name
        for name in baseline.shared
        if not baseline.trains(name, not baseline.own) and name not in baseline.statistics
    ]
    stack = Stack(baseline, states, baseline.recipe_of_next(), _shared_part(baseline, tasks), common=frozen)
    stack.start(states, tasks, [baseline.seed] * len(tasks), [baseline.label_offset(task) for task in tasks])
    return stack


def _shared_part(baseline: Baseline, tasks: Sequence[Task]) -> Part:
    if not all(go_together(tasks[0], task) for task in tasks):
        raise SupSupError("tasks trained side by side must be made from the same images and be equally large")
    part = tasks[0].train.on(baseline.device)
    if stacked_network(baseline, part) is None:
        raise SupSupError(
            "tasks trained side by side must have their images in memory and, on fully connected networks, not "
            "augmented"
        )
    return part


def go_together(one: Task, other: Task) -> bool:
    """Whether two tasks share images and length, so that they can go in step."""
    return same_images(one.train, other.train) and len(one.train) == len(other.train)


def stacks(baseline: Baseline, task: Task) -> bool:
    """Whether a task can be trained side by side with others."""
    return stacked_network(baseline, task.train) is not None


if TYPE_CHECKING:
    from supsup_paper.baselines.baseline import Baseline

_STREAMS = 10  # tasks at once on a GPU, where none are stacked


def learn_one(baseline: Baseline, task: Task) -> None:
    """The next task."""
    if stacks(baseline, task):
        learn_side_by_side([baseline], [task])
    elif _captured(baseline, task):
        learn_captured(baseline, [task])
    else:
        learn_plain(baseline, task)


def learn_independent(baseline: Baseline, tasks: Sequence[Task]) -> Iterator[int]:
    """Tasks that do not depend on each other; yields how many have just been learned."""
    if all(stacks(baseline, task) for task in tasks):
        for group in grouped(tasks, go_together, lambda first: most_at_once(baseline, first.train)):
            learn_stacked(baseline, group)
            yield len(group)
        return
    captured = all(_captured(baseline, task) for task in tasks)
    size = _STREAMS if captured else 1
    for start in range(0, len(tasks), size):
        some = tasks[start : start + size]
        if captured:
            learn_captured(baseline, some)
        else:
            learn_one(baseline, some[0])
        yield len(some)


def learn_plain(baseline: Baseline, task: Task) -> None:
    """One task on any module with autograd: what defines the meaning."""
    baseline.check(task)
    recipe = baseline.recipe_of_next()
    training = PlainTraining(baseline, baseline.begin(task), recipe, recipe.steps_for(len(task.train)))
    training.run(task.name, task.train, baseline.label_offset(task))
    baseline.keep(task, {name: value.detach() for name, value in training.state.items()})


def learn_captured(baseline: Baseline, tasks: Sequence[Task]) -> None:
    """Independent tasks, or one, each on a stream of its own; the host does not wait for them."""
    for task in tasks:
        baseline.check(task)
    recipe, lanes = baseline.recipe_of_next(), baseline.lanes
    for index, task in enumerate(tasks):
        state = baseline.begin(task)
        if index == len(lanes) or not lanes[index].fits(state, recipe, task.train):
            lanes[index : index + 1] = [_lane(baseline, task)]
        lanes[index].start(state, task, baseline.label_offset(task))
    run_captured(lanes[: len(tasks)])
    for lane, task in zip(lanes, tasks):
        baseline.keep(task, lane.ended())


def _captured(baseline: Baseline, task: Task) -> bool:
    """On a GPU, where the network can be captured: tried once."""
    if baseline.device.type != "cuda":
        return False
    if baseline.captures is None:
        baseline.captures = can_capture(_lane(baseline, task))
    return baseline.captures


def can_capture(training: CapturedTraining) -> bool:
    """Whether a training's step can be captured; a warning says why not."""
    with suppress(CannotTrain), warned():
        training.rehearse()
        return True
    return False


def _lane(baseline: Baseline, task: Task) -> CapturedTraining:
    return CapturedTraining(baseline, baseline.begin(task), baseline.recipe_of_next(), task.train)
