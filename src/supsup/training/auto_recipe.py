"""A recipe for each task where nobody gives one: from the number of its images, and from images that are held back.

A mask depends on the signs of scores alone, so their size is free: all start within ±1, and one learning rate suits
every layer, however many inputs it has. On a pretrained network they start where every weight is kept, and so small
that the rate which suits them suits the task's own head as well. How long a task is trained, its own images decide.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

import torch
from torch import Tensor

from supsup.data import Part, Task
from supsup.data.rotations import ROTATIONS, mean_over_rotations
from supsup.masks import philox
from supsup.masks.frozen import FrozenNet
from supsup.masks.scores import hard_mask
from supsup.runtime.progress import Advance, in_rounds
from supsup.runtime.validation import check_fields, choice, optional, real, whole
from supsup.training.executors import train_masks
from supsup.training.jobs import Job, Trained, as_learned, free_memory
from supsup.training.recipe import Recipe, SelfLabels

_RATE = 0.1  # of Adam, beside scores that start within ±1
_GENTLE_RATE, _KEPT = 3e-4, 0.005  # on pretrained networks: Piggyback's scores, as far above what is kept
_EPOCHS = 10  # in a round, where that is neither too few steps nor too many
_SHORTEST, _LONGEST, _STEPS = 100, 500, 50  # of a round, in steps, and what they are a multiple of
_SMALLEST, _LARGEST, _BATCHES = 16, 128, 16  # images of a batch, and how many batches there are of small data
_VARIED_BATCHES = 50  # where images are varied: no two epochs are alike, and more and smaller steps learn more
_CROPS = 0.25  # of the frame: a mask takes longer than weights do to learn an image wherever it may be cropped
_FEWEST_HELD, _MOST_HELD = 20, 500  # images; where fewer could be held back, those that are trained on judge
_PER_CLASS = 50  # images, on average: where there are fewer, each one counts, and none is held back
_DECAY = 3e-4  # of scores, where nothing held back tells when images are learned by heart
_LONGER = 3  # times the round before
_TOGETHER, _HELD_SCORES = 2500, 4 << 30  # tasks and bytes of their scores, on a GPU


@dataclass(frozen=True)
class AutoRecipe:
    """How a recipe is chosen for each task.

    A round is a cosine of Adam's rate from its highest down to 0; the next one begins where it ended and is three times
    as long. Rounds follow each other until images held back are all answered, or fewer of them than before; the best
    mask is kept. Where images are varied, the last round is on all of them, and nothing judges it. Where none are held
    back, all steps are one round, in which scores decay.

    rounds     how long a task is trained at most, as many times the first round
    held_back  the share of a task's images, of every class, that judges and is not trained on; where there are few
               images, or few of each class, none are
    self_labels  as in `Recipe`
    """

    rounds: int = 4
    held_back: float = 0.1
    self_labels: SelfLabels | None = None

    def __post_init__(self) -> None:
        labels = optional(choice(*get_args(SelfLabels)))
        check_fields(self, rounds=whole(1, 10**6), held_back=real(0, below=1), self_labels=labels)


def first_round(
    images: int, pretrained: bool = False, self_labels: SelfLabels | None = None, varied: bool = False
) -> Recipe:
    """One round for a task of so many images; sizes are steps apart, so that tasks about as large go together.

    varied  whether images are cropped, flipped or the like while they are trained on
    """
    images *= 1 if self_labels is None else ROTATIONS
    varied = varied and not pretrained
    batch_size, batches = _SMALLEST, _VARIED_BATCHES if varied else _BATCHES
    while 2 * batch_size <= min(_LARGEST, images / batches):
        batch_size *= 2
    wanted = _EPOCHS * images / batch_size
    steps = max(_SHORTEST, min(_LONGEST, _STEPS * round(wanted / _STEPS)))
    if pretrained:
        chosen = Recipe("adam", _GENTLE_RATE, steps, batch_size, schedule="cosine", score_bound=_KEPT, start="kept")
    else:
        crops = _CROPS if varied else None
        chosen = Recipe("adam", _RATE, steps, batch_size, schedule="cosine", score_bound=1.0, crops=crops)
    return replace(chosen, self_labels=self_labels)


def train_with_auto_recipe(
    net: FrozenNet,
    tasks: Sequence[Task],
    fitting: AutoRecipe,
    precision: torch.dtype | None = None,
    advance: Advance = lambda _: None,
) -> Generator[tuple[Trained, list[Recipe]], None, None]:
    """Tasks in order, in groups as they are finished, with the best mask of each; and the recipes that they came from.

    A mask depends on its own task and the seed, not on the tasks that it is trained with.
    """
    halves = HoldoutSplit(net.seed, fitting.held_back)
    at_once = _tasks_at_once(net)
    for start in range(0, len(tasks), at_once):
        some = tasks[start : start + at_once]
        fits = [_fit(net, task, *halves.of(task.train), fitting) for task in some]
        _run_rounds(net, fits, precision, advance)
        yield _together(fits), [fit.recipe_of(fit.best_done) for fit in fits]


@dataclass
class _Fit:
    """One task on its way through the rounds; lengths are as many times the first round.

    learned, judge  the images that are trained on, and those that say how good a mask is
    recipe          of a first round
    at_most, done   how long it is trained at most, and was until now
    length          of the next round
    scores          where the last round ended, and the head if the task has its own, while there may be another one
    right           images of `judge` that the best mask answers, which was there after `best_done`
    """

    task: Task
    learned: Part
    judge: Part
    recipe: Recipe
    at_most: int
    length: int = 1
    done: int = 0
    right: int = -1
    best_done: int = 0
    best: Trained | None = None
    scores: dict[str, Tensor] | None = None

    @property
    def going_on(self) -> bool:
        """Whether there is another round."""
        return self.length > 0

    @property
    def on_all(self) -> bool:
        """Whether images that judge are trained on in the next round: where they are varied, in the last one."""
        return self.recipe.crops is not None and self.done + self.length == self.at_most

    def recipe_of(self, length: int) -> Recipe:
        """Of a round of this length."""
        return replace(self.recipe, steps=length * self.recipe.steps)

    def job(self) -> Job:
        """The next round; from the second on images come in another order."""
        name = self.task.name if not self.done else f"{self.task.name}/after {self.done}"
        train = self.task.train if self.on_all else self.learned
        task, recipe = replace(self.task, name=name, train=train), self.recipe_of(self.length)
        return Job(as_learned(task, recipe), recipe, self.scores, keep_scores=True)

    def take(self, net: FrozenNet, trained: Trained) -> None:
        """A round that was trained."""
        assert trained.scores is not None
        self.scores = {name: value[0] for name, value in trained.scores.items()}
        judged = not self.on_all and self.length < self.at_most
        self.done += self.length
        right = self.right
        if judged:
            right = self._right(net, {name: value[0] for name, value in trained.statistics.items()})
        better = right >= self.right
        if better:
            self.right, self.best_done, self.best = right, self.done, trained._replace(scores=None)
        ended = right == len(self.judge) or not better
        self.length = 0 if ended else min(_LONGER * self.length, self.at_most - self.done)
        if not self.going_on:
            self.scores = None

    @torch.no_grad()
    def _right(self, net: FrozenNet, statistics: dict[str, Tensor]) -> int:
        """How many images of `judge` the last round's mask answers."""
        assert self.scores is not None
        mask = {name: hard_mask(self.scores[name], self.recipe.kept(shape)) for name, shape in net.shapes.items()}
        weights, right = net.masked(mask | statistics), 0
        for x, y in self.judge.batches(_MOST_HELD, net.device):
            run, classes = partial(net.run_many, weights=weights), self.task.classes
            outputs = run(x) if self.recipe.self_labels is None else mean_over_rotations(run, x, classes)
            right += int((outputs[:, :classes].argmax(1) == y).sum())
        return right


