"""A recipe for each task where none is given: from the number of its images, and from images that are held back.

A mask depends on the signs of scores alone, so their size is free: all start within ±1, and one learning rate suits
every layer, however many inputs it has. On a pretrained network they start where every weight is kept, and so small
that the rate which suits them suits the task's own head as well. Held-back images decide how long a task is trained.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from supsup.data import Part, Task
from supsup.data.rotations import ROTATIONS, mean_over_rotations
from supsup.masks import philox
from supsup.masks.frozen import FrozenNet
from supsup.masks.scores import hard_mask
from supsup.runtime.progress import Advance, in_rounds
from supsup.runtime.validation import CheckedFields, real, whole
from supsup.training.executors import Job, Trained, free_memory, prepare_task, train_masks
from supsup.training.recipe import MNIST, FirstScores, Recipe, SelfLabels, Transfer

_RATE = 0.1  # of Adam, beside scores that start within ±1
_GENTLE_RATE, _KEPT = 3e-4, 0.005  # on pretrained networks: Piggyback's scores, as far above what is kept
_EPOCHS = 10  # in a round, where that is neither too few steps nor too many
_SHORTEST, _LONGEST, _STEPS = 100, 500, 50  # steps of a round at least and at most, always a multiple of the third
_SMALLEST, _LARGEST, _BATCHES = 16, 128, 16  # images of a batch, and how many batches there are of small data
_VARIED_BATCHES = 50  # where images are varied, epochs differ, and more and smaller steps learn more
_CROPS = 0.25  # of the frame: a mask takes longer than weights do to learn an image wherever it may be cropped
_FEWEST_HELD, _MOST_HELD = 20, 500  # images; where fewer could be held back, images that are trained on judge
_SHARE_OF_FEW, _ROUNDS_OF_FEW = 0.2, 2  # where most layers are fixed, so that little is trained
_CALIBRATING = 0.5  # of the images held back: never trained on, so that a task's profile can be calibrated with them
_PER_CLASS = 50  # images, on average: where there are fewer, each one counts, and none is held back
_DECAY = 3e-4  # of scores, where no images held back would show overfitting
_LONGER = 3  # times the round before
_TOGETHER, _HELD_SCORES = 2500, 4 << 30  # tasks and bytes of their scores, on a GPU


@dataclass(frozen=True)
class AutoRecipe(CheckedFields):
    """How a recipe is chosen for each task. Its methods are those of `Recipe` that a model needs.

    A round is a cosine of Adam's rate from its highest down to 0; the next one begins where it ended and is three times
    as long. Rounds follow each other until all held-back images are answered correctly, or fewer of them than before;
    the best mask is kept. Where images are varied, the last round also trains on half of the held-back images, and
    nothing judges it. Where none are held back, all steps are one round, in which scores decay.

    rounds       how long a task is trained at most, as a multiple of the first round; two where most layers are fixed
    held_back    the share of a task's images, of every class, that judges and is not trained on; where there are few
                 images, or few of each class, none are, or a fifth of each class where most layers are fixed
    self_labels  as in `Recipe`
    """

    rounds: Annotated[int, whole(1, 10**6)] = 4
    held_back: Annotated[float, real(0, below=1)] = 0.1
    self_labels: SelfLabels | None = None
    transfer: ClassVar[Transfer] = "none"
    stepwise: ClassVar[Recipe] = MNIST  # of `observe`, which does not know how many images a task will have

    def most_steps(self, task: Task, pretrained: bool) -> int:
        varied = task.train.augmentation is not None
        return self.rounds * first_round(len(task.train), pretrained, self.self_labels, varied).steps

    def tasks_at_once(self, net: FrozenNet, task: Task, precision: torch.dtype | None) -> int:
        fit = _Fit.begin(net, task, HoldoutSplit(net.seed, self.held_back), self)
        longest = fit.recipe_of(fit.at_most)
        return min(_tasks_at_once(net), longest.tasks_at_once(net, task, precision))

    def train(
        self,
        net: FrozenNet,
        tasks: Sequence[Task],
        precision: torch.dtype | None = None,
        advance: Advance = lambda _: None,
        first_scores: FirstScores | None = None,
    ) -> Generator[Trained, None, None]:
        """Tasks in order, in groups as they are finished, with the best mask of each and the recipe it came from.

        A mask depends on its own task and the seed, not on the tasks that it is trained with.
        """
        split, at_once = HoldoutSplit(net.seed, self.held_back, net.described > 0), _tasks_at_once(net)
        for start in range(0, len(tasks), at_once):
            fits = [_Fit.begin(net, task, split, self) for task in tasks[start : start + at_once]]
            _run_rounds(net, fits, precision, advance)
            yield _together(fits, rotated=self.self_labels is not None)


def recipe_from_dict(fields: Mapping[str, Any]) -> Recipe | AutoRecipe:
    """The recipe or the automatic choice with these fields; those that are missing have their defaults."""
    return AutoRecipe(**fields) if "rounds" in fields else Recipe(**fields)


def first_round(
    images: int, pretrained: bool = False, self_labels: SelfLabels | None = None, varied: bool = False
) -> Recipe:
    """The first round for a task of this many images; sizes are rounded, so that tasks of similar size go together.

    varied  whether training images are cropped, flipped or the like
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


