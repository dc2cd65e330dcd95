"""The baselines on MNIST: sequential ones task by task with several seeds in step, BatchE all tasks at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from supsup.data import Stream
from supsup.evaluation.evaluator import Evaluation, evaluate
from supsup.evaluation.grading import GradingCache
from supsup.training import Recipe
from supsup_paper.baselines import PSP, SI, BatchE, OnlineEWC, TaskInference, UpperBound, learn_side_by_side
from supsup_paper.baselines.baseline import Baseline
from supsup_paper.catalogue import recipes
from supsup_paper.catalogue.experiments import (
    BatchEExperiment,
    BoundsExperiment,
    ConsolidationExperiment,
    Experiment,
    PSPExperiment,
)
from supsup_paper.records import PlannedRow, RowResult
from supsup_paper.runs.environment import Environment, net_of
from supsup_paper.runs.figures import accuracy_figures, axis_positions, per_task, plain_baseline
from supsup_paper.runs.schedule import PlannedTraining, Work

Grade = Callable[[Baseline, Stream], Evaluation]


class AccuracyCurve:
    """What a baseline was graded at each stage, for each seed."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self.percent: dict[int, dict[int, float]] = {seed: {} for seed in seeds}
        self.last: dict[int, Evaluation] = {}

    def add(self, seed: int, stage: int, graded: Evaluation) -> None:
        self.percent[seed][stage] = 100 * graded.average_accuracy
        self.last[seed] = graded

    def finished(self, wanted: PlannedRow[Experiment], seed: int, size: int, seconds: dict[str, float]) -> RowResult:
        values = self.percent[seed]
        figures = {"accuracy %": dict(zip(axis_positions(wanted, list(values)), values.values()))}
        return RowResult(
            wanted, seed, figures, per_task(self.last[seed]), {"paper's count": size}, seconds, at_once=len(self.last)
        )


class SequentialTraining:
    """All seeds in step, task after task, graded after each of the stages."""

    def __init__(self, models: Sequence[Baseline], streams: Sequence[Stream], stages: Sequence[int]) -> None:
        self.models, self.streams, self.stages = models, streams, stages
        self.grading = 0.0
        self._begin = time.perf_counter()

    def run(self, grade: Callable[[int, int, Baseline, Stream], None]) -> Iterator[int]:
        """Learn task after task; at each stage call grade(index of the model, tasks learned, model, tasks it knows)."""
        for count, tasks in enumerate(zip(*self.streams), 1):
            learn_side_by_side(self.models, tasks)
            if count in self.stages:
                begin = time.perf_counter()
                for number, (model, stream) in enumerate(zip(self.models, self.streams)):
                    grade(number, count, model, stream[:count])
                self.grading += time.perf_counter() - begin
            yield len(tasks)

    @property
    def seconds(self) -> dict[str, float]:
        """Each seed's share of the wall time so far; the device may have been shared with other trainings."""
        learning, seeds = time.perf_counter() - self._begin - self.grading, len(self.models)
        return {"learning": learning / seeds, "grading": self.grading / seeds}


def run_psp(trial: PlannedTraining[PSPExperiment], environment: Environment) -> Work:
    """Parameter superposition with rotations."""
    training = trial.experiment.training
    recipe = replace(recipes.MNIST, steps=training.steps)
    models = [PSP(net_of(training), seed, recipe=recipe, device=environment.device) for seed in trial.seeds]

    def grade(model: Baseline, stream: Stream) -> Evaluation:
        return evaluate(model, stream, "GG", show_progress=False, outputs="all")

    yield from _given(trial, environment, models, grade)


def run_consolidation(trial: PlannedTraining[ConsolidationExperiment], environment: Environment) -> Work:
    """Online EWC or SI, class-incremental."""
    training = trial.experiment.training
    recipe = replace(recipes.CONSOLIDATION, steps=training.steps, batch_size=training.batch_size)
    kind = OnlineEWC if training.method == "ewc" else SI
    models = [
        kind(
            net_of(training),
            seed,
            strength=training.strength,
            labels="unshared",
            recipe=recipe,
            device=environment.device,
        )
        for seed in trial.seeds
    ]

    def grade(model: Baseline, stream: Stream) -> Evaluation:
        return evaluate(model, stream, "GNu", protocol="strict", show_progress=False, outputs="all")

    yield from _given(trial, environment, models, grade)