def _fit(net: FrozenNet, task: Task, learned: Part, judge: Part, fitting: AutoRecipe) -> _Fit:
    recipe = first_round(len(learned), net.pretrained, fitting.self_labels, learned.augmentation is not None)
    if learned is not task.train or net.pretrained:
        return _Fit(task, learned, judge, recipe, fitting.rounds)
    recipe = replace(recipe, weight_decay=_DECAY, crops=None)  # narrow crops are for images that are many
    return _Fit(task, learned, judge, recipe, fitting.rounds, length=fitting.rounds)


class HoldoutSplit:
    """The images of a part that are trained on and those that judge; parts with the same labels share the choice."""

    def __init__(self, seed: int, share: float) -> None:
        self._seed, self._share = seed, share
        self._known: dict[tuple[int, int], tuple[Tensor, ...]] = {}

    def of(self, part: Part) -> tuple[Part, Part]:
        key = (id(part.rows), id(part.labels))
        if key not in self._known:
            held = self._held_back(part)
            self._known[key] = (*_some(part, held.logical_not()), *_some(part, held), part.labels)  # ids stay taken
        rows, labels, judge_rows, judge_labels, _ = self._known[key]
        if len(judge_labels) < _FEWEST_HELD:
            few = torch.arange(len(part)) < _MOST_HELD
            judge_rows, judge_labels = _some(part, few)
            return part, replace(part, rows=judge_rows, labels=judge_labels)
        return replace(part, rows=rows, labels=labels), replace(part, rows=judge_rows, labels=judge_labels)

    def _held_back(self, part: Part) -> Tensor:
        """Which images judge: the same share of each class, drawn from the seed."""
        order = philox.permutations(self._seed, ["held back"], len(part))[0]
        labels = part.labels.cpu()[order]
        by_class = labels.argsort(stable=True)
        counts = labels.bincount()
        first = counts.cumsum(0) - counts
        rank = torch.empty_like(labels)
        rank[by_class] = torch.arange(len(labels)) - first[labels[by_class]]
        share = min(self._share, _MOST_HELD / len(part))
        held = torch.zeros(len(part), dtype=torch.bool)
        if len(part) < _PER_CLASS * int((counts > 0).sum()):
            return held
        held[order] = rank < (share * counts)[labels].floor()
        return held


