"""`supsup learn`: learn tasks from folders and tables into a model file, one after another."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from rich.table import Column, Table
from typer import Argument, Option

from supsup import SupSup, evaluate, nets
from supsup.cli.console import escape_for_terminal, interruptible, print_table, say
from supsup.cli.inspect import example_images, network_call, record_outcome
from supsup.cli.networks import (
    KNOWN,
    OUTPUTS,
    OUTPUTS_NOTE,
    PHOTOGRAPHS,
    PRETRAINED,
    check_same_network,
    default_network,
    default_network_name,
    network_from_name,
    user_network,
)
from supsup.data import Task
from supsup.data.files import ReadOptions, TaskFile, find_tasks
from supsup.file.modelfile import ModelFile

Data = Annotated[
    Path, Argument(help="A folder with one folder of images per class, or a .csv, .tsv, .parquet or .npz file.")
]
Each = Annotated[bool, Option("--each", help="Treat every subfolder as a task.")]
Label = Annotated[str | None, Option(help="Column with the labels.", show_default="label, class or target")]
TaskColumn = Annotated[str | None, Option(help="Column of a table with the task of each row.")]
TestShare = Annotated[float, Option(help="Fraction of each class held out for testing.", min=0.01, max=0.9)]
Seed = Annotated[int, Option(help="Seed of the network's weights and of the choice of held-out examples.")]
Net = Annotated[
    str | None,
    Option(
        help=f"{', '.join((*KNOWN, *PRETRAINED))}, or module:function for your own.",
        show_default="depends on the data",
    ),
]
ProfileSize = Annotated[
    Literal["small", "default", "large"],
    Option(help="Size of a new model's profiles, by which its tasks are recognised."),
]
Device = Annotated[str, Option(help="auto, cpu, cuda or cuda:1.")]
Cluster = Annotated[
    str | None,
    Option(
        metavar="local:N|ADDRESS", help="Train many tasks at once, in N processes or on the Ray cluster at ADDRESS."
    ),
]


def learn_command(
    model: Annotated[Path, Argument(help="The model file; created if missing.")],
    data: Data,
    task: Annotated[str | None, Option(help="Name of the task.", show_default="name of the folder or file")] = None,
    each: Each = False,
    label: Label = None,
    task_column: TaskColumn = None,
    net: Net = None,
    outputs: Annotated[
        int | None, Option(help="Outputs of a new network: the most classes a task may have.", min=2)
    ] = None,
    size: Annotated[
        int | None,
        Option(
            help="Images are resized to SIZE × SIZE; smaller ones are kept.",
            show_default="224 for photographs, else 32",
            min=4,
        ),
    ] = None,
    crop: Annotated[bool, Option(help="Train on random crops of the images.")] = True,
    flip: Annotated[bool, Option(help="Train on mirror images as well; not for letters and signs.")] = False,
    test_share: TestShare = 0.2,
    seed: Seed = 0,
    profile_size: ProfileSize = "default",
    examples: Annotated[
        bool,
        Option("--examples", help="Keep a few small images of each task in the file, for the page of supsup serve."),
    ] = False,
    device: Device = "auto",
    cluster: Cluster = None,
) -> None:
    """Learn tasks from your data into a model file.

    Tasks already in the file stay as they are. A folder with one folder of images per class is a task. With --each,
    every subfolder is a task; with --task-column, a table has several. Photographs are learned on a pretrained network
    if its weights are available or can be downloaded (not with SUPSUP_OFFLINE=1), other images and tables on a small
    one. All tasks of a file share the network of the first.

    The recipe is chosen for each task on held-out images. A further share, --test-share, is never trained on and gives
    the accuracy in the table at the end.

    Ctrl-C keeps finished tasks; run the same command again to resume.
    """
    reading = ReadOptions(each, label, task_column, size, test_share, seed, crop, flip)
    found = find_tasks(data, reading, task)
    done: list[list[str]] = []  # rows of the table at the end: name, classes, examples, accuracy, seconds
    known: list[str] = []
    if model.exists():
        with ModelFile(model) as file:
            known = file.names
    waiting = [one for one in found if one.name not in known]
    for name in (one.name for one in found if one.name in known):
        say(f"{escape_for_terminal(name)} is already in {escape_for_terminal(model)}")
    if not waiting:
        return

    def outcome() -> str:
        return f"{len(done)} of {len(waiting)} tasks are in {model}; run the same command again to resume"

    with interruptible(outcome):
        first = None
        if not model.exists():
            chosen = net or default_network_name(waiting[0])
            if chosen in PRETRAINED:
                reading = replace(reading, default_size=PHOTOGRAPHS)
            first = waiting[0].read(reading)
            _create(model, first, chosen, outputs, size, seed, profile_size)
        elif net is not None:
            check_same_network(net, model)
        module = user_network(net, model) if net is not None and ":" in net else None
        with SupSup.load(model, module, in_place=True, device=device) as learner:
            for some in [waiting] if cluster is not None else [[one] for one in waiting]:
                done += _learn(learner, some, first, reading, cluster, examples)
                first = None
                sources = [name for name in str(learner.notes.get("data", "")).split(", ") if name]
                learner.notes["data"] = ", ".join(dict.fromkeys([*sources, data.resolve().name]))
                if cluster is None:
                    say(f"{len(done)} of {len(waiting)}  {done[-1][0]}: {done[-1][3]}")
    with ModelFile(model) as file:
        sizes = {row.name: len(row.mask) + len(row.extras) for row in file.records()}
        network = network_call(file.header) or "your own network"
    figures = (Column(name, justify="right") for name in ("classes", "examples", "accuracy", "bytes", "seconds"))
    table = Table(
        "task", *figures, title=f"learned into {escape_for_terminal(model)} on {escape_for_terminal(network)}"
    )
    for one, (*cells, seconds) in zip(waiting, done, strict=True):
        table.add_row(*cells, f"{sizes[one.name]:,}", seconds)
    print_table(table)


def _learn(
    learner: SupSup,
    found: Sequence[TaskFile],
    first: Task | None,
    reading: ReadOptions,
    cluster: str | None,
    examples: bool,
) -> list[list[str]]:
    """Learn tasks at once, and a row for each of them with its share of the seconds; `first`: read before."""
    begin = time.perf_counter()
    if isinstance(learner.module, nets.ImageNetwork):
        reading = replace(reading, default_size=learner.module.size)
    tasks: list[Task] = []
    for one in found:  # with images of the size that the model has learned, or that of the first task
        shape = learner.image_shape or (tasks[0].train.shape if tasks else None)
        if shape is not None and len(shape) == 3:
            reading = replace(reading, size=shape[-1])
        task = one.read(reading) if first is None or tasks else first
        tasks.append(replace(task, name=one.name))
    if cluster is None:
        learner.learn(tasks[0])
    else:
        learner.learn_many(tasks, cluster=cluster)
    seconds = (time.perf_counter() - begin) / len(tasks)
    rows = []
    for task in tasks:
        accuracy = evaluate(learner, [task], "GG", show_progress=False).average_accuracy
        record_outcome(learner, task.name, len(task.train), accuracy, example_images(task) if examples else None)
        learner.save()
        figures = (f"{task.classes:,}", f"{len(task.train):,}", f"{100 * accuracy:.1f} %", f"{seconds:.1f}")
        rows.append([escape_for_terminal(task.name), *figures])
    return rows


def _create(
    path: Path, task: Task, net: str | None, outputs: int | None, size: int | None, seed: int, profiles: ProfileSize
) -> None:
    """Create a model without tasks, on a network that suits the first task."""
    most = outputs or max(OUTPUTS, 2 * task.classes)
    module = default_network(task, most) if net is None else network_from_name(net, most, size)
    model = SupSup(module, seed, profile_size=profiles, device="cpu")
    if net is not None and ":" in net:
        model.notes[OUTPUTS_NOTE] = most
    model.save(path)
    weights = sum(parameter.numel() for parameter in module.parameters())
    with ModelFile(path) as file:
        network = escape_for_terminal(network_call(file.header) or net)
    say(f"{escape_for_terminal(path)}: a new model on {network}, {weights:,} weights")