def _given(
    trial: PlannedTraining[PSPExperiment] | PlannedTraining[ConsolidationExperiment],
    environment: Environment,
    models: Sequence[Baseline],
    grade: Grade,
) -> Work:
    training = trial.experiment.training
    streams = [environment.mnist_stream(training, seed) for seed in trial.seeds]
    curve, work = AccuracyCurve(trial.seeds), SequentialTraining(models, streams, training.stages)
    yield from work.run(lambda i, count, model, stream: curve.add(trial.seeds[i], count, grade(model, stream)))
    for wanted in trial.wanted:
        for seed, model in zip(trial.seeds, models):
            yield curve.finished(wanted, seed, model.bytes, work.seconds)


def run_bounds(trial: PlannedTraining[BoundsExperiment], environment: Environment) -> Work:
    """Upper and Lower Bound come from one training: the networks kept, and what is left of the last."""
    training = trial.experiment.training
    recipe = replace(recipes.MNIST, steps=training.steps)
    models = [UpperBound(net_of(training), seed, recipe=recipe, device=environment.device) for seed in trial.seeds]
    streams = [environment.mnist_stream(training, seed) for seed in trial.seeds]
    work = SequentialTraining(models, streams, training.stages)
    curves = {kept: AccuracyCurve(trial.seeds) for kept in {wanted.experiment.own.keep for wanted in trial.wanted}}
    known = [GradingCache() for _ in models]  # the networks kept do not change any more

    def grade(number: int, count: int, model: Baseline, stream: Stream) -> None:
        for kept, curve in curves.items():
            answers = known[number] if kept == "upper" else None
            graded = evaluate(_kept(model, kept), stream, "GG", show_progress=False, cache=answers, outputs="all")
            curve.add(trial.seeds[number], count, graded)

    yield from work.run(grade)
    for wanted in trial.wanted:
        kept = wanted.experiment.own.keep
        for seed, model in zip(trial.seeds, models):
            yield curves[kept].finished(wanted, seed, _kept(model, kept).bytes, work.seconds)


def _kept(model: Baseline, kept: str) -> Baseline:
    assert isinstance(model, UpperBound)
    return model.lower_bound() if kept == "lower" else model


def run_batche(trial: PlannedTraining[BatchEExperiment], environment: Environment) -> Work:
    """BatchE with the task given, or inferred by One-Shot or ABatchE."""
    training, seed = trial.experiment.training, trial.seeds[0]
    stream = environment.mnist_stream(training, seed)
    recipe = replace(recipes.BATCHE, steps=training.steps)
    net, device, filling = net_of(training), environment.device, recipes.BATCHE_FILLING
    model = BatchE(net, seed, base=training.base or "trained", recipe=recipe, filling=filling, device=device)
    begin = environment.clock()
    model.learn_many(stream)
    learning = environment.clock() - begin

    def later_tasks(recipe: Recipe) -> BatchE:
        """BatchE as it trains all tasks but the first: vectors only."""
        return BatchE(net, base="random", recipe=recipe, filling=filling, device=device)

    plain = plain_baseline(model, later_tasks, stream, environment)
    known = GradingCache()
    for wanted in trial.wanted:
        own, begin = wanted.experiment.own, environment.clock()
        if own.scenario != "GG":
            model.inference = TaskInference(own.method or "one-shot", own.objective or "H", own.images)
        graded = evaluate(
            model, stream, own.scenario, protocol=own.protocol or "paper", stages=own.stages, cache=known, outputs="all"
        )
        seconds = {"learning": learning, "grading": environment.clock() - begin} | plain
        size = {"paper's count": model.bytes}
        yield RowResult(wanted, seed, accuracy_figures(wanted, graded), per_task(graded), size, seconds)
