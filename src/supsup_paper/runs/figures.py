"""The figures of a row: accuracies from an evaluation, and how long training would take with plain autograd.

The latter is one task at a time by eager autograd: a few steps are timed and multiplied. Only the first seed is timed;
the others would take as long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean

from supsup.data import Stream
from supsup.evaluation.evaluator import Evaluation
from supsup.model.state import state_of
from supsup.model.supsup import SupSup
from supsup.training import Recipe, train_mask
from supsup_paper.baselines.baseline import Baseline
from supsup_paper.baselines.training import learn_plain
from supsup_paper.catalogue.experiments import Experiment
from supsup_paper.records import PLAIN_WAY, PlannedRow
from supsup_paper.runs.environment import Environment


def axis_positions(wanted: PlannedRow[Experiment], stages: list[int]) -> list[str]:
    """Where figures stand on the entry's axis: at the numbers of tasks learned, or nowhere for a single number."""
    return [str(stage) for stage in stages] if wanted.axis else [""] * len(stages)


def accuracy_figures(wanted: PlannedRow[Experiment], graded: Evaluation) -> dict[str, dict[str, float]]:
    """Accuracy at each stage and, where tasks are inferred, how often that was right; in %."""
    where = axis_positions(wanted, graded.stages)
    figures = {"accuracy %": {place: 100 * value for place, value in zip(where, graded.curve)}}
    if graded.scenario != "GG":
        right = [100 * fmean(grade.inferred for grade in stage.values()) for stage in graded.grades]
        figures["task right %"] = dict(zip(where, right))
    return figures


def per_task(graded: Evaluation) -> dict[str, float]:
    """Accuracy of each task after the last, in %."""
    return {name: 100 * value for name, value in graded.per_task.items()}


_SHORT, _MOST = 2, 200  # steps
_SECONDS = 1.0  # about how long the long run takes


def plain_way(model: SupSup, stream: Stream, environment: Environment) -> dict[str, float]:
    """Seconds for all masks of a stream."""
    if model.seed:
        return {}
    task, recipe = stream[0], model.recipe.stepwise

    def train(steps: int) -> None:
        train_mask(state_of(model).net, task.name, task.train, replace(recipe, epochs=None, steps=steps))

    return _multiplied(train, recipe, stream, environment)


def plain_baseline(
    baseline: Baseline, make: Callable[[Recipe], Baseline], stream: Stream, environment: Environment
) -> dict[str, float]:
    """Seconds for all tasks of a baseline; `make` makes another of its kind."""
    if baseline.seed:
        return {}
    recipe = baseline.recipe

    def train(steps: int) -> None:
        learn_plain(make(replace(recipe, epochs=None, steps=steps)), stream[0])

    return _multiplied(train, recipe, stream, environment)


def _multiplied(
    train: Callable[[int], None], recipe: Recipe, stream: Stream, environment: Environment
) -> dict[str, float]:
    """A long run less a short one, so that the start of a task, which is no step, does not count."""

    def seconds(steps: int) -> float:
        begin = environment.clock()
        train(steps)
        return environment.clock() - begin

    train(_SHORT)
    short = min(seconds(_SHORT) for _ in range(2))
    steps = max(_SHORT, min(_MOST, int(_SECONDS * _SHORT / short)))
    long = min(seconds(_SHORT + steps) for _ in range(2))
    every = sum(recipe.steps_for(len(task.train)) for task in stream)
    return {PLAIN_WAY: max(0.0, long - short) / steps * every}
