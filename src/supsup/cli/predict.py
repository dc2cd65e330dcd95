"""`supsup predict` and `supsup evaluate`: what a model says of images and rows, and how often it is right."""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
from rich.console import Console
from rich.table import Table
from typer import Argument, Option

from supsup.cli.console import escape_for_terminal
from supsup.cli.learn import Data, Device, Each, Label, Seed, TaskColumn, TestShare
from supsup.cli.networks import OwnNet, own_network
from supsup.cli.tables import show
from supsup.data import Task, tables
from supsup.data.discovery import Reading, as_numbers, image_files, pictures, tasks_at
from supsup.inference.methods import Method
from supsup.model.prediction import Prediction
from supsup.model.supsup import SupSup
from supsup.runtime.errors import SupSupError

_TOGETHER = 256  # inputs that are answered in one go
_MISTAKES = 10  # that are listed
_COUNTED = ("asked", "task given", "task unknown", "task found")

Model = Annotated[Path, Argument(help="A model file.")]
How = Annotated[
    Method | None,
    Option("--method", help="How the task is found; by default in the model's own way."),
]


def predict(
    model: Model,
    data: Annotated[
        list[str], Argument(help="Images, folders of images, a table or arrays; - reads paths from stdin.")
    ],
    task: Annotated[str | None, Option(help="The task, if it is known; found for each input by default.")] = None,
    label: Annotated[str | None, Option(help="A column of the table to leave out.")] = None,
    as_json: Annotated[bool, Option("--json", help="A JSON object on each line.")] = False,
    as_csv: Annotated[bool, Option("--csv", help="Comma-separated, with a line of names.")] = False,
    unknown: Annotated[
        bool,
        Option("--unknown", help="An input may be of none of the tasks; about one in twenty that is gets refused too."),
    ] = False,
    method: How = None,
    net: OwnNet = None,
    device: Device = "auto",
) -> None:
    """Say of each image or row what it is: its class by the name you gave it, its task, and how sure both are."""
    if as_json and as_csv:
        raise SupSupError("give --json or --csv, not both")
    learner = _loaded(model, net, method, device)
    if task is not None:
        learner.classes(task)  # an error for an unknown task
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if as_csv:
        writer.writerow(("input", "label", "task", "confidence", "task_confidence"))
    for names, inputs in _inputs(data, learner, label):
        for name, answer in zip(names, _answers(learner.predict(inputs, task, unknown=unknown))):
            if as_json:
                print(json.dumps({"input": name} | answer, ensure_ascii=False))
            elif as_csv:
                writer.writerow((name, *answer.values()))
            elif answer["task"] is None:
                Console(soft_wrap=True).print(f"{escape_for_terminal(name)}: none of these tasks", highlight=False)
            else:
                sure = f"{100 * answer['confidence']:.1f} %"
                Console(soft_wrap=True).print(
                    f"{escape_for_terminal(name)}: [bold]{escape_for_terminal(answer['label'])}[/] ({sure}), task {escape_for_terminal(answer['task'])}",
                    highlight=False,
                )


def _answers(said: Prediction) -> Iterator[dict[str, Any]]:
    for label, task, one, other in zip(
        said.names, said.tasks, said.confidence.tolist(), said.task_confidence.tolist(), strict=True
    ):
        yield {"label": label, "task": task, "confidence": round(one, 4), "task_confidence": round(other, 4)}


def _inputs(data: list[str], learner: SupSup, label: str | None) -> Iterator[tuple[list[str], Any]]:
    """Names of inputs and the inputs, some at a time."""
    shape = learner.image_shape
    if shape is None:
        raise SupSupError("the model has learned nothing yet; supsup learn MODEL DATA does")
    given = [line.strip() for line in sys.stdin if line.strip()] if data == ["-"] else data
    for place in map(Path, given):
        if place.suffix in tables.SUFFIXES:
            rows = _rows(place, label)
            for start in range(0, len(rows), _TOGETHER):
                some = rows[start : start + _TOGETHER]
                yield [f"{place.name}:{start + number + 1}" for number in range(len(some))], some
            continue
        files = image_files(place)
        for start in range(0, len(files), _TOGETHER):
            yield files[start : start + _TOGETHER], pictures(files[start : start + _TOGETHER], shape)


def _rows(path: Path, label: str | None) -> torch.Tensor:
    if path.suffix == ".npz":
        found = tables.arrays(path)
        inputs = next((found[name] for name in ("x", "X", "images", "data", "test_x") if name in found), None)
        if inputs is None:
            raise SupSupError(f"{path} has the arrays {', '.join(found) or 'none'}; the inputs must be called x")
        return as_numbers(inputs)
    found = tables.columns(path)
    if label is not None:
        tables.column(found, label, path)  # an error where there is none
    return torch.from_numpy(tables.features(found, (label,), path)).float()


