"""`supsup demo`: learn a stream of tasks, classify with the task given and unknown, compare with ordinary training.

With --hopfield all masks are kept in one Hopfield memory, and each is recovered from images alone.
"""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, cast

import torch
from rich.console import Console
from typer import Option

from supsup import data as data_sets
from supsup import nets
from supsup.cli.console import confirm, escape_for_terminal, interruptible, is_interactive, print_table, say
from supsup.cli.inspect import example_images, record_outcome
from supsup.data import Stream
from supsup.evaluation.evaluator import Evaluation, evaluate, learn_and_evaluate
from supsup.evaluation.grading import GradingProtocol
from supsup.file.header import Header
from supsup.file.modelfile import ModelFile
from supsup.hopfield.learner import KIND, HopSupSup
from supsup.hopfield.units import UnitRecipe
from supsup.inference.methods import METHODS, Inference
from supsup.model.state import state_of
from supsup.model.supsup import SupSup
from supsup.runtime.devices import resolve
from supsup.runtime.errors import SupSupError
from supsup.training import Recipe
from supsup_paper.baselines import LowerBound
from supsup_paper.provenance import provenance
from supsup_paper.report import accuracy_plot, closing_table, recovery_plot, recovery_table, write_text
from supsup_paper.report.plots import MatplotlibMissing
from supsup_paper.runs.hopfield import HopfieldResult, learn_and_recover

NETS = {"lenet_300_100": nets.lenet_300_100, "fc_1024": nets.fc_1024}
GIVEN, UNKNOWN, ORDINARY = "SupSup, task given", "SupSup, task unknown", "ordinary network"
STREAMS = ("drawn", "permuted", "rotated", "split")
PROCEDURES = ("paper", "best-of")
_IMAGES = 12_000  # of a task in the paper's SplitMNIST, seen in one epoch; smaller tasks are trained for more epochs


@dataclass(frozen=True)
class DemoSettings:
    """The options of `supsup demo` that choose what is learned and how it is evaluated."""

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
    """One way to classify: a row of the table and a line of the plot."""

    label: str
    evaluation: Evaluation
    seconds: float  # of learning
    from_file: int = 0  # tasks that were in the model file already; not part of the seconds


_DEFAULT = DemoSettings()


