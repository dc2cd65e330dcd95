"""The main job from end to end: learn a stream, answer with the task given and unknown, compare with forgetting."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from supsup import data, nets
from supsup.baselines import LowerBound
from supsup.data import Stream
from supsup.errors import SupSupError
from supsup.evaluate import Evaluation, evaluate, follow
from supsup.file.format import Header
from supsup.file.modelfile import ModelFile
from supsup.grading import Grading
from supsup.inference import Inference
from supsup.learner import SupSup, load
from supsup.provenance import provenance
from supsup.training import Recipe

NETS = {"lenet_300_100": nets.lenet_300_100, "fc_1024": nets.fc_1024}
STREAMS = ("permuted", "rotated", "split")


@dataclass(frozen=True)
class Settings:
    """What the demo does; the fields are the options of `supsup demo`."""

    data: str = "digits"
    data_dir: Path | None = None
    stream: str = "permuted"
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
    protocol: Grading = "paper"
    unannounced: bool = False
    hopfield: bool = False
    units: int = 1024
    strict: bool = True
    compare: bool = True
    device: str = "auto"


@dataclass(frozen=True)
class Line:
    """One learner's line in the closing table and its curve in the plot."""

    label: str
    evaluation: Evaluation
    seconds: float  # of learning
    from_file: int = 0  # tasks that were in the model file already and are not in the seconds


def run(settings: Settings, file: Path | None = None, *, fresh: bool = False) -> list[Line]:
    """Learn and grade; one line for each way of answering.

    file   the model file to learn into. What an earlier run with the same settings left there is not learned again.
           A run in which tasks are never announced starts from its first image and is written when it is done.
    fresh  start again, whatever the file holds
    """
    stream = make_stream(settings)
    recipe = Recipe(steps=settings.steps, batch_size=settings.batch_size)
    how = Inference(method=settings.method, objective=settings.objective, layers=settings.layers)  # type: ignore[arg-type]
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
    with load(file, in_place=True, device=settings.device) if file is not None else model as model:
        model.inference = how
        return _graded(settings, stream, model, file)


def _graded(settings: Settings, stream: Stream, model: SupSup, file: Path | None) -> list[Line]:
    stages = stages_up_to(len(stream))
    lines = []
    begin = time.perf_counter()
    if settings.unannounced:
        found = follow(model, stream, "NNs", protocol=settings.protocol, stages=stages, description="SupSup, NNs")
        lines.append(Line("SupSup, task never given", found, time.perf_counter() - begin))
        if file is not None:
            model.save(file)
    else:
        known = set(model.tasks)
        waiting = [task for task in stream if task.name not in known]
        if waiting:
            model.learn_many(waiting)
        seconds, there = time.perf_counter() - begin, len(stream) - len(waiting)
        lines.append(Line("SupSup, task given", evaluate(model, stream, "GG", stages=stages), seconds, there))
        unknown = evaluate(model, stream, "GNu", protocol=settings.protocol, stages=stages)
        lines.append(Line("SupSup, task unknown", unknown, seconds, there))
    if settings.strict:
        scenario = "NNs" if settings.unannounced else "GNu"
        strict = evaluate(model, stream, scenario, protocol="strict")
        lines.append(Line("… by each image alone", strict, lines[0].seconds, lines[0].from_file))
    if settings.compare:
        begin = time.perf_counter()
        rival = LowerBound(
            _net(settings, stream), settings.seed, heads="single", recipe=model.recipe, device=settings.device
        )
        forgot = follow(rival, stream, "GNs", stages=stages, description="ordinary network")
        lines.append(Line("ordinary network", forgot, time.perf_counter() - begin))
    return lines


def make_stream(settings: Settings) -> Stream:
    """The stream of tasks that the settings name."""
    source = data.named(settings.data, settings.data_dir)
    if settings.stream == "permuted":
        return data.permuted(source, settings.tasks, settings.seed)
    if settings.stream == "rotated":
        return data.rotated(source, settings.tasks)
    if settings.stream == "split":
        return data.split(source, settings.classes_per_task)
    raise SupSupError(f"unknown stream {settings.stream!r}; known: {', '.join(STREAMS)}")


def stages_up_to(tasks: int) -> list[int]:
    """At most 20 stages, evenly spaced, the last with all tasks."""
    count = min(tasks, 20)
    return sorted({round(tasks * (i + 1) / count) for i in range(count)})


def write_json(path: Path, settings: Settings, lines: list[Line], model_device: Any) -> None:
    """All figures of a run, with where they come from."""
    record = {
        "settings": {name: value for name, value in asdict(settings).items() if name != "data_dir"},
        "lines": {line.label: summary(line) for line in lines},
        "made by": provenance(model_device),
    }
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def summary(line: Line) -> dict[str, Any]:
    """A line's figures as plain values."""
    graded = line.evaluation
    return {
        "scenario": graded.scenario,
        "protocol": graded.protocol,
        "average_accuracy": round(graded.average_accuracy, 6),
        "task_accuracy": round(graded.task_accuracy, 6),
        "forgetting": round(graded.forgetting, 6),
        "masks": graded.masks,
        "learning_seconds": round(line.seconds, 2),
        "tasks_from_file": line.from_file,
        "curve": {stage: round(value, 6) for stage, value in zip(graded.stages, graded.curve)},
        "per_task": {name: round(value, 6) for name, value in graded.per_task.items()},
    }


def _check_same(model: SupSup, file: Path) -> None:
    """An error unless the masks in the file are those that these settings would give."""

    def essentials(header: Header) -> dict[str, Any]:
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
    here = essentials(model.state.header())
    differing = [key for key in here | there if here.get(key) != there.get(key)]
    if differing:
        was = ", ".join(f"{key} {there.get(key)} (now {here.get(key)})" for key in differing)
        raise SupSupError(
            f"{file} holds a run with other settings: {was}; go on with those, start again with --fresh, "
            "or use another file: --model FILE"
        )


def _net(settings: Settings, stream: Stream) -> nets.FullyConnected:
    if settings.net not in NETS:
        raise SupSupError(f"unknown network {settings.net!r}; known: {', '.join(NETS)}")
    if not len(stream):
        raise SupSupError("the stream has no tasks; ask for --tasks 1 or more")
    inputs = 1
    for size in stream[0].train.shape:
        inputs *= size
    return NETS[settings.net](outputs=settings.outputs, inputs=inputs)
