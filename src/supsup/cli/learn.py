"""`supsup learn`: tasks from folders and tables into a model file, one after the other."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from rich.table import Table
from typer import Argument, Option

from supsup import nets
from supsup.cli.console import escape_for_terminal, interruptible, say
from supsup.cli.inspect import network_in, note_outcome, some_images
from supsup.cli.networks import (
    KNOWN,
    NOTED,
    OUTPUTS,
    PRETRAINED,
    check_same,
    name_for,
    network_for,
    network_named,
    own_network,
    reading_for,
)
from supsup.cli.tables import show
from supsup.data import Task
from supsup.data.discovery import Found, Reading, tasks_at
from supsup.evaluation.evaluator import evaluate
from supsup.file.modelfile import ModelFile
from supsup.model.supsup import SupSup

Data = Annotated[
    Path, Argument(help="A folder with a folder of images for each class, or a .csv, .tsv, .parquet, .npz.")
]
Each = Annotated[bool, Option("--each", help="Every folder in the folder is a task of its own.")]
Label = Annotated[str | None, Option(help="The column of the labels; label, class or target by default.")]
TaskColumn = Annotated[str | None, Option(help="A column of a table: the rows of each value are a task of their own.")]
TestShare = Annotated[float, Option(help="The share of each class that is held back to test on.", min=0.01, max=0.9)]
Seed = Annotated[int, Option(help="Decides the network's weights and what is held back.")]
Net = Annotated[
    str | None,
    Option(
        help=f"{', '.join((*KNOWN, *PRETRAINED))}, or module:function for your own. By default one that suits the data."
    ),
]
Device = Annotated[str, Option(help="auto, cpu, cuda or cuda:1.")]
Cluster = Annotated[
    str | None,
    Option(metavar="local:N|ADDRESS", help="Train many tasks at once: in N processes, or on the Ray cluster there."),
]


@dataclass(frozen=True)
class Learned:
    """A line of the closing table."""

    name: str
    classes: int
    examples: int
    accuracy: float
    seconds: float


def learn(
    model: Annotated[Path, Argument(help="The model file; it is made if it is not there.")],
    data: Data,
    task: Annotated[str | None, Option(help="The task's name; that of the folder or file by default.")] = None,
    each: Each = False,
    label: Label = None,
    task_column: TaskColumn = None,
    net: Net = None,
    outputs: Annotated[int | None, Option(help="Outputs of a new network: the most classes of a task.", min=2)] = None,
    size: Annotated[
        int | None,
        Option(help="Images are brought to SIZE × SIZE; by default 64 for photographs, else 32, if not small.", min=4),
    ] = None,
    crop: Annotated[bool, Option(help="Train on random crops of the images.")] = True,
    flip: Annotated[bool, Option(help="Train on mirror images too; not for letters and signs.")] = False,
    test_share: TestShare = 0.2,
    seed: Seed = 0,
    examples: Annotated[
        bool,
        Option("--examples", help="Keep a few small images of each task in the file, for the page of supsup serve."),
    ] = False,
    device: Device = "auto",
    cluster: Cluster = None,
) -> None:
    """Learn tasks from your own data into a model file; what is in it already stays as it is.

    A folder of class folders is one task, a folder of such folders with --each many; so are tables with --task-column.
    Photographs are learned on a pretrained network where its weights are at hand or can be fetched (SUPSUP_OFFLINE=1:
    they are not), other pictures and tables on a small one; all tasks of a file share the network of the first.

    The recipe is chosen for each task, by images that are held back from training; a further share, --test-share, is
    never trained on and gives the accuracy in the table at the end.

    Ctrl-C keeps what is finished; the same command goes on. Tasks that are in the file already are left as they are.
    """
    reading = Reading(each, label, task_column, size, test_share, seed, crop, flip)
    found = tasks_at(data, reading, task)
    done: list[Learned] = []
    known: list[str] = []
    if model.exists():
        with ModelFile(model) as file:
            known = file.names
    waiting = [one for one in found if one.name not in known]
    for name in (one.name for one in found if one.name in known):
        say(f"{escape_for_terminal(name)} is in {escape_for_terminal(model)} already")
    if not waiting:
        return

    def outcome() -> str:
        return f"{len(done)} of {len(waiting)} tasks are in {model}; the same command goes on with the others"

    with interruptible(outcome):
        first = None
        if not model.exists():
            chosen = net or name_for(waiting[0])
            reading = reading_for(chosen, reading)
            first = waiting[0].read(reading)
            _new(model, first, chosen, outputs, size, seed)
        elif net is not None:
            check_same(net, model)
        module = own_network(net, model) if net is not None and ":" in net else None
        with SupSup.load(model, module, in_place=True, device=device) as learner:
            if cluster is not None:
                done += _on_cluster(learner, waiting, first, reading, cluster, examples)
                _note_source(learner, data)
            for number, one in enumerate(waiting if cluster is None else [], 1):
                done.append(_learned(learner, one, first if number == 1 else None, reading, examples))
                _note_source(learner, data)
                say(f"{number} of {len(waiting)}  {escape_for_terminal(one.name)}: {100 * done[-1].accuracy:.1f} %")
    _table(model, done)


def _learned(learner: SupSup, found: Found, read: Task | None, reading: Reading, examples: bool) -> Learned:
    begin = time.perf_counter()
    task = _read(found, read, reading, learner)
    learner.learn(task)
    return _graded(learner, task, time.perf_counter() - begin, examples)


def _on_cluster(
    learner: SupSup, waiting: list[Found], first: Task | None, reading: Reading, cluster: str, examples: bool
) -> list[Learned]:
    """All of them at once; a task's seconds are its share of the whole."""
    begin = time.perf_counter()
    tasks: list[Task] = []
    for one in waiting:
        tasks.append(_read(one, None if tasks else first, reading, learner))
        reading = _sized(reading, tasks[0].train.shape)
    learner.learn_many(tasks, cluster=cluster)
    seconds = (time.perf_counter() - begin) / len(tasks)
    return [_graded(learner, task, seconds, examples) for task in tasks]


