"""`supsup bench train|infer|masking|memory`: ours, the plain way and the floor, as a table, a JSON and a plot."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from typer import Option

from supsup import data, nets
from supsup.cli.console import column_widths, interruptible, print_table
from supsup.cli.networks import KNOWN, network_from_name
from supsup.data import Stream
from supsup.inference.methods import Inference
from supsup.model.supsup import SupSup
from supsup.runtime.devices import resolve
from supsup.training import MNIST, SPLIT_CIFAR100, Recipe
from supsup_paper.bench import (
    bench_growth,
    bench_inference,
    bench_masking,
    bench_memory,
    bench_training,
    bench_unannounced,
    learned,
    measure_machine,
    warmed_up,
)
from supsup_paper.bench.inference import InferenceMeasurement, single_images
from supsup_paper.bench.measurement import as_record
from supsup_paper.provenance import provenance
from supsup_paper.report import search_plot, time_plot, write_text

app = typer.Typer(help="Measure speed and memory on this machine.", no_args_is_help=True)

Net = Annotated[str, Option(help=f"Network: {', '.join(KNOWN)}, or your own as module:function.")]
Outputs = Annotated[int, Option(min=1, help="Outputs of the network.")]
Counts = Annotated[str, Option(help="Numbers of tasks, separated by commas.")]
Steps = Annotated[int, Option(min=1, help="Training batches of 128 for each task.")]
Data = Annotated[str, Option("--data", help=f"Data set: {', '.join(data.SOURCES)}.")]
DataDir = Annotated[Path | None, Option(envvar="SUPSUP_DATA", help="Folder with data sets.")]
Device = Annotated[str, Option(help="auto, cpu or cuda.")]
Json = Annotated[Path | None, Option("--json", help="Write the figures to this file, and a plot beside it.")]
JsonAlone = Annotated[Path | None, Option("--json", help="Write the figures to this file.")]

_INTERRUPTED = "figures are written at the end, so nothing was written; start again"
RECIPES = {"mnist": MNIST, "split-cifar100": SPLIT_CIFAR100}
_IMAGES = {"resnet50": (3, 224, 224), "gem_resnet18": (3, 32, 32), "lenet_300_100": (1, 28, 28), "fc_1024": (1, 28, 28)}


@app.command()
@interruptible(_INTERRUPTED)
def train(
    net: Net = "lenet_300_100",
    outputs: Outputs = 500,
    tasks: Counts = "1,4,16",
    steps: Steps = 200,
    recipe: Annotated[str, Option(help=f"How a mask is trained: {', '.join(RECIPES)}.")] = "mnist",
    unannounced: Annotated[bool, Option("--unannounced", help="Hide task boundaries in training (NNs).")] = False,
    data_set: Data = "digits",
    data_dir: DataDir = None,
    device: Device = "auto",
    json_file: Json = None,
) -> None:
    """Training: seconds for all tasks with data included, per task and step, against plain autograd and the floor."""
    if recipe not in RECIPES:
        raise typer.BadParameter(f"unknown recipe {recipe!r}; known: {', '.join(RECIPES)}")
    chosen, counts = resolve(device), _numbers(tasks)
    stream = _stream(data_set, data_dir, max(counts))
    how, machine = replace(RECIPES[recipe], epochs=None, steps=steps), measure_machine(chosen)
    context = {"net": net, "outputs": outputs, "device": device, "recipe": recipe, "machine": vars(machine)}
    if unannounced:
        stages = sorted({max(1, round(max(counts) * part / 5)) for part in range(1, 6)})
        measured, _ = bench_unannounced(network_from_name(net, outputs), stream, how, machine, chosen, stages)
        _show("training, tasks unannounced", [as_record(measured)], json_file, context, chosen)
        return
    rows = bench_training(network_from_name(net, outputs), stream, counts, how, machine, chosen)
    records = [as_record(row) for row in rows]
    _show("training", records, json_file, context, chosen)
    if json_file is not None:
        title = f"{net.rpartition(':')[2]}, {outputs} outputs, {steps} batches a task"
        write_text(json_file.with_suffix(".svg"), time_plot(title, records))


@app.command()
@interruptible(_INTERRUPTED)
def infer(
    net: Net = "lenet_300_100",
    outputs: Outputs = 500,
    tasks: Counts = "250",
    steps: Steps = 30,
    images: Annotated[int, Option(min=1, help="Number of test images, spread over all tasks.")] = 1000,
    batch: Annotated[int, Option(min=1, help="Batch size.")] = 1024,
    coordinates: Annotated[int, Option(min=1, help="Coordinates that the short search reads.")] = 16384,
    data_set: Data = "digits",
    data_dir: DataDir = None,
    device: Device = "auto",
    search_device: Annotated[str | None, Option(help="Device for the search, if not the training device.")] = None,
    model_file: Annotated[
        Path | None, Option("--model", help="Search in this model file (permutations of the data set, seed 0).")
    ] = None,
    json_file: Json = None,
) -> None:
    """Task inference from single images: exact and from few coordinates, against plain autograd and the floor.

    Learning the masks and grading the images are timed too. With --search-device the times of a search are that
    device's; the exact answers, which are many, come from the device that trains. With --model nothing is learned.
    Several numbers of tasks show how the time of a lone image grows; what a model file has too few of, is random.
    """
    if len(counts := _numbers(tasks)) > 1:
        _growth(
            net, outputs, counts, steps, images, coordinates, data_set, data_dir, resolve(device), model_file, json_file
        )
        return
    learns, place = resolve(device), resolve(search_device or device)
    machine = measure_machine(place)
    rows: list[InferenceMeasurement] = []
    recipe = Recipe(steps=steps)
    settings = {
        "exact, all layers, H": Inference(),
        "exact, all layers, G": Inference(objective="G"),
        "exact, first layer, H": Inference(layers="first"),
        "exact, first layer, G": Inference(layers="first", objective="G"),
        "few coordinates, all layers, H": Inference(coordinates=coordinates),
        "few coordinates, first layer, H": Inference(layers="first", coordinates=coordinates),
    }
    if model_file is not None:
        model = SupSup.load(model_file, device=place)
        stream, steps = _stream(data_set, data_dir, len(model.tasks)), model.recipe.stepwise.steps
        if model.tasks != [task.name for task in stream]:
            raise typer.BadParameter(f"{model_file} does not hold the tasks permutation-0, permutation-1, … in order")
        x, names = single_images(stream, images)
        rows = bench_inference(model, x.to(place), names, machine, settings, batch)
    for count in counts if model_file is None else []:
        stream = _stream(data_set, data_dir, count)
        warmed_up(network_from_name(net, outputs), stream, recipe, learns)
        trained, taken = learned(network_from_name(net, outputs), stream, recipe, learns)
        model = trained if trained.device == place else trained.to(place)
        x, names = single_images(stream, images)
        measured = bench_inference(model, x.to(place), names, machine, settings, batch, grader=trained)
        rows += [row.after_learning(taken) for row in measured]
    context = {"net": net, "outputs": outputs, "steps": steps, "images": images, "device": str(place)}
    context |= {"learned_on": learns.type, "machine": vars(machine)}
    _show("task inference", [as_record(row) for row in rows], json_file, context, place)


@app.command()
@interruptible(_INTERRUPTED)
def memory(
    net: Net = "lenet_300_100",
    outputs: Outputs = 500,
    tasks: Counts = "10,100,1000,2500",
    device: Device = "auto",
    json_file: Json = None,
) -> None:
    """Memory of the masks, against one bit per weight and task."""
    rows = bench_memory(network_from_name(net, outputs), _numbers(tasks), resolve(device))
    context = {"net": net, "outputs": outputs, "device": device}
    _show("memory of the masks (bytes)", [as_record(row) for row in rows], json_file, context, resolve(device))


@app.command()
@interruptible(_INTERRUPTED)
def masking(
    net: Annotated[str, Option(help=f"Network: {', '.join(_IMAGES)}.")] = "resnet50",
    outputs: Outputs = 10,
    batch: Annotated[int, Option(min=1, help="Images in a forward pass.")] = 32,
    tasks: Annotated[int, Option(min=1, help="Number of tasks to switch between.")] = 8,
    density: Annotated[float, Option(min=0, max=1, help="Fraction of the weights that a mask keeps.")] = 0.5,
    precision: Annotated[str, Option(help="Of forward passes: float32 or bfloat16.")] = "float32",
    device: Device = "auto",
    json_file: JsonAlone = None,
) -> None:
    """Answering with a task selected, and changing tasks, against a forward pass without masks; masks are random."""
    if net not in _IMAGES:
        raise typer.BadParameter(f"unknown network {net!r}; known: {', '.join(_IMAGES)}")
    if precision not in ("float32", "bfloat16"):
        raise typer.BadParameter(f"unknown precision {precision!r}; use float32 or bfloat16")
    place = resolve(device)
    machine = measure_machine(place)
    row = bench_masking(
        getattr(nets, net)(outputs), _IMAGES[net], batch, tasks, machine, place, density=density, precision=precision
    )
    context = {"net": net, "outputs": outputs, "device": device, "machine": vars(machine)}
    _show("masking", [as_record(row)], json_file, context, place)


def _growth(
    net: str,
    outputs: int,
    counts: Sequence[int],
    steps: int,
    images: int,
    coordinates: int,
    data_set: str,
    data_dir: Path | None,
    place: torch.device,
    model_file: Path | None,
    json_file: Path | None,
) -> None:
    """One model, and banks of more and more of its tasks."""
    machine, how = measure_machine(place), Inference(layers="first", coordinates=coordinates)
    if model_file is None:
        stream = _stream(data_set, data_dir, max(counts))
        model, taken = learned(network_from_name(net, outputs), stream, Recipe(steps=steps), place)
    else:
        model, taken = SupSup.load(model_file, device=place), None
        stream, steps = _stream(data_set, data_dir, len(model.tasks)), model.recipe.stepwise.steps
    rows = [as_record(row) for row in bench_growth(model, stream, counts, images, machine, how)]
    context = {"net": net, "outputs": outputs, "steps": steps, "coordinates": coordinates, "layers": "first"}
    context |= {"tasks learned": len(model.tasks), "learning seconds": taken, "machine": vars(machine)}
    _show("a lone image among k tasks", rows, json_file, context, place)
    if json_file is not None:
        write_text(json_file.with_suffix(".svg"), search_plot(net, place.type, rows))


def _stream(data_set: str, data_dir: Path | None, tasks: int) -> Stream:
    return data.permuted(data.named(data_set, data_dir), tasks)


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise typer.BadParameter(f"{text!r} is not a list of numbers of tasks such as 10,100")
    return numbers


def _show(
    title: str,
    rows: Sequence[Mapping[str, object]],
    json_file: Path | None,
    context: Mapping[str, object],
    device: torch.device,
) -> None:
    """Tables with a line for each figure and a column for each run, as many as have room; and the JSON."""
    waiting, console = list(rows), Console(emoji=False)
    while waiting:
        counts = range(1, len(waiting) + 1)
        together = max((count for count in counts if column_widths(_table("", waiting[:count]), console)), default=1)
        print_table(_table(title, waiting[:together]))
        del waiting[:together]
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        record = {"what": title, **context, "rows": rows, "made by": provenance(device)}
        json_file.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _table(title: str, rows: Sequence[Mapping[str, object]]) -> Table:
    table = Table(title=title, show_header=False)
    table.add_column("", no_wrap=True)
    for _ in rows:
        table.add_column(justify="right")
    for key in rows[0]:
        table.add_row(key, *(_short(row.get(key)) for row in rows), end_section=key == "setting")
    return table


def _short(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, dict):
        return "\n".join(f"{key}: {_short(entry)}" for key, entry in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)
