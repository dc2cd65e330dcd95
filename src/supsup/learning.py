"""Learning tasks that are announced: their masks are trained, together where they can be, and added to a model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing

import torch
from torch import Tensor

from supsup import progress
from supsup.concurrency.interrupts import uninterrupted
from supsup.data import Task
from supsup.errors import SupSupError
from supsup.scores import RunningMean, initial_scores, transferred
from supsup.state import ModelState
from supsup.tasks import Facts
from supsup.training import Job, Trained, train_masks


class Learning:
    """Trains new masks of a model; tasks have been checked before."""

    def __init__(self, state: ModelState) -> None:
        self.state = state
        self._earlier_scores = RunningMean()  # of all tasks learned, for transfer="scores"

    def learn(
        self,
        tasks: Sequence[Task],
        *,
        precision: torch.dtype | None = None,
        show_progress: bool | None = None,
        callback: progress.Callback | None = None,
    ) -> None:
        """Train a mask for each task; with transfer one after the other, else many at once.

        callback  hears of the steps, for one task
        """
        net, recipe = self.state.net, self.state.settings.recipe
        groups = [tasks] if recipe.transfer == "none" else [[task] for task in tasks]
        alone = len(tasks) == 1
        watched = progress.steps(tasks[0].name, self.job(tasks[0]).steps, show_progress, callback) if alone else None
        with watched or progress.bar("learning", len(tasks), show=show_progress) as advance:
            for group in groups:
                jobs = [self.job(task) for task in group]
                with closing(train_masks(net, jobs, precision, advance)) as groups_trained:
                    for trained in groups_trained:
                        self.add(trained)

    def job(self, task: Task) -> Job:
        """A task to train: its scores start at random, or from what was learned before."""
        recipe = self.state.settings.recipe
        return Job(task, recipe, None if recipe.transfer == "none" else self.first_scores(task.name))

    def add(self, trained: Trained) -> None:
        """Tasks that were trained, with their masks; committed at once."""
        scores = self._earlier_scores
        if self.state.settings.recipe.transfer == "scores":
            assert trained.scores is not None
            scores = scores.with_more(trained.scores)
        classes = {task.name: task.classes for task in trained.tasks}
        facts = {task.name: Facts(task.names, task.inputs) for task in trained.tasks}
        with uninterrupted():
            self.state.add(classes, trained.packed, trained.statistics, trained.tasks[0].train.shape, facts)
            self._earlier_scores = scores
            self.state.commit()

    def first_scores(self, task: str) -> dict[str, Tensor]:
        """Where a task's scores start, given all that was learned before."""
        net, bank, recipe = self.state.net, self.state.bank, self.state.settings.recipe
        scores = initial_scores(net.seed, task, net.shapes, net.device)
        if not len(bank) or recipe.transfer == "none":
            return scores
        if recipe.transfer == "masks":
            return transferred(bank.mean(), scores, centred=recipe.selection == "threshold")
        if self._earlier_scores.count != len(bank):
            raise SupSupError(
                'transfer="scores" needs the scores of all earlier tasks, which are not saved with a model; '
                'learn all tasks in one go, or use transfer="masks"'
            )
        return self._earlier_scores.mean()


def train_together(models: Sequence[Learning], task: Task, advance: progress.Advance) -> None:
    """A mask for one task in each of several models on one frozen network; the task has been checked before."""
    with ExitStack() as held:
        for model in sorted(models, key=id):
            held.enter_context(model.state.changing)
        jobs = [model.job(task) for model in models]
        waiting = iter(models)
        with closing(train_masks(models[0].state.net, jobs, advance=advance)) as groups:
            for trained in groups:
                for one in trained.split():
                    next(waiting).add(one)