class Holdout(NamedTuple):
    """A task's images by what they are for.

    trained    trained on
    judging    not trained on before the last round: they say how good a mask is
    final      trained on in the last round, where that is also on images that judged
    reserved   not even trained on there: what a task's profile is calibrated with; None where all images are trained on
    """

    trained: Part
    judging: Part
    final: Part
    reserved: Part | None


@dataclass
class _Fit:
    """One task on its way through the rounds; lengths are multiples of the first round.

    recipe             of a first round
    at_most, done      how long it is trained at most, and was until now
    length             of the next round; 0: there is none
    scores             where the last round ended, and the head if the task has its own; None after the last round
    right              images of `judging` that the best mask answers correctly
    best               the best mask, with the recipe of one round as long as it was trained, and its images
    """

    task: Task
    images: Holdout
    recipe: Recipe
    at_most: int
    length: int = 1
    done: int = 0
    right: int = -1
    best: Trained | None = None
    scores: dict[str, Tensor] | None = None

    @classmethod
    def begin(cls, net: FrozenNet, task: Task, split: HoldoutSplit, auto: AutoRecipe) -> _Fit:
        images = split.divide(task.train)
        varied = task.train.augmentation is not None
        recipe = first_round(len(images.trained), net.pretrained, auto.self_labels, varied)
        if images.reserved is not None or net.pretrained:
            return cls(task, images, recipe, min(auto.rounds, _ROUNDS_OF_FEW) if net.described else auto.rounds)
        recipe = replace(recipe, weight_decay=_DECAY, crops=None)  # narrow crops are for images that are many
        return cls(task, images, recipe, auto.rounds, length=auto.rounds)

    @property
    def is_final(self) -> bool:
        """Whether the next round also trains on images that judge: the last one, where images are varied."""
        return self.recipe.crops is not None and self.done + self.length == self.at_most

    def recipe_of(self, length: int) -> Recipe:
        """Of a round of this length."""
        return replace(self.recipe, steps=length * self.recipe.steps)

    def job(self) -> Job:
        """The next round; from the second on images come in another order."""
        name = self.task.name if not self.done else f"{self.task.name}/after {self.done}"
        train = self.images.final if self.is_final else self.images.trained
        task, recipe = replace(self.task, name=name, train=train), self.recipe_of(self.length)
        return Job(prepare_task(task, recipe), recipe, self.scores, keep_scores=True)

    def take(self, net: FrozenNet, trained: Trained) -> None:
        """Judge a round that was trained, and decide on the next one."""
        assert trained.scores is not None
        self.scores = {name: value[0] for name, value in trained.scores.items()}
        images, right = self.images, self.right
        if not self.is_final and self.length < self.at_most:
            right = self._right(net, {name: value[0] for name, value in trained.statistics.items()})
        split = (images.final, images.reserved) if self.is_final else (images.trained, images.judging)
        self.done += self.length
        better = right >= self.right
        if better:
            splits = [split if images.reserved is not None else (self.task.train, None)]
            self.right = right
            self.best = trained._replace(scores=None, recipes=[self.recipe_of(self.done)], splits=splits)
        ended = right == len(images.judging) or not better
        self.length = 0 if ended else min(_LONGER * self.length, self.at_most - self.done)
        if not self.length:
            self.scores = None

    @torch.no_grad()
    def _right(self, net: FrozenNet, statistics: dict[str, Tensor]) -> int:
        """How many images of `judging` the last round's mask answers correctly."""
        assert self.scores is not None
        mask = {name: hard_mask(self.scores[name], self.recipe.kept(shape)) for name, shape in net.shapes.items()}
        run, classes, right = partial(net.run_many, weights=net.masked(mask | statistics)), self.task.classes, 0
        if self.recipe.self_labels is not None:
            run = partial(mean_over_rotations, run, classes)
        for x, y in self.images.judging.batches(_MOST_HELD, net.device):
            right += int((run(x)[:, :classes].argmax(1) == y).sum())
        return right