def evaluate(
    model: Model,
    data: Data,
    task: Annotated[str | None, Option(help="The name that the task was learned under.")] = None,
    each: Each = False,
    label: Label = None,
    task_column: TaskColumn = None,
    everything: Annotated[
        bool, Option("--all", help="Ask about all of the data, also what was trained on; not only what was held back.")
    ] = False,
    test_share: TestShare = 0.2,
    seed: Seed = 0,
    method: How = None,
    as_json: Annotated[bool, Option("--json", help="One JSON object, with counts and every mistake.")] = False,
    net: OwnNet = None,
    device: Device = "auto",
) -> None:
    """Say how often a model is right on data with labels: with the task given, and with the task to be found.

    By default it is asked about the share that `supsup learn` holds back of the same data (--test-share and --seed as
    there). The commonest mistakes are listed.
    """
    learner = _loaded(model, net, method, device)
    shape = learner.image_shape
    size = shape[-1] if shape is not None and len(shape) == 3 else None
    reading = Reading(each, label, task_column, size, test_share, seed, crop=False)
    mistakes: Counter[tuple[str, str, str]] = Counter()
    counts: dict[str, torch.Tensor] = {}
    for found in tasks_at(data, reading, task):
        learner.classes(found.name)  # an error for an unknown task
        counts[found.name] = _graded(learner, found.read(reading), everything, mistakes)
    if as_json:
        replaced = {name: dict(zip(_COUNTED, map(int, right.tolist()))) for name, right in counts.items()}
        missed = [dict(zip(("task", "is", "taken for", "times"), (*which, n))) for which, n in mistakes.most_common()]
        print(json.dumps({"tasks": replaced, "mistakes": missed}, ensure_ascii=False, indent=1))
        return
    table = Table(title=escape_for_terminal(model))
    table.add_column("task")
    for name in _COUNTED:
        table.add_column(name, justify="right")
    for name, right in counts.items():
        table.add_row(escape_for_terminal(name), *_shares(right))
    if len(counts) > 1:
        table.add_section()
        table.add_row("all", *_shares(torch.stack(list(counts.values())).sum(0)))
    show(table)
    if mistakes:
        worst = Table(title="commonest mistakes, task given")
        for name in ("task", "is", "was taken for"):
            worst.add_column(name)
        worst.add_column("times", justify="right")
        for (name, true, said), count in mistakes.most_common(_MISTAKES):
            worst.add_row(escape_for_terminal(name), escape_for_terminal(true), escape_for_terminal(said), f"{count:,}")
        show(worst)


def _shares(counts: torch.Tensor) -> list[str]:
    asked, *right = counts.tolist()
    return [f"{asked:,.0f}", *(f"{100 * count / asked:.1f} %" for count in right)]


def _graded(learner: SupSup, task: Task, everything: bool, mistakes: Counter[tuple[str, str, str]]) -> torch.Tensor:
    """How many were asked; right with the task given; right with the task unknown; task found."""
    counts = torch.zeros(4)
    known = learner.task_info(task.name).names
    if known is not None and task.names is not None and not set(task.names) & set(known):
        raise SupSupError(
            f"{task.name} was learned with the classes {escape_for_terminal(list(known))}; none is in the data"
        )
    for part in (task.train, task.test) if everything else (task.test,):
        for start in range(0, len(part), _TOGETHER):
            positions = torch.arange(start, min(start + _TOGETHER, len(part)))
            raw = part.raw(positions)
            labels = part.labels[positions].tolist()
            truth = [label if task.names is None else task.names[label] for label in labels]
            given, unknown = learner.predict(raw, task.name), learner.predict(raw)
            found = [name == task.name for name in unknown.tasks]
            hits = [name == true for name, true in zip(given.names, truth)]
            both = [hit and name == true for hit, name, true in zip(found, unknown.names, truth)]
            counts += torch.tensor([float(len(truth)), float(sum(hits)), float(sum(both)), float(sum(found))])
            wrong = [(str(true), str(said)) for true, said, hit in zip(truth, given.names, hits) if not hit]
            mistakes.update((task.name, true, said) for true, said in wrong)
    return counts


def _loaded(model: Path, net: str | None, method: Method | None, device: str) -> SupSup:
    learner = SupSup.load(model, own_network(net, model), device=device)
    if not isinstance(learner, SupSup):
        raise SupSupError(f"{model} holds a {type(learner).__name__} model; this command takes a SupSup one")
    if method is not None:
        learner.inference = learner.inference.replaced(method=method)
    return learner
