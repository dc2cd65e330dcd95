"""`supsup card`: a model card in Markdown, with the metadata that model hubs read, from the contents of the file.

Names in a file may come from anyone: Markdown gets them escaped, the metadata as quoted strings.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

import supsup
from supsup.cli.console import Yes, confirm, escape_for_terminal, interruptible, say
from supsup.cli.inspect import ModelContents, TaskContents, network_call, read_contents, read_tasks, summarise_recipe
from supsup.file.modelfile import ModelFile
from supsup.file.paths import writable_path
from supsup.runtime.errors import printable

_LISTED_TASKS, _LISTED_CLASSES = 200, 10
_EXAMPLE_INPUTS = {"image-classification": "picture.png", "tabular-classification": "table.csv"}
_INSTALLED = {"image-classification": "'.[images]'", "tabular-classification": "."}
_IMAGE_DIMENSIONS = 3


def card_command(
    file: Annotated[Path, Argument(help="The model file.")],
    out: Annotated[
        Path | None, Argument(help="The Markdown file to write, or - to print it.", show_default="FILE.md")
    ] = None,
    licence: Annotated[
        str | None, Option("--licence", "--license", help="Licence of the model, such as mit or cc-by-4.0.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Write a model card in Markdown.

    It has tasks, classes, accuracies, data, recipe and size. Asks before replacing a file; when not interactive, that
    needs --yes.
    """
    target = out or file.with_suffix(".md")
    with interruptible(f"{target} is unchanged; run the command again"):
        with ModelFile(file) as model:
            contents, tasks = read_contents(model), list(read_tasks(model))
        text = write_card(file.stem, contents, tasks, licence)
        if target == Path("-"):
            print(text, end="")
            return
        path = writable_path(target)
        if path.is_file():
            confirm(f"Replace {target}?", yes)
        path.write_text(text, encoding="utf-8")
    say(f"{escape_for_terminal(target)}: {len(tasks):,} tasks")


def write_card(name: str, model: ModelContents, tasks: Sequence[TaskContents], licence: str | None = None) -> str:
    """The text of a model card."""
    images = model.header.image_shape is None or len(model.header.image_shape) == _IMAGE_DIMENSIONS
    kind = "image-classification" if images else "tabular-classification"
    graded = [task.accuracy for task in tasks if task.accuracy is not None]
    sections = [
        *_metadata(name, kind, model, graded, licence),
        *_introduction(name, kind, model, len(tasks)),
        *_task_table(tasks),
        *_accuracy(graded),
        *_details(model, tasks),
    ]
    return "\n".join(sections) + "\n"


def _metadata(name: str, kind: str, model: ModelContents, graded: list[float], licence: str | None) -> Iterator[str]:
    """YAML in which every user text is a JSON string, which is valid YAML."""
    yield "---"
    yield "library_name: supsup"
    if licence:
        yield f"license: {json.dumps(licence)}"
    yield f"pipeline_tag: {kind}"
    yield "tags: [supsup, continual-learning, supermasks]"
    if "data" in model.header.notes:
        yield f"datasets: [{json.dumps(str(model.header.notes['data']))}]"
    yield "metrics: [accuracy]"
    if graded:
        yield "model-index:"
        yield f"- name: {json.dumps(name)}"
        yield "  results:"
        yield f"  - task: {{type: {kind}}}"
        yield f"    dataset: {{name: {json.dumps(f'held-out examples of {len(graded)} tasks')}, type: own}}"
        yield f"    metrics: [{{type: accuracy, value: {sum(graded) / len(graded):.4f}, name: task given}}]"
    yield "---\n"


def _introduction(name: str, kind: str, model: ModelContents, tasks: int) -> Iterator[str]:
    yield f"# {_text(name)}\n"
    yield (
        f"{tasks:,} tasks on one network of {model.weights:,} frozen weights. Each task is a mask that selects the "
        "weights it uses, so no task can change another. The task is inferred for each input.\n"
    )
    yield "```sh"
    yield f"pip install {_INSTALLED[kind]}   # in a clone of the supsup repository"
    yield f"supsup predict {shlex.quote(printable(f'{name}.supsup'))} {_EXAMPLE_INPUTS[kind]}"
    yield "```\n"


def _task_table(tasks: Sequence[TaskContents]) -> Iterator[str]:
    yield "## Tasks\n"
    yield "| task | classes | examples | accuracy, % | learned | bytes |"
    yield "|---|---|---|---|---|---|"
    for task in tasks[:_LISTED_TASKS]:
        accuracy = "–" if task.accuracy is None else f"{100 * task.accuracy:.1f}"
        cells = (_text(task.task), _classes(task), _number(task.examples), accuracy, _text(task.learned[:10]))
        yield f"| {' | '.join(cells)} | {_number(task.bytes)} |"
    if len(tasks) > _LISTED_TASKS:
        yield f"\n{len(tasks) - _LISTED_TASKS:,} more; `supsup tasks` lists all of them."
    yield ""


def _accuracy(graded: list[float]) -> Iterator[str]:
    if graded:
        yield (
            f"Accuracy is measured on examples held out of training, with the task given: "
            f"{100 * sum(graded) / len(graded):.1f} % on average over {len(graded):,} tasks. "
            "`supsup evaluate` also measures it with the task inferred.\n"
        )
    else:
        yield "The file contains no accuracies; `supsup evaluate` measures them on labelled data.\n"


def _details(model: ModelContents, tasks: Sequence[TaskContents]) -> Iterator[str]:
    yield "## Data, training and size\n"
    shape = " × ".join(map(str, model.header.image_shape)) if model.header.image_shape else "none yet"
    notes = ", ".join(f"{_text(key)}: {_text(value)}" for key, value in model.header.notes.items())
    recipes = {summarise_recipe(task.info.recipe) for task in tasks if task.info.recipe is not None}
    recipe = ", ".join(f"{key} {value}" for key, value in model.header.recipe.items())
    if recipes:
        recipe = f"chosen for each task on held-out examples, for example {min(recipes)}"
    size = f"{model.file_bytes:,} bytes"
    if model.masks is not None and tasks:
        size += f", of which masks {model.masks:,}: {model.masks / len(tasks):,.0f} per task"
    if model.memory is not None:
        size += f", of which memory {model.memory:,}, independent of the number of tasks"
    network = network_call(model.header) or "your own module, which must be given"
    yield f"- Inputs: {shape}" + (f"; {notes}" if notes else "")
    yield f"- Network: {_text(network)}, seed {model.header.seed}"
    yield f"- Weights: {model.weights:,}, checksum `{_text(model.header.weights)}`"
    yield f"- Recipe: {_text(recipe)}"
    yield f"- File: {size}"
    created = f"{_text(model.header.created)} by supsup {_text(model.header.library)}"
    yield f"- Created {created}; card by supsup {supsup.__version__}"


def _classes(task: TaskContents) -> str:
    names = task.info.names
    if names is None:
        return f"{task.classes:,}"
    some = ", ".join(_text(name) for name in names[:_LISTED_CLASSES])
    return f"{task.classes:,}: {some}{', …' if len(names) > _LISTED_CLASSES else ''}"


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _text(value: object) -> str:
    """Escape text from a file for Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>#|~!$&])", r"\\\1", printable(value))