def demo(
    data: Annotated[str, Option(help=f"Data set: {', '.join(data_sets.SOURCES)}.")] = _DEFAULT.data,
    data_dir: Annotated[
        Path | None, Option(envvar="SUPSUP_DATA", help="Folder with data sets (holding mnist/, fashion_mnist/ …).")
    ] = None,
    stream: Annotated[str, Option(help=f"How tasks are made: {', '.join(STREAMS)}.")] = _DEFAULT.stream,
    tasks: Annotated[int, Option(help="Number of tasks (drawn, permuted and rotated).")] = _DEFAULT.tasks,
    classes_per_task: Annotated[int, Option(help="Classes in each task (split).")] = _DEFAULT.classes_per_task,
    net: Annotated[str, Option(help=f"Network: {', '.join(NETS)}.")] = _DEFAULT.net,
    outputs: Annotated[int, Option(help="Outputs of the network; more outputs than classes help task inference.")] = (
        _DEFAULT.outputs
    ),
    steps: Annotated[int, Option(help="Training batches for each task.")] = _DEFAULT.steps,
    batch_size: Annotated[int, Option(help="Images in a training batch.")] = _DEFAULT.batch_size,
    seed: Annotated[int, Option(help="Seed of weights, scores, batches and permutations.")] = _DEFAULT.seed,
    method: Annotated[str, Option(help=f"Task inference: {', '.join(METHODS)}.")] = _DEFAULT.method,
    objective: Annotated[str, Option(help="Objective that inference minimises: H, G or M.")] = _DEFAULT.objective,
    layers: Annotated[str, Option(help="Layers whose gradient is used: all, first, last.")] = _DEFAULT.layers,
    protocol: Annotated[
        str, Option(help="What the task of a test batch is inferred from: paper (one image) or paper-full-batch (all).")
    ] = _DEFAULT.protocol,
    unannounced: Annotated[bool, Option("--unannounced", help="Hide task boundaries, in training too (NNs).")] = (
        _DEFAULT.unannounced
    ),
    hopfield: Annotated[
        bool, Option("--hopfield", help="Keep all masks in one Hopfield memory (HopSupSup; classes are split).")
    ] = _DEFAULT.hopfield,
    units: Annotated[int, Option(help="Hidden units in each layer (--hopfield; the paper has 2048).")] = _DEFAULT.units,
    strict: Annotated[bool, Option(help="Also infer the task of every image on its own.")] = _DEFAULT.strict,
    compare: Annotated[bool, Option(help="Also train an ordinary network on the same tasks.")] = _DEFAULT.compare,
    device: Annotated[str, Option(help="auto, cpu or cuda.")] = _DEFAULT.device,
    out: Annotated[Path, Option(help="Folder for the plot, the figures (JSON) and the model.")] = Path("runs"),
    name: Annotated[
        str | None, Option(help="Base name of the files there.", show_default="demo, or hopfield with --hopfield")
    ] = None,
    model: Annotated[
        Path | None,
        Option(help="Model file to learn into; an interrupted run resumes from it.", show_default="OUT/NAME.supsup"),
    ] = None,
    fresh: Annotated[bool, Option("--fresh", help="Start again and replace the model file.")] = False,
    yes: Annotated[bool, Option("--yes", "-y", help="With --fresh: replace without confirmation.")] = False,
) -> None:
    """Learn a stream of tasks on one frozen network and test it.

    Prints a table and writes a plot (accuracy against tasks learned), a JSON file of all figures and the model.
    Run the same command again to resume an interrupted run; --fresh replaces an existing model file, and asks first
    on a terminal.
    The default data are 5,000 real MNIST digits that need no download: pip install 'supsup[demo]'.
    """
    settings = DemoSettings(
        data=data,
        data_dir=data_dir,
        stream=stream,
        tasks=tasks,
        classes_per_task=classes_per_task,
        net=net,
        outputs=outputs,
        steps=steps,
        batch_size=batch_size,
        seed=seed,
        method=method,  # Inference refuses unknown methods, evaluate unknown protocols
        objective=objective,
        layers=layers,
        protocol=cast(GradingProtocol, protocol),
        unannounced=unannounced,
        hopfield=hopfield,
        units=units,
        strict=strict,
        compare=compare,
        device=device,
    )
    out.mkdir(parents=True, exist_ok=True)
    name = name or ("hopfield" if hopfield else "demo")
    file = model or out / f"{name}.supsup"
    if fresh and file.is_file():
        confirm(f"Replace the model in {file}?", yes or not is_interactive())  # in a script --fresh is enough
    if hopfield:
        _hopfield(settings, file, out / f"{name}.json", out / f"{name}.svg", fresh)
        return
    kept = f"learned tasks are in {file}; run the same command without --fresh to resume"
    with interruptible(
        "unannounced tasks are saved at the end, so nothing was saved; start again" if unannounced else kept
    ):
        results = run_demo(settings, file, fresh=fresh)
    title = f"{settings.tasks} tasks ({settings.stream} {settings.data}), {settings.net}"
    plot, figures = out / f"{name}.svg", out / f"{name}.json"
    write_json(figures, settings, results, resolve(device))
    curves = {result.label: dict(zip(result.evaluation.stages, result.evaluation.curve)) for result in results}
    drawn = _write_plot(plot, partial(accuracy_plot, title, curves))
    print_table(closing_table(title, {result.label: (result.evaluation, result.seconds) for result in results}))
    if settings.unannounced:
        graded = results[0].evaluation
        say(f"{graded.masks} masks were opened for {len(graded.per_task)} tasks.")
    if results[0].from_file:
        say(
            f"{results[0].from_file} of the tasks were in {escape_for_terminal(file)} already "
            "and were not learned again."
        )
    Console().print(in_words(results), highlight=False)
    say(f"{drawn}   figures: {escape_for_terminal(figures)}   model: {escape_for_terminal(file)}")
    if not settings.unannounced:
        hint = " draw a digit on it" if settings.stream == "drawn" else " see how the masks score on it"
        command = f"supsup serve {escape_for_terminal(shlex.quote(str(file)))}"
        say(f"Next: [bold]{command}[/] opens the model as a page;{hint}.")


def _hopfield(settings: DemoSettings, file: Path, figures: Path, plot: Path, fresh: bool) -> None:
    with interruptible("the memory is saved when all tasks are in it, so nothing was saved; start again"):
        experiment = run_and_save(settings, file, figures, fresh=fresh)
    title = f"Hopfield recovery, {settings.data} split by {settings.classes_per_task}"
    traces = (trace.tolist() for trace in experiment.recovered["best-of"].traces)
    drawn = _write_plot(plot, partial(recovery_plot, title, dict(zip(experiment.tasks, traces))))
    print_table(recovery_table(title, experiment))
    size = experiment.memory_bytes[-1]
    say(f"Ψ and μ take {size:,} bytes, after the first task and after the last.")
    say(f"{drawn}   figures: {escape_for_terminal(figures)}   model: {escape_for_terminal(file)}")


def _write_plot(path: Path, draw: Callable[[], str]) -> str:
    """Write a plot; returns where it is, or why there is none, for the terminal."""
    try:
        write_text(path, draw())
    except MatplotlibMissing as error:
        return f"no plot ({escape_for_terminal(error)})"
    return f"plot: {escape_for_terminal(path)}"


