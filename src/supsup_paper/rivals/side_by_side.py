"""Rivals of the same kind trained in step: several seeds, or several independent tasks of one rival.

The state of each becomes one row of stacked tensors [n, …]; losses add up and optimisers work number by number, so no
row knows of another. On a GPU batches are gathered on the device and steps are captured.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from supsup.data import Part, Task
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import listed
from supsup.training.batches import Feed
from supsup.training.fast.loop import Loop, Pace
from supsup.training.recipe import Recipe
from supsup.training.trainee import State
from supsup_paper.rivals.networks import known, stacked_network

if TYPE_CHECKING:
    from supsup_paper.rivals.rival import Baseline


class Stack:
    """n states of a rival, trained together.

    common  names of tensors that all rows share: they are not stacked, and not trained
    """

    def __init__(
        self, rival: Baseline, states: Sequence[State], recipe: Recipe, part: Part, common: Collection[str] = ()
    ) -> None:
        self.rival, self.recipe, self.part = rival, recipe, part
        first, device, count = not rival.own, rival.device, len(states)
        kind = stacked_network(rival, part)
        assert kind is not None
        self.network = kind(rival, part, count, recipe.batch_size)

        def placed(name: str, value: Tensor) -> Tensor:
            if name in common:
                return value.clone()
            statistic = self.network.statistics.get(name)
            return torch.zeros(count, *value.shape, device=device) if statistic is None else statistic

        self.state: State = {name: placed(name, value) for name, value in states[0].items()}
        self._stacked = [name for name in self.state if name not in common]
        self._trained = [name for name in self._stacked if rival.trains(name, first)]
        steps = recipe.steps_for(len(part))
        self.pace = Pace(recipe, [self.state[name].requires_grad_() for name in self._trained], steps)
        self.feed = Feed.empty(part, count, steps * recipe.batch_size, mapped=self.network.mapped)
        self.loop = Loop(self._step, steps, device, self.network.at_once)

    def fits(self, states: Sequence[State], recipe: Recipe, part: Part) -> bool:
        """Whether these states can be trained here."""
        names = [name for name in states[0] if self.rival.trains(name, not self.rival.own)]
        same = (len(states), recipe, names) == (len(self.network.y), self.recipe, self._trained)
        return same and _alike(part, self.part) and recipe.steps_for(len(part)) == self.loop.steps

    def _step(self) -> None:
        self.network.load(self.feed)
        outputs, y = self.network.outputs(self.state), self.network.y
        loss = cross_entropy(outputs.flatten(0, 1), y.flatten().long(), reduction="sum") / y.shape[1]
        penalty = self.rival.penalty(self.state)
        self.pace.optimiser.zero_grad()
        (loss if penalty is None else loss + penalty).backward()
        self.rival.before_update(self.state)
        self.pace.step()
        self.rival.after_update(self.state)
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
            self.loop.run()

    def row(self, index: int) -> State:
        """One state as it stands."""
        return {
            name: self.state[name].detach()[index].clone() if name in self._stacked else value.detach()
            for name, value in self.state.items()
        }


def learn_side_by_side(rivals: Sequence[Baseline], tasks: Sequence[Task]) -> None:
    """Each of several rivals, alike but for their seeds, learns its next task; the tasks share their images."""
    rivals, tasks = listed(rivals, "rivals", "rivals"), listed(tasks, "tasks", "tasks")
    if not rivals or len(rivals) != len(tasks) or not all(hasattr(rival, "stackable") for rival in rivals):
        raise SupSupError(f"{len(rivals)} rivals and {len(tasks)} tasks were given; give rivals, and a task for each")
    leader = rivals[0]
    if not known(leader):
        raise SupSupError(
            "rivals learn side by side on fully connected networks (nets.FullyConnected) and, on a GPU, the bounds, "
            "heads and BatchE on residual ones (nets.ResNet) only; call learn for each"
        )
    for rival, task in zip(rivals, tasks):
        rival.check(task)
    part = _shared_part(leader, tasks)
    states = [rival.begin(task) for rival, task in zip(rivals, tasks)]
    stack, recipe = leader.stack, leader.recipe_of_next()
    if stack is None or not stack.fits(states, recipe, part):  # capturing takes longer than a task
        stack = leader.stack = Stack(leader, states, recipe, part)
    offsets = [rival.label_offset(task) for rival, task in zip(rivals, tasks)]
    stack.start(states, tasks, [rival.seed for rival in rivals], offsets)
    stack.run()
    for row, (rival, task) in enumerate(zip(rivals, tasks)):
        rival.keep(task, stack.row(row))


def learn_stacked(rival: Baseline, tasks: Sequence[Task]) -> None:
    """One rival learns tasks that do not depend on each other, all at once."""
    stack = started(rival, tasks)
    stack.run()
    for row, task in enumerate(tasks):
        rival.keep(task, stack.row(row))


def started(rival: Baseline, tasks: Sequence[Task]) -> Stack:
    """Such tasks before their first step; what they share is not stacked."""
    states = [rival.begin(task) for task in tasks]
    frozen = [name for name in rival.shared if not rival.trains(name, not rival.own) and name not in rival.statistics]
    stack = Stack(rival, states, rival.recipe_of_next(), _shared_part(rival, tasks), common=frozen)
    stack.start(states, tasks, [rival.seed] * len(tasks), [rival.label_offset(task) for task in tasks])
    return stack


def _shared_part(rival: Baseline, tasks: Sequence[Task]) -> Part:
    if not all(go_together(tasks[0], task) for task in tasks):
        raise SupSupError("tasks trained side by side must be made from the same images and be equally large")
    part = tasks[0].train.on(rival.device)
    if stacked_network(rival, part) is None:
        raise SupSupError(
            "tasks trained side by side must have their images in memory and, on fully connected networks, not "
            "augmented"
        )
    return part


def go_together(one: Task, other: Task) -> bool:
    """Whether two tasks share images and length, so that they can go in step."""
    return _alike(one.train, other.train) and len(one.train) == len(other.train)


def _alike(one: Part, other: Part) -> bool:
    """Whether parts share images and show them in the same way, but for their pixels."""
    if one.images is not other.images or one.augmentation != other.augmentation:
        return False
    pairs = ((one.gain, other.gain), (one.offset, other.offset))
    return all(a is b or torch.equal(a, b) for a, b in pairs)


def stacks(rival: Baseline, task: Task) -> bool:
    """Whether a task can be trained side by side with others."""
    return stacked_network(rival, task.train) is not None