def _read(found: Found, read: Task | None, reading: Reading, learner: SupSup) -> Task:
    """A task, its images in the size that the model has learned or wants; `read` where that was done before."""
    module = learner.module
    if isinstance(module, nets.ImageNetwork):
        reading = replace(reading, usual=module.size)
    if learner.image_shape is not None:
        reading = _sized(reading, learner.image_shape)
    return replace(read or found.read(reading), name=found.name)


def _sized(reading: Reading, shape: tuple[int, ...]) -> Reading:
    return replace(reading, size=shape[-1]) if len(shape) == 3 else reading


def _graded(learner: SupSup, task: Task, seconds: float, examples: bool) -> Learned:
    graded = evaluate(learner, [task], "GG", show_progress=False)
    images = some_images(task) if examples else None
    note_outcome(learner, task.name, len(task.train), graded.average_accuracy, images)
    learner.save()
    return Learned(task.name, task.classes, len(task.train), graded.average_accuracy, seconds)


def _note_source(learner: SupSup, data: Path) -> None:
    """Where tasks came from, among the notes of the model."""
    known = [name for name in str(learner.notes.get("data", "")).split(", ") if name]
    learner.notes["data"] = ", ".join(dict.fromkeys([*known, data.resolve().name]))


def _new(path: Path, task: Task, net: str | None, outputs: int | None, size: int | None, seed: int) -> None:
    """A model without tasks, on a network that suits the first of them."""
    most = outputs or max(OUTPUTS, 2 * task.classes)
    module = network_for(task, most) if net is None else network_named(net, most, size)
    model = SupSup(module, seed, device="cpu")
    if net is not None and ":" in net:
        model.notes[NOTED] = most
    model.save(path)
    weights = sum(parameter.numel() for parameter in module.parameters())
    with ModelFile(path) as file:
        say(
            f"{escape_for_terminal(path)}: a new model on {escape_for_terminal(network_in(file.header) or net)}, {weights:,} weights"
        )


def _table(path: Path, done: list[Learned]) -> None:
    with ModelFile(path) as file:
        sizes = {row.name: len(row.mask) + len(row.extras) for row in file.records()}
        network = network_in(file.header) or "a network of your own"
    table = Table(title=f"learned into {escape_for_terminal(path)} on {escape_for_terminal(network)}")
    table.add_column("task")
    for name in ("classes", "examples", "right", "bytes", "seconds"):
        table.add_column(name, justify="right")
    for one in done:
        right, size = f"{100 * one.accuracy:.1f} %", f"{sizes.get(one.name, 0):,}"
        table.add_row(
            escape_for_terminal(one.name), f"{one.classes:,}", f"{one.examples:,}", right, size, f"{one.seconds:.1f}"
        )
    show(table)