def run_demo(settings: DemoSettings, file: Path | None = None, *, fresh: bool = False) -> list[DemoResult]:
    """Learn and evaluate; one result for each way to classify.

    file   model file to learn into; tasks that it holds from a run with the same settings are not learned again.
           A run without task boundaries always starts from its first image and is saved at the end.
    fresh  start again and replace the file
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
        baseline = LowerBound(
            _net(settings, stream),
            settings.seed,
            heads="single",
            recipe=model.recipe.stepwise,
            device=settings.device,
        )
        forgot = learn_and_evaluate(baseline, stream, "GNs", stages=stages, description="ordinary network")
        results.append(DemoResult(ORDINARY, forgot, time.perf_counter() - begin))
    return results


def make_stream(settings: DemoSettings) -> Stream:
    """The stream of tasks chosen by the settings."""
    source = data_sets.named(settings.data, settings.data_dir)
    if settings.stream == "drawn":
        return _drawn(source, settings.tasks, settings.seed)
    if settings.stream == "permuted":
        return data_sets.permuted(source, settings.tasks, settings.seed)
    if settings.stream == "rotated":
        return data_sets.rotated(source, settings.tasks)
    if settings.stream == "split":
        return data_sets.split(source, settings.classes_per_task)
    raise SupSupError(f"unknown stream {settings.stream!r}; known: {', '.join(STREAMS)}")


def _drawn(source: data_sets.Source, tasks: int, seed: int) -> Stream:
    """First the images as they are, which users can draw on the model's page, then permutations of their pixels."""
    scrambled, whole = data_sets.permuted(source, max(tasks, 1), seed), data_sets.split(source, source.classes)

    def make(index: int) -> data_sets.Task:
        return scrambled[index] if index else replace(whole[0], name=f"{source.name} as drawn")

    return Stream(f"drawn-{source.name}", make, range(tasks))


def stages_up_to(tasks: int) -> list[int]:
    """At most 20 stages, evenly spaced, the last with all tasks."""
    count = min(tasks, 20)
    return sorted({round(tasks * (i + 1) / count) for i in range(count)})


def in_words(results: list[DemoResult]) -> str:
    """The results in a few sentences."""
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
        baseline = 100 * graded[ORDINARY].average_accuracy
        said += f" An ordinary network that learned the same tasks one after the other kept {baseline:.1f} %."
    return said


def write_json(path: Path, settings: DemoSettings, results: list[DemoResult], device: torch.device) -> None:
    """Write all figures of a run, with their provenance."""
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
    """Raise an error unless the file was made with the same settings."""

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


def split_stream(settings: DemoSettings) -> Stream:
    """The classes of the data, a few per task."""
    if settings.unannounced:
        raise SupSupError("--hopfield needs task boundaries in training; leave out --unannounced")
    return data_sets.split(data_sets.named(settings.data, settings.data_dir), settings.classes_per_task)


def new_hopfield_model(settings: DemoSettings, stream: Stream) -> HopSupSup:
    """A new model whose network has an output for every class of the stream."""
    outputs = sum(task.classes for task in stream)
    inputs = math.prod(stream[0].train.shape)
    epochs = max(1, round(_IMAGES / len(stream[0].train)))
    net = nets.HopMLP((inputs, settings.units, settings.units, outputs))
    model = HopSupSup(net, settings.seed, recipe=UnitRecipe(epochs=epochs), device=settings.device)
    model.notes = {"data": settings.data, "classes per task": settings.classes_per_task}
    return model


def _check_same_hopfield(model: HopSupSup, file: Path) -> None:
    """Raise an error unless the file was made with the same settings."""
    with ModelFile(file) as there:
        same = there.header.kind == KIND and there.header.seed == model.seed and there.header.notes == model.notes
        same = same and there.header.weights == model.net.checksum and there.header.recipe == asdict(model.recipe)
    if not same:
        raise SupSupError(
            f"{file} holds another model, which would be replaced; use another file (--model FILE), "
            "or start again with --fresh"
        )


def run_and_save(settings: DemoSettings, file: Path, figures: Path, *, fresh: bool = False) -> HopfieldResult:
    """Learn, recover and evaluate; write the model and all figures to files.

    fresh  replace any model in the file; without it, only one with the same settings is replaced
    """
    stream = split_stream(settings)
    model = new_hopfield_model(settings, stream)
    if file.is_file() and not fresh:
        _check_same_hopfield(model, file)
    experiment = learn_and_recover([model], stream, PROCEDURES)
    model.save(file)
    record = {
        "tasks": experiment.tasks,
        "units": settings.units,
        "masks as learned": experiment.own.summary(),
        **{name: outcome.summary() for name, outcome in experiment.recovered.items()},
        "learning seconds": round(experiment.learning_seconds, 2),
        "bytes of Ψ and μ after each task": experiment.memory_bytes,
        "made by": provenance(model.device),
    }
    figures.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return experiment
