"""SupSup on permuted and rotated MNIST: one training, graded in every way that rows ask for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from supsup import nets
from supsup.data import Stream
from supsup.evaluate import evaluate
from supsup.grading import Known
from supsup.inference import Inference
from supsup.learner import SupSup
from supsup.paper.jobs import Job, Work
from supsup.paper.records import Finished, Wanted
from supsup.paper.runs.graded import figures_of, per_task
from supsup.paper.runs.plain_way import plain_way
from supsup.paper.runs.resuming import SoFar, living_in, not_learned
from supsup.paper.workshop import Workshop, net_of
from supsup.training import Recipe


def supsup(job: Job, shop: Workshop) -> Work:
    """Learn all tasks at once, then grade row after row."""
    seed = job.seeds[0]
    stream = shop.mnist_stream(job.training, seed)
    with _model(job, shop) as model:
        _compile(model, stream)
        begin = shop.clock()
        waiting = not_learned(model, stream)
        known = len(stream) - len(waiting)
        if waiting:
            model.learn_many(waiting)
        learning, plain = shop.clock() - begin, plain_way(model, stream, shop)
        size = {"masks": sum(-(-shape.numel() // 8) for shape in model.net.shapes.values()) * len(stream)}
        answers = Known()
        for wanted in job.wanted:
            begin = shop.clock()
            figures, each = _graded(wanted, model, stream, answers)
            seconds = {"learning": learning, "grading": shop.clock() - begin} | plain
            trace = {"tasks learned before an interruption": known} if known else {}
            yield Finished(wanted, seed, figures, each, size, seconds, trace)


def unannounced(job: Job, shop: Workshop) -> Work:
    """NNs: learn batch after batch without a word about tasks, graded on the way."""
    seed, stages = job.seeds[0], job.training["stages"]
    stream = shop.mnist_stream(job.training, seed)
    with _model(job, shop) as model:
        model.allocation = replace(model.allocation, **job.training.get("allocation", {}))
        so_far = SoFar(model, kept=shop.device.type == "cpu")
        before, begin = so_far.tasks, shop.clock()
        for stage in stages:
            if str(stage) not in so_far.figures or stage == stages[-1]:  # the last is graded for each task, too
                graded = yield from so_far.follow(stream[:stage])
                so_far.graded(stage, figures_of(job.wanted[0], graded))
        seconds = {"learning": shop.clock() - begin}
        figures: dict[str, dict[str, float]] = {}
        for found in so_far.figures.values():
            for figure, values in found.items():
                figures.setdefault(figure, {}).update(values)
        figures["masks opened"] = {str(len(stream)): float(graded.masks)}
        trace: dict[str, Any] = {"tasks learned before an interruption": before} if before else {}
        trace |= {"tasks that opened not one mask but": so_far.opened} if so_far.opened else {}
        for wanted in job.wanted:
            yield Finished(wanted, seed, figures, per_task(graded), seconds=seconds, trace=trace)


def _graded(
    wanted: Wanted, model: SupSup, stream: Stream, known: Known
) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    own = wanted.own
    how: dict[str, Any] = {name: own[name] for name in ("objective", "layers")}
    grading: dict[str, Any] = {"protocol": own["protocol"], "stages": own["stages"], "known": known}
    if "gammas" not in own:
        model.inference = Inference(own["method"], **how)
        graded = evaluate(model, stream, own["scenario"], **grading)
        return figures_of(wanted, graded), per_task(graded)
    figures: dict[str, dict[str, float]] = {}
    for asked in own["gammas"]:
        gamma = 1 / len(stream) if asked == "1/k" else asked
        model.inference = replace(Inference(own["method"], **how), gamma=gamma)
        graded = evaluate(model, stream, own["scenario"], **grading)
        for figure, values in figures_of(wanted, graded).items():
            figures.setdefault(figure, {})[f"{gamma:.4g}"] = list(values.values())[-1]
    return figures, per_task(graded)


def _new_model(job: Job, shop: Workshop) -> SupSup:
    recipe = Recipe(steps=job.training["steps"])
    return SupSup(net_of(job.training), job.seeds[0], recipe=recipe, device=shop.device)


@contextmanager
def _model(job: Job, shop: Workshop) -> Iterator[SupSup]:
    """The model of a job. On a CPU, where learning takes long, it lives in a file until all rows are there, so that an
    interrupted job goes on at the task where it was."""
    model = _new_model(job, shop)
    if shop.device.type != "cpu":
        yield model
        return
    model.notes = {"training": {key: value for key, value in job.training.items() if key != "tasks"}}
    file = job.wanted[0].path(job.seeds[0]).with_suffix(".supsup")
    with living_in(file, model) as kept:
        yield kept
    file.unlink()


def _compile(model: SupSup, stream: Stream) -> None:
    """Make the kernels before the clock starts."""
    if model.device.type == "cuda":
        trial = SupSup(nets.FullyConnected(_widths(model)), recipe=model.recipe, device=model.device)
        trial.learn_many(stream[:2], show_progress=False)


def _widths(model: SupSup) -> list[int]:
    shapes: list[torch.Size] = list(model.net.shapes.values())
    return [shapes[0][1], *(shape[0] for shape in shapes)]