class HoldoutSplit:
    """Divides the images of parts; parts with the same rows and labels share the choice.

    always  hold back some of each class also where there are few
    """

    def __init__(self, seed: int, share: float, always: bool = False) -> None:
        self._seed, self._share, self._always = seed, share, always and share > 0
        self._known: dict[tuple[int, int], tuple[Part, Holdout]] = {}

    def divide(self, part: Part) -> Holdout:
        """Which images are trained on, and which are held back."""
        key = (id(part.rows), id(part.labels))
        if key not in self._known:
            self._known[key] = part, self._divided(part)  # the part keeps the ids of its tensors from being used again
        first, known = self._known[key]

        def chosen(each: Part) -> Part:
            return part if each is first else replace(part, rows=each.rows, labels=each.labels)

        reserved = None if known.reserved is None else chosen(known.reserved)
        return Holdout(chosen(known.trained), chosen(known.judging), chosen(known.final), reserved)

    def _divided(self, part: Part) -> Holdout:
        held, reserved = self._held_back(part)
        if int(held.sum()) < (1 if self._always else _FEWEST_HELD):
            return Holdout(part, _some(part, torch.arange(len(part)) < _MOST_HELD), part, None)
        return Holdout(*(_some(part, chosen) for chosen in (~held, held, ~reserved, reserved)))

    def _held_back(self, part: Part) -> tuple[Tensor, Tensor]:
        """Which images judge, the same share of each class, drawn from the seed; and which of them are reserved.

        At least `_FEWEST_HELD` are reserved: a profile calibrated with fewer would have no use for shares of 5 %.
        """
        order = philox.permutations(self._seed, ["held back"], len(part))[0]
        labels = part.labels.cpu()[order]
        by_class = labels.argsort(stable=True)
        counts = labels.bincount()
        first = counts.cumsum(0) - counts
        rank = torch.empty_like(labels)
        rank[by_class] = torch.arange(len(labels)) - first[labels[by_class]]
        share = min(self._share, _MOST_HELD / len(part))
        held, reserved = torch.zeros(2, len(part), dtype=torch.bool)
        if len(part) < _PER_CLASS * int((counts > 0).sum()):
            if self._always:
                few = (_SHARE_OF_FEW * counts).floor().clamp(min=1).minimum(counts - 1)
                held[order] = rank < few[labels]
            return held, held
        held[order] = rank < (share * counts)[labels].floor()
        reserved[order] = rank < (_CALIBRATING * share * counts)[labels].floor()
        return held, reserved if int(reserved.sum()) >= _FEWEST_HELD else held


def _some(part: Part, chosen: Tensor) -> Part:
    """The images of a part that are chosen."""
    positions = chosen.nonzero().flatten()
    device = part.images.device if part.in_memory else torch.device("cpu")
    rows = positions.to(device) if part.rows is None else part.rows[positions.to(part.rows.device)]
    return replace(part, rows=rows, labels=part.labels[positions.to(part.labels.device)])


def _run_rounds(net: FrozenNet, fits: Sequence[_Fit], precision: torch.dtype | None, advance: Advance) -> None:
    """All rounds of some tasks; tasks whose next round has the same recipe are trained together."""
    while waiting := [fit for fit in fits if fit.length]:
        rounds: dict[tuple[Recipe, float], list[_Fit]] = {}
        for fit in waiting:
            rounds.setdefault((fit.recipe_of(fit.length), fit.length / fit.at_most), []).append(fit)
        for (_, share), alike in rounds.items():
            jobs = [fit.job() for fit in alike]
            with closing(train_masks(net, jobs, precision, in_rounds(advance, share))) as groups:
                finished = (one for group in groups for one in group.split())
                for one, fit in zip(finished, alike, strict=True):
                    fit.take(net, one)
                    if not fit.length:
                        advance(1 - fit.done / fit.at_most)


def _together(fits: Sequence[_Fit], rotated: bool) -> Trained:
    """The best masks of all these tasks."""
    best = [fit.best for fit in fits if fit.best is not None]
    return Trained(
        [fit.task for fit in fits],
        torch.cat([each.packed for each in best], 1),
        {name: torch.cat([each.statistics[name] for each in best]) for name in best[0].statistics},
        recipes=[recipe for each in best for recipe in each.recipes or ()],
        splits=[split for each in best for split in each.splits or ()],
        rotated=rotated,
    )


def _tasks_at_once(net: FrozenNet) -> int:
    """How many tasks go through the rounds together: their scores take memory, and an interruption loses them all."""
    if net.device.type == "cpu":
        return torch.get_num_threads()
    bytes_each = 4 * sum(shape.numel() for shape in net.shapes.values())
    return max(1, min(_TOGETHER, min(_HELD_SCORES, free_memory(net.device) // 8) // bytes_each))
