"""Learning when nobody says where a task begins (NNs): which mask the next batches go to, and training it."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from itertools import count
from typing import TYPE_CHECKING, Any

from torch import Tensor

from supsup.allocation import choose_mask
from supsup.bank import Bank
from supsup.inference import alpha_gradient
from supsup.query import Goal
from supsup.scores import initial_scores, scores_of
from supsup.training.workbench import Workbench, workbench

if TYPE_CHECKING:
    from supsup.learner import SupSup

_HALF_TRAINED = 16  # masks whose scores and optimiser state are kept ready to go on


class Observer:
    """The part of a `SupSup` that `observe` needs: a workbench with one mask on it, and those taken off it."""

    def __init__(self, model: SupSup) -> None:
        self.model = model
        self.name: str | None = None  # the mask on the bench
        self.half_trained: OrderedDict[str, Any] = OrderedDict()  # taken off the bench, last used last
        self.batches = 0
        self._bench: Workbench | None = None
        self._moved_on = False  # the mask has been trained since it was written to the bank
        self._no_room = False  # at the last decision, for a mask that was needed

    @property
    def bench(self) -> Workbench:
        if self._bench is None:
            self._bench = workbench(self.model.net, self.model.recipe)
        return self._bench

    def until_check(self) -> int:
        """How many batches go to the same mask before the next decision."""
        every = self.model.allocation.every
        return every - self.batches % every

    def prepare(self, images: Tensor, batches: int) -> str | None:
        """Put the right mask on the bench for so many batches, of which these are the first images.

        None if they fit no mask, and there is no room for another.
        """
        if self.batches % self.model.allocation.every == 0 or (self.name is None and not self._no_room):
            self.settle()
            self.model.commit()
            self._decide(images)
        self.batches += batches
        self._moved_on = self.name is not None
        return self.name

    def _decide(self, images: Tensor) -> None:
        chosen, budget = self._known(images), self.model.allocation.budget
        self._no_room = chosen is None and len(self.model.bank) >= budget
        if chosen is not None and chosen == self.name:
            return
        self._take_off()
        if self._no_room:
            self.name = None
            warnings.warn(
                f"all {budget} masks of the budget are in use and these images fit none of them, so nothing is learned "
                "from them; make room with forget, or use Allocation(budget=…)",
                stacklevel=4,
            )
        else:
            self.name = self._open(images) if chosen is None else self._take_up(chosen)

    def settle(self) -> None:
        """Write the mask on the bench into the bank as it stands."""
        if self._moved_on and self.name is not None:
            self.model.replace_mask(self.name, self.bench.mask())
        self._moved_on = False

    def forget(self, task: str) -> None:
        """Keep nothing of a mask."""
        self.half_trained.pop(task, None)
        self._no_room = False
        if self.name == task:
            self.name = None

    def _known(self, images: Tensor) -> str | None:
        """The mask whose task these images seem to belong to, None for a new one."""
        model = self.model
        layers = list(model.net.weights)

        def gradient(bank: Bank) -> Tensor:
            return alpha_gradient(model.net, bank, images[None], None, Goal("H", 0), layers)[0]

        def stand_in(number: int) -> dict[str, Tensor]:
            scores = initial_scores(model.seed, f"stand-in-{number}", model.net.shapes, model.device)
            return {name: value >= 0 for name, value in scores.items()}

        present = None if self.name is None else model.tasks.index(self.name)
        chosen = choose_mask(model.bank, gradient, stand_in, model.allocation, present)
        return None if chosen is None else model.tasks[chosen]

    def _take_off(self) -> None:
        if self.name is not None:
            self.half_trained[self.name] = self.bench.take_off()
            while len(self.half_trained) > _HALF_TRAINED:
                self.half_trained.popitem(last=False)

    def _take_up(self, name: str) -> str:
        """Go on with a known mask from where it was left; if that is no longer kept, from its bits and statistics."""
        if name in self.half_trained:
            self.bench.put_on(self.half_trained.pop(name))
        else:
            statistics = self.model.bank.statistics(self.model.tasks.index(name))
            self.bench.start(scores_of(self.model.mask(name)), statistics)
        return name

    def _open(self, images: Tensor) -> str:
        model = self.model
        taken = set(model.tasks)
        name = next(name for name in map("observed-{}".format, count()) if name not in taken)
        self.bench.start(initial_scores(model.seed, name, model.net.shapes, model.device))
        model.put({name: 0}, model.bank.pack(self.bench.mask())[:, None], {}, tuple(images.shape[1:]))
        return name
