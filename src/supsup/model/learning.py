"""Learning tasks that are announced: their masks are trained, together where they can be, and added to a model."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial

import torch
from torch import Tensor

from supsup.data import Task
from supsup.data.inputs import key_of
from supsup.data.rotations import ROTATIONS, without_rotations
from supsup.data.task_info import TaskInfo
from supsup.inference.profiles import TaskProfile
from supsup.inference.profiles.fit import ProfileData, ProfileFitter
from supsup.masks.scores import RunningMean, transferred
from supsup.model import checks
from supsup.model.state import ModelState
from supsup.runtime import progress
from supsup.runtime.errors import SupSupError
from supsup.runtime.interrupts import uninterrupted
from supsup.training import AutoRecipe, Job, Recipe, Trained, train_masks, train_with_auto_recipe
from supsup.training.auto_recipe import HoldoutSplit, first_round
from supsup.training.jobs import as_learned, first_scores

_TRACED = 64  # tasks added together where what they are found by is made; a GPU trains hundreds together


@contextmanager
def gradients_kept() -> Iterator[None]:
    """Whatever happens, an interruption where torch has gradients off too, they are on or off afterwards as before."""
    before = torch.is_grad_enabled()
    try:
        yield
    finally:
        torch.set_grad_enabled(before)


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
        alone = len(tasks) == 1
        watched = progress.steps(tasks[0].name, self._steps(tasks[0]), show_progress, callback) if alone else None
        with (
            watched or progress.bar("learning", len(tasks), show=show_progress) as advance,
            closing(self._trained(tasks, precision, advance)) as groups,
        ):
            for trained, recipes in groups:
                size = _TRACED if self.state.settings.inference.needs_profiles else len(trained.tasks)
                for start, some in zip(range(0, len(trained.tasks), size), trained.split(size)):
                    self.add(some, None if recipes is None else recipes[start : start + size])
                    advance(0)

    def expectations(self) -> checks.Expectations:
        """What has to be known to make tasks of raw data for this model."""
        net, shape, tasks = self.state.net, self.state.image_shape, self.state.tasks
        learned = None if shape is None else (shape, tasks.at(0).info.inputs if len(tasks) else None)
        rotated, run = self.state.settings.recipe.self_labels is not None, partial(net.run, weights=net.weights)
        return checks.Expectations(run, net.module, net.device, learned, rotated=rotated)

    def _trained(
        self, tasks: Sequence[Task], precision: torch.dtype | None, advance: progress.Advance
    ) -> Generator[tuple[Trained, list[Recipe] | None], None, None]:
        """Tasks as they are finished, with the recipes chosen for them; all are added before more are asked for."""
        net, recipe = self.state.net, self.state.settings.recipe
        if isinstance(recipe, AutoRecipe):
            yield from train_with_auto_recipe(net, tasks, recipe, precision, advance)
            return
        for group in [tasks] if recipe.transfer == "none" else [[task] for task in tasks]:
            with closing(train_masks(net, [self.job(task, recipe) for task in group], precision, advance)) as groups:
                for trained in groups:
                    yield trained, None

    def _steps(self, task: Task) -> int:
        """How many steps a task is trained for at most."""
        recipe = self.state.settings.recipe
        if isinstance(recipe, AutoRecipe):
            varied = task.train.augmentation is not None
            one = first_round(len(task.train), self.state.net.pretrained, recipe.self_labels, varied)
            return recipe.rounds * one.steps
        return recipe.steps_for(len(task.train) * (1 if recipe.self_labels is None else ROTATIONS))

    def job(self, task: Task, recipe: Recipe) -> Job:
        """A task to train: its scores start at random, or from what was learned before."""
        first = None if recipe.transfer == "none" else self.first_scores(task.name, recipe)
        return Job(as_learned(task, recipe), recipe, first, keep_scores=recipe.transfer == "scores")

    def add(
        self,
        trained: Trained,
        recipes: Sequence[Recipe] | None = None,
        profiles: Mapping[str, TaskProfile] | None = None,
    ) -> None:
        """Tasks that were trained, with their masks and the recipes chosen for them; committed at once.

        traces  what they will be found by, where whoever trained them has made that too
        """
        scores, recipe = self._earlier_scores, self.state.settings.recipe
        if isinstance(recipe, Recipe) and recipe.transfer == "scores":
            assert trained.scores is not None
            scores = scores.with_more(trained.scores)
        classes, shape = {task.name: task.classes for task in trained.tasks}, trained.tasks[0].train.shape
        chosen = [None] * len(classes) if recipes is None else [each.differing for each in recipes]
        rotated = [task.train.rotated_classes > 0 for task in trained.tasks]
        if recipes is not None:
            rotated = [each.self_labels is not None for each in recipes]
        info = {
            task.name: TaskInfo(task.names, task.inputs, own, views, task.normalisation)
            for task, own, views in zip(trained.tasks, chosen, rotated)
        }
        if profiles is None:
            profiles = self._traces(trained, rotated) if self.state.settings.inference.needs_profiles else {}
        with uninterrupted():
            self.state.add(classes, trained.packed, trained.statistics, shape, info, profiles)
            self._earlier_scores = scores
            self.state.commit()

    def _traces(self, trained: Trained, rotated: Sequence[bool]) -> dict[str, TaskProfile]:
        """What these tasks will be found by."""
        net, recipe = self.state.net, self.state.settings.recipe
        halves = HoldoutSplit(net.seed, recipe.held_back) if isinstance(recipe, AutoRecipe) else None
        shown = []
        for task, in_rotations in zip(trained.tasks, rotated):
            part = without_rotations(task.train)
            learned, judge = (part, None) if halves is None else halves.of(part)
            held_back = None if learned is part else judge
            shown.append(ProfileData(learned, held_back, task.classes, key_of(task.inputs), in_rotations))
        latest = (self.state.tasks.at(index) for index in reversed(range(len(self.state.tasks))))
        earlier = ((key_of(task.info.inputs), task.profile) for task in latest if task.profile is not None)
        profiles = ProfileFitter(net, trained.packed, trained.statistics).profiles(shown, earlier)
        return {task.name: profile for task, profile in zip(trained.tasks, profiles) if profile is not None}

    def first_scores(self, task: str, recipe: Recipe) -> dict[str, Tensor]:
        """Where a task's scores start, given all that was learned before."""
        net, bank, bound = self.state.net, self.state.bank, recipe.score_bound
        scores = first_scores(net, task, recipe)
        if not len(bank) or recipe.transfer == "none":
            return scores
        if recipe.transfer == "masks":
            return transferred(bank.mean(), scores, centred=recipe.selection == "threshold", bound=bound)
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
        recipes = [model.state.settings.recipe for model in models]
        if any(isinstance(recipe, AutoRecipe) for recipe in recipes):
            raise SupSupError("models that learn together need a recipe each: SupSup(net, recipe=Recipe(…))")
        jobs = [model.job(task, recipe) for model, recipe in zip(models, recipes) if isinstance(recipe, Recipe)]
        waiting = iter(models)
        with closing(train_masks(models[0].state.net, jobs, advance=advance)) as groups:
            for trained in groups:
                for one in trained.split():
                    next(waiting).add(one)
