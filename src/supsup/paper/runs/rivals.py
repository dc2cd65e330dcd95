"""The rivals on MNIST: sequential ones task by task with several seeds in step, BatchE all tasks at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from supsup.baselines import PSP, SI, BatchE, OnlineEWC, TaskInference, UpperBound, learn_side_by_side
from supsup.baselines.rival import Rival
from supsup.data import Stream
from supsup.evaluate import Evaluation, evaluate
from supsup.grading import Known
from supsup.nets import FullyConnected
from supsup.paper.jobs import Job, Work
from supsup.paper.records import Finished, Wanted
from supsup.paper.runs.graded import figures_of, per_task, places
from supsup.paper.runs.plain_way import plain_rival
from supsup.paper.workshop import Workshop, net_of
from supsup.training import Recipe

Grade = Callable[[Rival, Stream], Evaluation]


class Curve:
    """What a rival was graded at each stage, for each seed."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self.percent: dict[int, dict[int, float]] = {seed: {} for seed in seeds}
        self.last: dict[int, Evaluation] = {}

    def add(self, seed: int, stage: int, graded: Evaluation) -> None:
        self.percent[seed][stage] = 100 * graded.average_accuracy
        self.last[seed] = graded

    def finished(self, wanted: Wanted, seed: int, size: int, seconds: dict[str, float]) -> Finished:
        values = self.percent[seed]
        figures = {"accuracy %": dict(zip(places(wanted, list(values)), values.values()))}
        return Finished(
            wanted, seed, figures, per_task(self.last[seed]), {"paper's count": size}, seconds, at_once=len(self.last)
        )


class Sequential:
    """All seeds in step, task after task, graded after each of the stages."""

    def __init__(self, models: Sequence[Rival], streams: Sequence[Stream], stages: Sequence[int]) -> None:
        self.models, self.streams, self.stages = models, streams, stages
        self.grading = 0.0
        self._begin = time.perf_counter()

    def run(self, grade: Callable[[int, int, Rival, Stream], None]) -> Iterator[int]:
        """grade(number of the model, tasks learned, model, tasks it knows)"""
        for count, tasks in enumerate(zip(*self.streams), 1):
            learn_side_by_side(self.models, tasks)
            if count in self.stages:
                begin = time.perf_counter()
                for number, (model, stream) in enumerate(zip(self.models, self.streams)):
                    grade(number, count, model, stream[:count])
                self.grading += time.perf_counter() - begin
            yield 1

    @property
    def seconds(self) -> dict[str, float]:
        """Each seed's share of the wall time so far; the device may have been shared with other trainings."""
        learning, seeds = time.perf_counter() - self._begin - self.grading, len(self.models)
        return {"learning": learning / seeds, "grading": self.grading / seeds}


def psp(job: Job, shop: Workshop) -> Work:
    """Parameter superposition with rotations."""
    recipe = Recipe(steps=job.training["steps"])
    models = [PSP(net_of(job.training), seed, recipe=recipe, device=shop.device) for seed in job.seeds]
    yield from _given(job, shop, models, lambda model, stream: evaluate(model, stream, "GG", show_progress=False))


def consolidation(job: Job, shop: Workshop) -> Work:
    """Online EWC or SI, class-incremental."""
    training = job.training
    how: dict[str, Any] = {"labels": "unshared", "device": shop.device, "strength": training["strength"]}
    how["recipe"] = Recipe("adam", 1e-4, steps=training["steps"], batch_size=training["batch size"])
    kind = OnlineEWC if training["method"] == "ewc" else SI
    models = [kind(net_of(training), seed, **how) for seed in job.seeds]

    def grade(model: Rival, stream: Stream) -> Evaluation:
        return evaluate(model, stream, "GNu", protocol="strict", show_progress=False)

    yield from _given(job, shop, models, grade)


def _given(job: Job, shop: Workshop, models: Sequence[Rival], grade: Grade) -> Work:
    streams = [shop.mnist_stream(job.training, seed) for seed in job.seeds]
    curve, work = Curve(job.seeds), Sequential(models, streams, job.training["stages"])
    yield from work.run(lambda i, count, model, stream: curve.add(job.seeds[i], count, grade(model, stream)))
    for wanted in job.wanted:
        for seed, model in zip(job.seeds, models):
            yield curve.finished(wanted, seed, model.bytes, work.seconds)


def bounds(job: Job, shop: Workshop) -> Work:
    """Upper and Lower Bound come from one training: the networks kept, and what is left of the last."""
    recipe = Recipe(steps=job.training["steps"])
    models = [UpperBound(net_of(job.training), seed, recipe=recipe, device=shop.device) for seed in job.seeds]
    streams = [shop.mnist_stream(job.training, seed) for seed in job.seeds]
    work = Sequential(models, streams, job.training["stages"])
    curves = {kept: Curve(job.seeds) for kept in {wanted.own["keep"] for wanted in job.wanted}}
    known = [Known() for _ in models]  # the networks kept do not change any more

    def grade(number: int, count: int, model: Rival, stream: Stream) -> None:
        for kept, curve in curves.items():
            answers = known[number] if kept == "upper" else None
            graded = evaluate(_kept(model, kept), stream, "GG", show_progress=False, known=answers)
            curve.add(job.seeds[number], count, graded)

    yield from work.run(grade)
    for wanted in job.wanted:
        kept = wanted.own["keep"]
        for seed, model in zip(job.seeds, models):
            yield curves[kept].finished(wanted, seed, _kept(model, kept).bytes, work.seconds)


def _kept(model: Rival, kept: str) -> Rival:
    assert isinstance(model, UpperBound)
    return model.lower_bound() if kept == "lower" else model


def batche(job: Job, shop: Workshop) -> Work:
    """BatchE with the task given, or inferred by One-Shot or ABatchE."""
    training, seed = job.training, job.seeds[0]
    stream = shop.mnist_stream(training, seed)
    recipe = Recipe("adam", 1e-2, steps=training["steps"], weight_decay=1e-4)
    how: dict[str, Any] = {"filling": "kaiming_normal", "device": shop.device}
    model = BatchE(net_of(training), seed, base=training.get("base", "trained"), recipe=recipe, **how)
    begin = shop.clock()
    model.learn_many(stream)
    learning = shop.clock() - begin
    plain = plain_rival(model, partial(_later_tasks, net_of(training), how), stream, shop)
    known = Known()
    for wanted in job.wanted:
        own, begin = wanted.own, shop.clock()
        if own["scenario"] != "GG":
            model.inference = TaskInference(own["method"], own["objective"], own.get("images"))
        grading: dict[str, Any] = {"protocol": own.get("protocol", "paper"), "stages": own["stages"], "known": known}
        graded = evaluate(model, stream, own["scenario"], **grading)
        seconds = {"learning": learning, "grading": shop.clock() - begin} | plain
        size = {"paper's count": model.bytes}
        yield Finished(wanted, seed, figures_of(wanted, graded), per_task(graded), size, seconds)


def _later_tasks(net: FullyConnected, how: dict[str, Any], recipe: Recipe) -> BatchE:
    """BatchE as it trains all tasks but the first: vectors only."""
    return BatchE(net, base="random", recipe=recipe, **how)
