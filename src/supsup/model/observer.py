"""Learning without task boundaries (NNs): choose the mask for the next batches, and train it."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Iterator
from functools import cached_property
from itertools import count
from typing import Any

from torch import Tensor

from supsup.data import Part
from supsup.file.task_record import LearnedTask
from supsup.inference.gradient import Goal, alpha_gradient
from supsup.inference.new_task import choose_mask
from supsup.masks.bank import Bank
from supsup.masks.scores import initial_scores, scores_of
from supsup.model.state import ModelState
from supsup.runtime.interrupts import uninterrupted
from supsup.runtime.locks import new_lock
from supsup.training.executors import first_scores
from supsup.training.stepwise import StepTrainer, step_trainer

_HALF_TRAINED = 16  # suspended masks whose scores and optimiser state are kept


class Observer:
    """Trains the masks of a model on batches of unknown tasks: one mask is in training, others are suspended.

    lock  held while the observer changes; take it after `state.changing`
    """

    def __init__(self, state: ModelState) -> None:
        self.state = state
        self.name: str | None = None  # the mask in training; None while masks are switched, too
        self.half_trained: OrderedDict[str, Any] = OrderedDict()  # suspended masks, the last used last
        self.batches = 0
        self.lock = new_lock()
        self.changed = False  # the mask in training differs from the bank
        self._over_budget = False  # the last decision needed a mask beyond the budget

    @cached_property
    def trainer(self) -> StepTrainer:
        return step_trainer(self.state.net, self.state.settings.recipe.stepwise)

    def step(self, images: Tensor, labels: Tensor) -> str | None:
        """Train on one batch; returns the name of the mask, None if nothing was learned."""
        with self.state.changing, self.lock:
            name = self.prepare(images, 1)
            if name is not None:
                self.trainer.step(images, labels)
                self._count_classes(name, int(labels.max()) + 1)
            return name

    def run(self, part: Part, positions: Tensor) -> Iterator[tuple[str | None, int]]:
        """Train on the batches of a part at positions [n, b]; yields a mask and its number of batches, by decision."""
        classes = (part.labels[positions].amax(1) + 1).tolist()  # one transfer: each would make the GPU wait
        while len(positions):
            with self.state.changing, self.lock:
                every = self.state.settings.new_task_rule.every
                decided = every - self.batches % every  # the number of batches until the next decision
                batches, positions = positions.tensor_split([decided])
                name = self.prepare(part.batch(batches[0])[0], len(batches))
                if name is not None:
                    self._count_classes(name, max(classes[:decided]))
                    self.trainer.run(part, batches)  # last: nothing after it waits for the GPU
            del classes[:decided]
            yield name, len(batches)

    def write_back(self) -> None:
        """Write the mask in training to the bank."""
        with self.lock:
            if self.changed and self.name is not None:
                self.state.replace(self.name, self.trainer.mask())
            self.changed = False

    def forget(self, task: str) -> None:
        """Drop everything of a mask."""
        self.half_trained.pop(task, None)
        self._over_budget = False
        if self.name == task:
            self.name = None

    def _count_classes(self, name: str, seen: int) -> None:
        task = self.state.tasks[name]
        task.classes = max(task.classes, seen)

    def prepare(self, images: Tensor, batches: int) -> str | None:
        """Choose the mask for the next batches, given the images of the first.

        None if they fit no mask and the budget allows no new one.
        """
        due = self.batches % self.state.settings.new_task_rule.every == 0
        if due or (self.name is None and not self._over_budget):
            self.write_back()
            self.state.commit()
            self._decide(images)
        self.batches += batches
        self.changed = self.name is not None
        return self.name

    def _decide(self, images: Tensor) -> None:
        chosen, budget = self._find_mask(images), self.state.settings.new_task_rule.budget
        self._over_budget = chosen is None and len(self.state.tasks) >= budget
        if chosen is not None and chosen == self.name:
            return
        self._suspend()
        if self._over_budget:
            warnings.warn(
                f"all {budget} masks of the budget are in use and these images fit none of them, so nothing is learned "
                "from them; make room with forget, or use NewTaskRule(budget=…)",
                stacklevel=5,
            )
        elif chosen is None:
            self._open(images)
        else:
            self._resume(chosen)

    def _find_mask(self, images: Tensor) -> str | None:
        """The mask that fits these images, None for a new one."""
        net, tasks = self.state.net, self.state.tasks
        layers = list(net.weights)

        def gradient(bank: Bank) -> Tensor:
            return alpha_gradient(net, bank, images[None], None, Goal("H", 0), layers)[0]

        def stand_in(number: int) -> dict[str, Tensor]:
            scores = initial_scores(net.seed, f"stand-in-{number}", net.shapes, net.device)
            return {name: value >= 0 for name, value in scores.items()}

        present = None if self.name is None else tasks.index(self.name)
        chosen = choose_mask(self.state.bank, gradient, stand_in, self.state.settings.new_task_rule, present)
        return None if chosen is None else tasks.at(chosen).name

    def _suspend(self) -> None:
        """Suspend the mask in training, so that the trainer can take another."""
        if self.name is not None:
            state = self.trainer.suspend()
            with uninterrupted():
                self.half_trained[self.name] = state
                while len(self.half_trained) > _HALF_TRAINED:
                    self.half_trained.popitem(last=False)
        self.name = None

    def _resume(self, name: str) -> None:
        """Continue a mask from its suspended state or, if that was dropped, from its bits and statistics."""
        kept = self.half_trained.get(name)
        if kept is not None:
            self.trainer.resume(kept)
        else:
            bank, index = self.state.bank, self.state.tasks.index(name)
            bound = self.state.settings.recipe.stepwise.score_bound
            self.trainer.start(scores_of(bank.mask(index), bound), bank.statistics(index))
        with uninterrupted():
            self.half_trained.pop(name, None)
            self.name = name

    def _open(self, images: Tensor) -> None:
        state = self.state
        name = next(name for name in map("observed-{}".format, count()) if name not in state.tasks)
        self.trainer.start(first_scores(state.net, name, state.settings.recipe.stepwise))
        packed = state.bank.pack(self.trainer.mask())[:, None]
        with uninterrupted():
            state.add([LearnedTask(name, 0)], packed, {}, tuple(images.shape[1:]))
            self.name = name
