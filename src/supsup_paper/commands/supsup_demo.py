"""`supsup demo`: learn a stream, answer with the task given and unknown, compare with a network that forgets."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from supsup import data, nets
from supsup.cli.inspect import example_images, record_outcome
from supsup.data import Stream
from supsup.evaluation.evaluator import Evaluation, evaluate, learn_and_evaluate
from supsup.evaluation.grading import GradingProtocol
from supsup.file.header import Header
from supsup.file.modelfile import ModelFile
from supsup.inference.settings import Inference
from supsup.model.state import state_of
from supsup.model.supsup import SupSup
from supsup.runtime.errors import SupSupError
from supsup.training import Recipe
from supsup_paper.baselines import LowerBound
from supsup_paper.provenance import provenance

NETS = {"lenet_300_100": nets.lenet_300_100, "fc_1024": nets.fc_1024}
GIVEN, UNKNOWN, ORDINARY = "SupSup, task given", "SupSup, task unknown", "ordinary network"
STREAMS = ("drawn", "permuted", "rotated", "split")


@dataclass(frozen=True)
class DemoSettings:
    """The options of `supsup demo` that say what is learned and how it is graded."""

    data: str = "digits"
    data_dir: Path | None = None
    stream: str = "drawn"
    tasks: int = 20
    classes_per_task: int = 2
    net: str = "lenet_300_100"
    outputs: int = 100
    steps: int = 500
    batch_size: int = 128
    seed: int = 0
    method: str = "one-shot"
    objective: str = "H"
    layers: str = "all"
    protocol: GradingProtocol = "paper"
    unannounced: bool = False
    hopfield: bool = False
    units: int = 1024
    strict: bool = True
    compare: bool = True
    device: str = "auto"


@dataclass(frozen=True)
class DemoResult:
    """How one way of answering did: a row of the closing table and a curve of the plot."""

    label: str
    evaluation: Evaluation
    seconds: float  # of learning
    from_file: int = 0  # tasks that were in the model file already and are not in the seconds


def run_demo(settings: DemoSettings, file: Path | None = None, *, fresh: bool = False) -> list[DemoResult]:
    """Learn and grade; one result for each way of answering.

    file   the model file to learn into. What an earlier run with the same settings left there is not learned again.
           A run in which tasks are never announced starts from its first image and is written when it is done.
    fresh  start again, whatever the file holds
    """
    stream = make_stream(settings)
    recipe = Recipe(steps=settings.steps, batch_size=settings.batch_size)
    how = Inference(method=settings.method, objective=settings.objective, layers=settings.layers)
    net = _net(settings, stream)
    model = SupSup(net, settings.seed, recipe=recipe, inference=how, device=settings.device)
    model.notes = {"data": settings.data, "stream": settings.stream, "announced": not settings.unannounced}
    if settings.stream == "split":
        model.notes["classes per task"] = settings.classes_per_task
    if file is not None and file.exists() and not fresh:
        _check_same(model, file)
    elif file is not None:
        model.save(file)
    if settings.unannounced:
        return _graded(settings, stream, model, file)
    with SupSup.load(file, in_place=True, device=settings.device) if file is not None else model as model:
        model.inference = how
        return _graded(settings, stream, model, file)


def _graded(settings: DemoSettings, stream: Stream, model: SupSup, file: Path | None) -> list[DemoResult]:
    stages = stages_up_to(len(stream))
    results = []
    begin = time.perf_counter()
    if settings.unannounced:
        graded = learn_and_evaluate(
            model, stream, "NNs", protocol=settings.protocol, stages=stages, description="SupSup, NNs"
        )
        results.append(DemoResult("SupSup, task never given", graded, time.perf_counter() - begin))
        if file is not None:
            model.save(file)
    else:
        known = set(model.tasks)
        waiting = [task for task in stream if task.name not in known]
        if waiting:
            model.learn_many(waiting)
        seconds, from_file = time.perf_counter() - begin, len(stream) - len(waiting)
        given = evaluate(model, stream, "GG", stages=stages)
        results.append(DemoResult(GIVEN, given, seconds, from_file))
        for task in stream:
            record_outcome(model, task.name, len(task.train), given.per_task[task.name], example_images(task))
        if file is not None:
            model.save()
        unknown = evaluate(model, stream, "GNu", protocol=settings.protocol, stages=stages)
        results.append(DemoResult(UNKNOWN, unknown, seconds, from_file))
    if settings.strict:
        scenario = "NNs" if settings.unannounced else "GNu"
        strict = evaluate(model, stream, scenario, protocol="strict")
        results.append(DemoResult("… by each image alone", strict, results[0].seconds, results[0].from_file))
    if settings.compare:
        begin = time.perf_counter()
        rival = LowerBound(
            _net(settings, stream),
            settings.seed,
            heads="single",
            recipe=state_of(model).settings.stepwise,
            device=settings.device,
        )
        forgot = learn_and_evaluate(rival, stream, "GNs", stages=stages, description="ordinary network")
        results.append(DemoResult(ORDINARY, forgot, time.perf_counter() - begin))
    return results


def make_stream(settings: DemoSettings) -> Stream:
    """The stream of tasks that the settings name."""
    source = data.named(settings.data, settings.data_dir)
    if settings.stream == "drawn":
        return _drawn(source, settings.tasks, settings.seed)
    if settings.stream == "permuted":
        return data.permuted(source, settings.tasks, settings.seed)
    if settings.stream == "rotated":
        return data.rotated(source, settings.tasks)
    if settings.stream == "split":
        return data.split(source, settings.classes_per_task)
    raise SupSupError(f"unknown stream {settings.stream!r}; known: {', '.join(STREAMS)}")


def _drawn(source: data.Source, tasks: int, seed: int) -> Stream:
    """The images as they are, which can be drawn on the page of the model, then permutations of their pixels."""
    scrambled, whole = data.permuted(source, max(tasks, 1), seed), data.split(source, source.classes)

    def make(index: int) -> data.Task:
        return scrambled[index] if index else replace(whole[0], name=f"{source.name} as drawn")

    return Stream(f"drawn-{source.name}", make, range(tasks))


def stages_up_to(tasks: int) -> list[int]:
    """At most 20 stages, evenly spaced, the last with all tasks."""
    count = min(tasks, 20)
    return sorted({round(tasks * (i + 1) / count) for i in range(count)})


def in_words(results: list[DemoResult]) -> str:
    """What was shown, from what was measured."""
    graded = {result.label: result.evaluation for result in results}
    if GIVEN not in graded:
        return ""
    given, unknown = graded[GIVEN], graded[UNKNOWN]
    lost = 100 * given.forgetting
    kept = "none forgotten" if not round(lost, 2) > 0 else f"{lost:.2f} points of accuracy lost since"
    said = (
        f"{len(given.per_task)} tasks were learned on one frozen network, {kept}. With the task given "
        f"{100 * given.average_accuracy:.1f} % of the answers are right. With the task unknown it is found in "
        f"{100 * unknown.task_accuracy:.1f} % of the cases, and {100 * unknown.average_accuracy:.1f} % are right."
    )
    if ORDINARY in graded:
        rival = 100 * graded[ORDINARY].average_accuracy
        said += f" An ordinary network that learned the same tasks one after the other kept {rival:.1f} %."
    return said


def write_json(path: Path, settings: DemoSettings, results: list[DemoResult], device: torch.device) -> None:
    """All figures of a run, with where they come from."""
    record = {
        "settings": {name: value for name, value in asdict(settings).items() if name != "data_dir"},
        "lines": {result.label: summary(result) for result in results},
        "made by": provenance(device),
    }
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def summary(result: DemoResult) -> dict[str, object]:
    """A result's figures as plain values."""
    graded = result.evaluation
    return {
        "scenario": graded.scenario,
        "protocol": graded.protocol,
        "average_accuracy": round(graded.average_accuracy, 6),
        "task_accuracy": round(graded.task_accuracy, 6),
        "forgetting": round(graded.forgetting, 6),
        "masks": graded.masks,
        "learning_seconds": round(result.seconds, 2),
        "tasks_from_file": result.from_file,
        "curve": {stage: round(value, 6) for stage, value in zip(graded.stages, graded.curve)},
        "per_task": {name: round(value, 6) for name, value in graded.per_task.items()},
    }


def _check_same(model: SupSup, file: Path) -> None:
    """An error unless the masks in the file are those that these settings would give."""

    def essentials(header: Header) -> dict[str, object]:
        network = header.architecture or {}
        return {
            "net": network.get("name"),
            **network.get("arguments", {}),
            "seed": header.seed,
            **header.recipe,
            **header.notes,
        }

    with ModelFile(file) as existing:
        there = essentials(existing.header)
    here = essentials(state_of(model).header())
    differing = [key for key in here | there if here.get(key) != there.get(key)]
    if differing:
        was = ", ".join(f"{key} {there.get(key)} (now {here.get(key)})" for key in differing)
        raise SupSupError(
            f"{file} holds a run with other settings: {was}; go on with those, start again with --fresh, "
            "or use another file: --model FILE"
        )


def _net(settings: DemoSettings, stream: Stream) -> nets.FullyConnected:
    if settings.net not in NETS:
        raise SupSupError(f"unknown network {settings.net!r}; known: {', '.join(NETS)}")
    if not len(stream):
        raise SupSupError("the stream has no tasks; ask for --tasks 1 or more")
    return NETS[settings.net](outputs=settings.outputs, inputs=math.prod(stream[0].train.shape))
