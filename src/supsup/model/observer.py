"""Learning when nobody says where a task begins (NNs): which mask the next batches go to, and training it."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Iterator
from itertools import count
from typing import Any

from torch import Tensor

from supsup.data import Part
from supsup.inference.gradient import Goal, alpha_gradient
from supsup.inference.new_task import choose_mask
from supsup.masks.bank import Bank
from supsup.masks.scores import initial_scores, scores_of
from supsup.model.state import ModelState
from supsup.runtime.interrupts import uninterrupted
from supsup.runtime.locks import new_lock
from supsup.training.executors import first_scores
from supsup.training.stepwise import StepTrainer, step_trainer

_HALF_TRAINED = 16  # masks whose scores and optimiser state are kept ready to go on


class Observer:
    """Trains the masks of a model from batches of unknown tasks: one mask in training, others suspended.

    lock  held while any of this changes; a thread that changes the model takes it after `state.changing`
    """

    def __init__(self, state: ModelState) -> None:
        self.state = state
        self.name: str | None = None  # the mask in training, None also while it is changed for another
        self.half_trained: OrderedDict[str, Any] = OrderedDict()  # suspended, last used last
        self.batches = 0
        self.lock = new_lock()
        self._trainer: StepTrainer | None = None
        self.changed = False  # the mask in training has changed since it was written to the bank
        self._over_budget = False  # at the last decision a mask was needed that the budget does not allow

    @property
    def trainer(self) -> StepTrainer:
        if self._trainer is None:
            self._trainer = step_trainer(self.state.net, self.state.settings.stepwise)
        return self._trainer

    def step(self, images: Tensor, labels: Tensor) -> str | None:
        """Train on one batch; returns the name of the mask it went to, None if it was not learned."""
        with self.state.changing, self.lock:
            name = self.prepare(images, 1)
            if name is not None:
                self.trainer.step(images, labels)
                self._count_classes(name, int(labels.max()) + 1)
            return name

    def run(self, part: Part, positions: Tensor) -> Iterator[tuple[str | None, int]]:
        """The batches of a part at positions [n, b], from decision to decision: a mask, and how many went to it."""
        classes = (part.labels[positions].amax(1) + 1).tolist()  # in one go: each question makes a GPU wait
        while len(positions):
            with self.state.changing, self.lock:
                decided = self._until_decision()
                batches, positions = positions.tensor_split([decided])
                name = self.prepare(part.batch(batches[0])[0], len(batches))
                if name is not None:
                    self._count_classes(name, max(classes[:decided]))
                    self.trainer.run(part, batches)  # last: nothing here waits for it
            del classes[:decided]
            yield name, len(batches)

    def write_back(self) -> None:
        """Write the mask in training into the bank as it stands."""
        with self.lock:
            if self.changed and self.name is not None:
                self.state.replace(self.name, self.trainer.mask())
            self.changed = False

    def forget(self, task: str) -> None:
        """Keep nothing of a mask."""
        self.half_trained.pop(task, None)
        self._over_budget = False
        if self.name == task:
            self.name = None

    def _until_decision(self) -> int:
        """How many batches go to the same mask before the next decision."""
        every = self.state.settings.new_task_rule.every
        return every - self.batches % every

    def _count_classes(self, name: str, seen: int) -> None:
        task = self.state.tasks[name]
        task.classes = max(task.classes, seen)

    def prepare(self, images: Tensor, batches: int) -> str | None:
        """Take up the right mask for so many batches, of which these are the first images.

        None if they fit no mask, and the budget does not allow another.
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
        chosen, budget = self._known(images), self.state.settings.new_task_rule.budget
        self._over_budget = chosen is None and len(self.state.tasks) >= budget
        if chosen is not None and chosen == self.name:
            return
        self._suspend()
        if self._over_budget:
            warnings.warn(
                f"all {budget} masks of the budget are in use and these images fit none of them, so nothing is learned "
                "from them; make room with forget, or use Allocation(budget=…)",
                stacklevel=5,
            )
        elif chosen is None:
            self._open(images)
        else:
            self._take_up(chosen)

    def _known(self, images: Tensor) -> str | None:
        """The mask whose task these images seem to belong to, None for a new one."""
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
        """Put the mask in training aside; the trainer may be given another from here on."""
        if self.name is not None:
            state = self.trainer.suspend()
            with uninterrupted():
                self.half_trained[self.name] = state
                while len(self.half_trained) > _HALF_TRAINED:
                    self.half_trained.popitem(last=False)
        self.name = None

    def _take_up(self, name: str) -> None:
        """Go on with a known mask from where it was left; if that is no longer kept, from its bits and statistics."""
        kept = self.half_trained.get(name)
        if kept is not None:
            self.trainer.resume(kept)
        else:
            bank, index = self.state.bank, self.state.tasks.index(name)
            bound = self.state.settings.stepwise.score_bound
            self.trainer.start(scores_of(bank.mask(index), bound), bank.statistics(index))
        with uninterrupted():
            self.half_trained.pop(name, None)
            self.name = name

    def _open(self, images: Tensor) -> None:
        state = self.state
        name = next(name for name in map("observed-{}".format, count()) if name not in state.tasks)
        self.trainer.start(first_scores(state.net, name, state.settings.stepwise))
        packed = state.bank.pack(self.trainer.mask())[:, None]
        with uninterrupted():
            state.add({name: 0}, packed, {}, tuple(images.shape[1:]))
            self.name = name