def _some(part: Part, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and labels of the images of a part that are chosen."""
    positions = chosen.nonzero().flatten()
    device = part.images.device if part.in_memory else torch.device("cpu")
    rows = positions.to(device) if part.rows is None else part.rows[positions.to(part.rows.device)]
    return rows, part.labels[positions.to(part.labels.device)]


def _run_rounds(net: FrozenNet, fits: Sequence[_Fit], precision: torch.dtype | None, advance: Advance) -> None:
    """All rounds of some tasks, each round of all that go on and are alike in one go."""
    while waiting := [fit for fit in fits if fit.going_on]:
        for recipe, share in dict.fromkeys(_next(fit) for fit in waiting):
            alike = [fit for fit in waiting if fit.going_on and _next(fit) == (recipe, share)]
            jobs = [fit.job() for fit in alike]
            with closing(train_masks(net, jobs, precision, in_rounds(advance, share))) as groups:
                finished = (one for group in groups for one in group.split())
                for one, fit in zip(finished, alike, strict=True):
                    fit.take(net, one)
                    if not fit.going_on:
                        advance(1 - fit.done / fit.at_most)


def _next(fit: _Fit) -> tuple[Recipe, float]:
    """What the next round of a task is, and which share of the whole."""
    return fit.recipe_of(fit.length), fit.length / fit.at_most


def _together(fits: Sequence[_Fit]) -> Trained:
    """The best masks of all these tasks."""
    best = [fit.best for fit in fits if fit.best is not None]
    return Trained(
        [fit.task for fit in fits],
        torch.cat([each.packed for each in best], 1),
        {name: torch.cat([each.statistics[name] for each in best]) for name in best[0].statistics},
    )


def _tasks_at_once(net: FrozenNet) -> int:
    """How many tasks go through the rounds together: an interruption loses those, and their scores take memory."""
    if net.device.type == "cpu":
        return torch.get_num_threads()
    bytes_each = 4 * sum(shape.numel() for shape in net.shapes.values())
    return max(1, min(_TOGETHER, min(_HELD_SCORES, free_memory(net.device) // 8) // bytes_each))
