"""The baselines on SplitCIFAR100 with the task given, each with the paper's recipe and checked against its bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from supsup import nets
from supsup.data import Stream
from supsup.evaluation.evaluator import evaluate
from supsup.training import Recipe
from supsup_paper.baselines import BatchE, SeparateHeads, UpperBound, learn_side_by_side
from supsup_paper.baselines.baseline import Baseline
from supsup_paper.baselines.batche import BaseWeights, LastLayer
from supsup_paper.baselines.training import most_at_once
from supsup_paper.catalogue import recipes
from supsup_paper.catalogue.experiments import (
    CifarBaselineTraining,
    ImagenetBoundsExperiment,
    SplitCifarBaselineExperiment,
)
from supsup_paper.records import PlannedRow, RowResult
from supsup_paper.runs.cifar import recipe_of
from supsup_paper.runs.environment import Environment
from supsup_paper.runs.figures import accuracy_figures, per_task
from supsup_paper.runs.schedule import PlannedTraining, Work

Make = Callable[[int], tuple[Baseline, Stream]]  # the baseline of a seed, and what it learns


def run_cifar_baselines(trial: PlannedTraining[SplitCifarBaselineExperiment], environment: Environment) -> Work:
    """One baseline, or both bounds from one training."""
    training = trial.experiment.training
    torch.backends.cudnn.benchmark = True

    def make(seed: int) -> tuple[Baseline, Stream]:
        return model_of(training, seed, environment.device), environment.cifar_stream(training.tasks, seed)

    yield from rows_of_seeds(trial, make, environment)


def rows_of_seeds(
    trial: PlannedTraining[SplitCifarBaselineExperiment] | PlannedTraining[ImagenetBoundsExperiment],
    make: Make,
    environment: Environment,
) -> Work:
    """The rows of all seeds, seed after seed or, where a seed's tasks follow each other, several of them in step."""
    waiting = trial.seeds
    while waiting:
        first = make(waiting[0])
        at_once = _seeds_at_once(*first)
        seeds, waiting = waiting[:at_once], waiting[at_once:]
        models, streams = zip(first, *map(make, seeds[1:]))
        begin = environment.clock()
        yield from _learning(models, streams)
        learning = (environment.clock() - begin) / len(seeds)
        for seed, model, stream in zip(seeds, models, streams):
            for row in _graded(trial.wanted, seed, model, stream, learning, environment):
                yield replace(row, at_once=len(seeds))


def _seeds_at_once(model: Baseline, stream: Stream) -> int:
    """A baseline whose tasks are independent has enough to do with those of one seed."""
    return 1 if model.independent else most_at_once(model, stream[0].train)


def _learning(models: Sequence[Baseline], streams: Sequence[Stream]) -> Iterator[int]:
    """Task after task, all models in step; tasks that are not equally large are learned one by one."""
    if len(models) == 1:
        yield from models[0].learning(streams[0])
        return
    for tasks in zip(*streams):
        if len({len(task.train) for task in tasks}) == 1:
            learn_side_by_side(models, tasks)
        else:
            for model, task in zip(models, tasks):
                model.learn(task)
        yield len(tasks)


def _graded(
    rows: Sequence[PlannedRow[SplitCifarBaselineExperiment | ImagenetBoundsExperiment]],
    seed: int,
    model: Baseline,
    stream: Stream,
    learning: float,
    environment: Environment,
) -> Iterator[RowResult]:
    """Rows of a baseline that has learned a stream in so many seconds."""
    for wanted in rows:
        graded_model = model
        if isinstance(model, UpperBound) and wanted.experiment.own.keep == "lower":
            graded_model = model.lower_bound()
        begin = environment.clock()
        graded = evaluate(graded_model, stream, "GG", stages=[len(stream)], show_progress=False, outputs="all")
        seconds = {"learning": learning, "grading": environment.clock() - begin}
        figures, each = accuracy_figures(wanted, graded), per_task(graded)
        yield RowResult(wanted, seed, figures, each, _sizes(graded_model), seconds)


def _sizes(model: Baseline) -> dict[str, int]:
    """The paper counts a head for each task, also where the released script trains a rank-one last layer."""
    if isinstance(model, BatchE) and model.last == "rank-one":
        return {"paper's count": model.bytes_with("head"), "vectors": model.bytes}
    return {"paper's count": model.bytes}


def model_of(training: CifarBaselineTraining, seed: int, device: torch.device) -> Baseline:
    """The baseline of a training; weights begin as in the released configurations."""
    slow, fast, fastest = (
        recipe_of(basic, training.batch_size, training.epochs, training.steps)
        for basic in (recipes.CIFAR_BASELINES, recipes.CIFAR_LATER, recipes.CIFAR_RANDOM)
    )
    net, filling = nets.gem_resnet18(outputs=5), recipes.CIFAR_FILLING

    def batche(base: BaseWeights, last: LastLayer, recipe: Recipe, first: Recipe | None = None) -> BatchE:
        return BatchE(net, seed, base=base, last=last, recipe=recipe, first=first, filling=filling, device=device)

    match training.method:
        case "batche":
            return batche("trained", "head", fast, slow)
        case "batche-random-rank-one":
            return batche("random", "rank-one", fastest)
        case "batche-random-heads":
            return batche("random", "head", fastest)
        case "heads":
            return SeparateHeads(net, seed, recipe=fast, first=slow, filling=filling, device=device)
        case "heads-random":
            return SeparateHeads(net, seed, trunk="random", recipe=fast, filling=filling, device=device)
        case "bounds":
            return UpperBound(net, seed, recipe=slow, filling=filling, device=device)
