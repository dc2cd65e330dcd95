"""`supsup card`: a model card in Markdown, with the metadata that model hubs read, from the contents of the file.

Names in a file may come from anyone: Markdown gets them escaped, the metadata as quoted strings.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
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
    """The text of a model card. In its YAML every text of a user is a JSON string, which is valid YAML."""
    header, quoted = model.header, json.dumps
    images = header.image_shape is None or len(header.image_shape) == _IMAGE_DIMENSIONS
    kind = "image-classification" if images else "tabular-classification"
    graded = [task.accuracy for task in tasks if task.accuracy is not None]
    lines = ["---", "library_name: supsup"]
    lines += [f"license: {quoted(licence)}"] if licence else []
    lines += [f"pipeline_tag: {kind}", "tags: [supsup, continual-learning, supermasks]"]
    lines += [f"datasets: [{quoted(str(header.notes['data']))}]"] if "data" in header.notes else []
    lines.append("metrics: [accuracy]")
    measured = "The file contains no accuracies; `supsup evaluate` measures them on labelled data."
    if graded:
        mean = sum(graded) / len(graded)
        lines += ["model-index:", f"- name: {quoted(name)}", "  results:", f"  - task: {{type: {kind}}}"]
        lines.append(f"    dataset: {{name: {quoted(f'held-out examples of {len(graded)} tasks')}, type: own}}")
        lines.append(f"    metrics: [{{type: accuracy, value: {mean:.4f}, name: task given}}]")
        measured = (
            f"Accuracy is measured on examples held out of training, with the task given: {100 * mean:.1f} % on "
            f"average over {len(graded):,} tasks. `supsup evaluate` also measures it with the task inferred."
        )
    shape = " × ".join(map(str, header.image_shape)) if header.image_shape else "none yet"
    notes = ", ".join(f"{_text(key)}: {_text(value)}" for key, value in header.notes.items())
    recipes = {summarise_recipe(task.info.recipe) for task in tasks if task.info.recipe is not None}
    recipe = ", ".join(f"{key} {value}" for key, value in header.recipe.items())
    if recipes:
        recipe = f"chosen for each task on held-out examples, for example {min(recipes)}"
    size = f"{model.file_bytes:,} bytes"
    if model.masks is not None and tasks:
        size += f", of which masks {model.masks:,}: {model.masks / len(tasks):,.0f} per task"
    if model.memory is not None:
        size += f", of which memory {model.memory:,}, independent of the number of tasks"
    metadata = "\n".join(lines)
    more = f"\n{len(tasks) - _LISTED_TASKS:,} more; `supsup tasks` lists all of them.\n"
    return f"""{metadata}
---

# {_text(name)}

{len(tasks):,} tasks on one network of {model.weights:,} frozen weights. Each task is a mask that selects the weights \
it uses, so no task can change another. The task is inferred for each input.

```sh
pip install {_INSTALLED[kind]}   # in a clone of the supsup repository
supsup predict {shlex.quote(printable(f"{name}.supsup"))} {_EXAMPLE_INPUTS[kind]}
```

## Tasks

| task | classes | examples | accuracy, % | learned | bytes |
|---|---|---|---|---|---|
{"".join(map(_task_row, tasks[:_LISTED_TASKS]))}{more if len(tasks) > _LISTED_TASKS else ""}
{measured}

## Data, training and size

- Inputs: {shape}{f"; {notes}" if notes else ""}
- Network: {_text(network_call(header) or "your own module, which must be given")}, seed {header.seed}
- Weights: {model.weights:,}, checksum `{_text(header.weights)}`
- Recipe: {_text(recipe)}
- File: {size}
- Created {_text(header.created)} by supsup {_text(header.library)}; card by supsup {supsup.__version__}
"""


def _task_row(task: TaskContents) -> str:
    classes, names = f"{task.classes:,}", task.info.names
    if names is not None:
        classes += f": {', '.join(map(_text, names[:_LISTED_CLASSES]))}{', …' * (len(names) > _LISTED_CLASSES)}"
    accuracy = "–" if task.accuracy is None else f"{100 * task.accuracy:.1f}"
    cells = (_text(task.task), classes, _number(task.examples), accuracy, _text(task.learned[:10]), _number(task.bytes))
    return f"| {' | '.join(cells)} |\n"


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _text(value: object) -> str:
    """Escape text from a file for Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>#|~!$&])", r"\\\1", printable(value))
