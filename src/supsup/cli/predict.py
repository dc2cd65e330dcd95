"""`supsup predict` and `supsup evaluate`: classify images and rows, and measure accuracy."""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
from rich.table import Column, Table
from typer import Argument, Option

from supsup import SupSup, SupSupError
from supsup.cli.console import File, escape_for_terminal, print_table, say
from supsup.cli.learn import Data, Device, Each, Label, Seed, TaskColumn, TestShare
from supsup.cli.networks import UserNet, user_network
from supsup.data import Task
from supsup.data.files import (
    TABLE_SUFFIXES,
    ReadOptions,
    decode_for_model,
    feature_matrix,
    find_images,
    find_tasks,
    read_columns,
    read_npz,
    select_column,
    to_tensor,
)
from supsup.inference.methods import MethodName

_BATCH = 256  # inputs
_DIGITS = 4  # of confidences
_LISTED_MISTAKES = 10
_COUNTS = ("images", "task given", "task unknown", "task correct")
_MISTAKE = ("task", "class", "predicted", "count")

MethodOption = Annotated[
    MethodName | None, Option("--method", help="How to infer the task.", show_default="the model's setting")
]


def predict_command(
    model: File,
    data: Annotated[list[str], Argument(help="Images, folders of images, tables or arrays; - reads paths from stdin.")],
    task: Annotated[str | None, Option(help="The task, if known.", show_default="inferred for each input")] = None,
    label: Annotated[
        str | None, Option(help="Column with the true labels, if the table has one; not used as an input.")
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object per line.")] = False,
    as_csv: Annotated[bool, Option("--csv", help="Print comma-separated values with a header row.")] = False,
    unknown: Annotated[
        bool,
        Option("--unknown", help="Reject inputs of unknown tasks; about 5 % of known inputs are rejected as well."),
    ] = False,
    method: MethodOption = None,
    net: UserNet = None,
    device: Device = "auto",
) -> None:
    """Classify each image or row; the task is inferred.

    Prints the class by the name you gave it, the task, and the confidence.
    """
    if as_json and as_csv:
        raise SupSupError("use --json or --csv, not both")
    learner = _load(model, net, method, device)
    if task is not None:
        learner.classes(task)  # an unknown task is an error
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for number, answer in enumerate(_answers(learner, data, task, label, unknown)):
        name = escape_for_terminal(answer["input"])
        if as_json:
            print(json.dumps(answer, ensure_ascii=False))
        elif as_csv:
            writer.writerows([answer, answer.values()] if number == 0 else [answer.values()])
        elif answer["task"] is None:
            say(f"{name}: none of these tasks")
        else:
            confidence = f"{100 * answer['confidence']:.1f} %"
            best, inferred = escape_for_terminal(answer["label"]), escape_for_terminal(answer["task"])
            say(f"{name}: [bold]{best}[/] ({confidence}), task {inferred}")


def _answers(
    learner: SupSup, data: list[str], task: str | None, label: str | None, unknown: bool
) -> Iterator[dict[str, Any]]:
    """The line for each input, in the order of its columns; the label is the name that the user gave the class."""
    for names, inputs in _inputs(data, learner, label):
        for name, answer in zip(names, learner.predict(inputs, task, unknown=unknown).describe(_DIGITS)):
            answer["label"] = answer.pop("name")
            yield {"input": name, "label": answer["label"]} | answer


def _inputs(data: list[str], learner: SupSup, label: str | None) -> Iterator[tuple[list[str], Any]]:
    """Batches of inputs with their names."""
    shape = learner.image_shape
    if shape is None:
        raise SupSupError("the model has no tasks yet; learn one with supsup learn MODEL DATA")
    paths = [line.strip() for line in sys.stdin if line.strip()] if data == ["-"] else data
    for path in map(Path, paths):
        rows = _rows(path, label) if path.suffix in TABLE_SUFFIXES else None
        names = find_images(path) if rows is None else [f"{path.name}:{row + 1}" for row in range(len(rows))]
        for start in range(0, len(names), _BATCH):
            some = slice(start, start + _BATCH)
            yield names[some], decode_for_model(names[some], shape) if rows is None else rows[some]


def _rows(path: Path, label: str | None) -> torch.Tensor:
    if path.suffix == ".npz":
        arrays = read_npz(path)
        inputs = next((arrays[name] for name in ("x", "X", "images", "data", "test_x") if name in arrays), None)
        if inputs is None:
            raise SupSupError(f"{path} has the arrays {', '.join(arrays) or 'none'}; the inputs must be called x")
        return to_tensor(inputs)
    columns = read_columns(path)
    if label is not None:
        select_column(columns, label, path)  # a missing column is an error
    return torch.from_numpy(feature_matrix(columns, (label,), path)).float()


def evaluate_command(
    model: File,
    data: Data,
    task: Annotated[str | None, Option(help="The name under which the task was learned.")] = None,
    each: Each = False,
    label: Label = None,
    task_column: TaskColumn = None,
    everything: Annotated[
        bool, Option("--all", help="Use all of the data, including training examples, not only held-out ones.")
    ] = False,
    test_share: TestShare = 0.2,
    seed: Seed = 0,
    method: MethodOption = None,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object with counts and all mistakes.")] = False,
    net: UserNet = None,
    device: Device = "auto",
) -> None:
    """Measure accuracy on labelled data.

    Measures it with the task given and with the task inferred. By default it uses the examples that `supsup learn`
    holds out of the same data, with the same --test-share and --seed. Also lists the most common mistakes.
    """
    learner = _load(model, net, method, device)
    shape = learner.image_shape
    size = shape[-1] if shape is not None and len(shape) == 3 else None
    reading = ReadOptions(each, label, task_column, size, test_share, seed, crop=False)
    mistakes: Counter[tuple[str, str, str]] = Counter()
    counts: dict[str, Counter[str]] = {}
    for found in find_tasks(data, reading, task):
        learner.classes(found.name)  # an unknown task is an error
        counts[found.name] = _count_correct(learner, found.read(reading), everything, mistakes)
    if as_json:
        listed = [dict(zip(_MISTAKE, (*which, count))) for which, count in mistakes.most_common()]
        print(json.dumps({"tasks": counts, "mistakes": listed}, ensure_ascii=False, indent=1))
        return
    table = Table("task", *(Column(name, justify="right") for name in _COUNTS), title=escape_for_terminal(model))
    for name, correct in counts.items():
        table.add_row(escape_for_terminal(name), *_percentages(correct))
    if len(counts) > 1:
        total: Counter[str] = Counter()
        for correct in counts.values():
            total.update(correct)
        table.add_section()
        table.add_row("all", *_percentages(total))
    print_table(table)
    if mistakes:
        worst = Table(*_MISTAKE[:3], Column(_MISTAKE[3], justify="right"), title="most common mistakes, task given")
        for which, count in mistakes.most_common(_LISTED_MISTAKES):
            worst.add_row(*map(escape_for_terminal, which), f"{count:,}")
        print_table(worst)


def _percentages(counts: Counter[str]) -> list[str]:
    images, *correct = counts.values()
    return [f"{images:,}", *(f"{100 * count / images:.1f} %" for count in correct)]


def _count_correct(
    learner: SupSup, task: Task, everything: bool, mistakes: Counter[tuple[str, str, str]]
) -> Counter[str]:
    """The numbers of `_COUNTS`: images, correct with the task given, correct without it, task inferred correctly."""
    counts = Counter(dict.fromkeys(_COUNTS, 0))
    classes = learner.task_info(task.name).names
    if classes is not None and task.names is not None and not set(task.names) & set(classes):
        raise SupSupError(f"{task.name} was learned with the classes {list(classes)}; the data has none of them")
    for part in (task.train, task.test) if everything else (task.test,):
        for start in range(0, len(part), _BATCH):
            positions = torch.arange(start, min(start + _BATCH, len(part)))
            raw, labels = part.raw(positions), part.labels[positions].tolist()
            given, inferred = learner.predict(raw, task.name), learner.predict(raw)
            for label, name, name_inferred, found in zip(labels, given.names, inferred.names, inferred.tasks):
                truth = label if task.names is None else task.names[label]
                right_task = found == task.name
                correct = (name == truth, right_task and name_inferred == truth, right_task)
                counts.update(dict(zip(_COUNTS, map(int, (True, *correct)))))
                if name != truth:
                    mistakes[task.name, str(truth), str(name)] += 1
    return counts


def _load(model: Path, net: str | None, method: MethodName | None, device: str) -> SupSup:
    learner = SupSup.load(model, user_network(net, model), device=device)
    if method is not None:
        learner.inference = learner.inference.replaced(method=method)
    return learner
