"""Learning announced tasks: their masks are trained, together where possible, and added to a model.

Tasks can also be trained elsewhere. This is the extension point that `cluster/` uses: another process makes a
`PartTrainer` of what `Learning.blueprint` returns, and `Learning.add_part` adds what that one has trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from supsup.data import Part, Task
from supsup.data.task import PlainValues, TaskInfo
from supsup.file.header import check_network
from supsup.file.modelfile import ModelFile, model_from_bytes, model_to_bytes, write_new
from supsup.file.task_blocks import TaskBlock, read_blocks
from supsup.file.task_record import LearnedTask
from supsup.inference.methods import METHODS
from supsup.inference.profiles import TaskProfile
from supsup.inference.profiles.fit import ProfileData, ProfileFitter
from supsup.inference.profiles.profile import CALIBRATED
from supsup.masks.scores import transferred
from supsup.model import checks
from supsup.model.state import ModelState
from supsup.runtime import progress
from supsup.runtime.clock import now
from supsup.runtime.errors import SupSupError
from supsup.runtime.interrupts import uninterrupted
from supsup.training import Recipe, Trained
from supsup.training.executors import first_scores

_DESCRIBED, _BATCH = 1 << 14, 32  # images whose descriptions are held in memory; that are described at a time
_PROFILED = 64  # tasks whose profiles are made together; a GPU trains hundreds together


class Learning:
    """Trains new masks of a model; the caller has checked the tasks."""

    def __init__(self, state: ModelState) -> None:
        self.state = state

    def learn(
        self,
        tasks: Sequence[Task],
        *,
        precision: torch.dtype | None = None,
        show_progress: bool | None = None,
        callback: progress.Callback | None = None,
    ) -> None:
        """Train a mask for each task; with transfer one after the other, else many at once.

        callback  is called with the steps of a single task
        """
        net, recipe, at_once = self.state.net, self.state.settings.recipe, len(tasks)
        if net.described:
            at_once = max(1, at_once * _DESCRIBED // sum(len(task.train) for task in tasks))
        for start in range(0, len(tasks), at_once):
            some = tasks[start : start + at_once]
            described, by_name = self._described(some, show_progress), {task.name: task for task in some}
            if len(some) == 1:
                steps = recipe.most_steps(some[0], net.pretrained)
                watched = progress.steps(some[0].name, steps, show_progress, callback)
            else:
                watched = progress.bar("learning", len(some), show=show_progress)
            with (
                watched as advance,
                closing(recipe.train(net, described, precision, advance, self.first_scores)) as groups,
            ):
                for trained in groups:
                    splits = trained.splits or [(task.train, None) for task in trained.tasks]
                    trained = trained._replace(tasks=[by_name[task.name] for task in trained.tasks], splits=splits)
                    for finished in trained.split(_PROFILED if self._needs_profiles else len(some)):
                        self.add(finished)
                        advance(0)

    def _described(self, tasks: Sequence[Task], show: bool | None) -> Sequence[Task]:
        """Tasks with what the network takes in place of their images, where it does; images on disk are left there."""
        net, images = self.state.net, sum(len(task.train) for task in tasks)
        if not net.described:
            return tasks
        found = []
        with progress.bar("computing features", images, "images", show) as advance:
            for task in tasks:
                if task.train.in_memory:
                    described = []
                    for x, _ in task.train.batches(_BATCH, net.device):
                        described.append(net.describe(x))
                        advance(len(x))
                    task = replace(task, train=Part(torch.cat(described), task.train.labels.to(net.device)))
                found.append(task)
        return found

    def input_requirements(self) -> checks.InputRequirements:
        """What is needed to make tasks of raw data for this model."""
        state, rotated = self.state, self.state.settings.recipe.self_labels is not None
        return checks.InputRequirements.of(state.net, state.image_shape, state.tasks, rotated=rotated)

    def add(self, trained: Trained) -> None:
        """Add tasks that were trained, with their profiles, and commit them at once."""
        state, earlier = self.state, self.state.earlier_scores
        if state.settings.recipe.transfer == "scores":
            assert trained.scores is not None
            earlier = earlier.with_more(trained.scores)
        profiles = self._profiles(trained) if self._needs_profiles else [None] * len(trained.tasks)
        unused = [number for number, profile in enumerate(profiles) if profile and profile.mask_weight == 0]
        if unused and state.net.described:  # masks that say no more than their profiles
            trained = trained.without_masks(unused, state.net)
            profiles = self._profiles(trained)
        recipes: Sequence[PlainValues | None] = [None] * len(profiles)
        if trained.recipes is not None:
            recipes = [recipe.differing for recipe in trained.recipes]
        learned = [
            LearnedTask(task.name, task.classes, info=TaskInfo.of(task, recipe, trained.rotated), profile=profile)
            for task, recipe, profile in zip(trained.tasks, recipes, profiles)
        ]
        with uninterrupted():
            state.add(learned, trained.packed, trained.statistics, trained.tasks[0].train.shape)
            state.earlier_scores = earlier
            state.commit()

    @property
    def _needs_profiles(self) -> bool:
        """Whether tasks must be given profiles when they are learned."""
        how = self.state.settings.inference
        return METHODS[how.method].needs_profiles or how.objective in CALIBRATED

    def blueprint(self) -> tuple[bytes, nn.Module | None]:
        """What another process needs to train tasks: a model file without tasks, and the module if that names none."""
        transfer = self.state.settings.recipe.transfer
        if transfer != "none":
            raise SupSupError(f"transfer={transfer!r} needs tasks one after the other; learn them without a cluster")
        header = replace(self.state.header(), notes={})
        module = None if header.architecture is not None else self.state.net.module
        return model_to_bytes(lambda path: write_new(path, header)), module

    def add_part(self, part: bytes, tasks: Sequence[Task]) -> None:
        """Add tasks that a `PartTrainer` has trained, every mask checked, and commit them.

        tasks  as the user has them: names of classes and the normalisation of inputs are not sent to workers
        """
        net, by_name = self.state.net, {task.name: task for task in tasks}

        def load(path: Path) -> list[TaskBlock]:
            with ModelFile(path) as file:
                check_network(net, file.header)
                return list(read_blocks(file, net))

        for block in model_from_bytes(part, load):
            for learned in block.tasks:
                learned.info = TaskInfo.of(by_name[learned.name], learned.info.recipe, learned.info.rotated)
                learned.learned_at = now()
            with uninterrupted():
                self.state.add(block.tasks, block.packed, block.statistics, tasks[0].train.shape)
                self.state.commit()

    def _profiles(self, trained: Trained) -> Sequence[TaskProfile | None]:
        """The profile of each task, calibrated with images that were not trained on, where there are any."""
        splits = trained.splits or [(task.train, None) for task in trained.tasks]
        recipes = trained.recipes or [self.state.settings.recipe.stepwise] * len(splits)
        data = [
            ProfileData(learned, held_back, task.classes, trained.rotated, recipe.seen(learned))
            for task, (learned, held_back), recipe in zip(trained.tasks, splits, recipes)
        ]
        return ProfileFitter(self.state.net, trained.packed, trained.statistics).fit(data)

    def first_scores(self, task: str, recipe: Recipe) -> dict[str, Tensor]:
        """Where a task's scores start, given the tasks learned before."""
        net, bank, bound = self.state.net, self.state.bank, recipe.score_bound
        scores = first_scores(net, task, recipe)
        if not len(bank) or recipe.transfer == "none":
            return scores
        if recipe.transfer == "masks":
            return transferred(bank.mean(), scores, centred=recipe.selection == "threshold", bound=bound)
        if self.state.earlier_scores.count != len(bank):
            raise SupSupError(
                'transfer="scores" needs the scores of all earlier tasks, which are not saved with a model; '
                'learn all tasks in one go, or use transfer="masks"'
            )
        return self.state.earlier_scores.mean()


class PartTrainer:
    """Trains groups of tasks, on a device of this process, for a model that is elsewhere; threads may share it."""

    def __init__(self, content: bytes, module: nn.Module | None, device: str) -> None:
        self._empty = model_from_bytes(content, lambda path: ModelState.load(path, module, device))

    def tasks_at_once(self, task: Task, precision: torch.dtype | None = None) -> int:
        """How many tasks like this one fill the device."""
        return self._empty.settings.recipe.tasks_at_once(self._empty.net, task, precision)

    def train(self, tasks: Sequence[Task], precision: torch.dtype | None = None) -> bytes:
        """A part: the bytes of a model file with these tasks alone. A mask depends on seed, name and data alone."""
        state = ModelState(self._empty.net, self._empty.settings)
        Learning(state).learn(tasks, precision=precision, show_progress=False)
        return model_to_bytes(state.save)
