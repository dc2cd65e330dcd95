"""`supsup card`: a model card, Markdown with the metadata that collections of models read, from what the file holds.

Names in a file may come from anybody: in Markdown they stand as text, in the metadata as quoted strings.
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
from supsup.cli.console import Yes, agreed, escape_for_terminal, interruptible, say
from supsup.cli.inspect import ModelContents, TaskContents, contents_of, recipe_in_words, tasks_of
from supsup.file.modelfile import ModelFile
from supsup.file.paths import writable_path
from supsup.runtime.errors import printable

_LISTED = 200  # tasks in the table
_NAMED = 10  # classes of a task that are listed
_INPUTS = {"image-classification": "picture.png", "tabular-classification": "table.csv"}
_PICTURES = 3  # dimensions of what is taken for an image


def card(
    file: Annotated[Path, Argument(help="A model file.")],
    out: Annotated[
        Path | None, Argument(help="The Markdown file to write, or - to print it.", show_default="FILE.md")
    ] = None,
    licence: Annotated[
        str | None, Option("--licence", "--license", help="Your licence for the model, such as mit or cc-by-4.0.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Write a model card: tasks, classes, accuracies, data, recipe and size, as the file has them.

    Asks before it replaces a file; where stdin is no terminal it needs --yes for that.
    """
    target = out or file.with_suffix(".md")
    with interruptible(f"{target} is as it was; start again"):
        with ModelFile(file) as model:
            contents, found = contents_of(model), list(tasks_of(model))
        text = written(file.stem, contents, found, licence)
        if target == Path("-"):
            print(text, end="")
            return
        path = writable_path(target)
        if path.is_file():
            agreed(f"Replace {target}?", yes)
        path.write_text(text, encoding="utf-8")
    say(f"{escape_for_terminal(target)}: {len(found):,} tasks")


def written(name: str, model: ModelContents, tasks: Sequence[TaskContents], licence: str | None = None) -> str:
    """The card of a model."""
    return "\n".join([*_metadata(name, model, tasks, licence), "", *_body(name, model, tasks)]) + "\n"


def _metadata(name: str, model: ModelContents, tasks: Sequence[TaskContents], licence: str | None) -> Iterator[str]:
    """YAML in which every text of the user's is a JSON string, which YAML reads as it is."""
    kind = _kind(model)
    yield "---"
    yield "library_name: supsup"
    if licence:
        yield f"license: {json.dumps(licence)}"
    yield f"pipeline_tag: {kind}"
    yield "tags: [supsup, continual-learning, supermasks]"
    if "data" in model.notes:
        yield f"datasets: [{json.dumps(str(model.notes['data']))}]"
    yield "metrics: [accuracy]"
    graded = [task.accuracy for task in tasks if task.accuracy is not None]
    if graded:
        yield "model-index:"
        yield f"- name: {json.dumps(name)}"
        yield "  results:"
        yield f"  - task: {{type: {kind}}}"
        yield f"    dataset: {{name: {json.dumps(f'held-back examples of {len(graded)} tasks')}, type: own}}"
        yield f"    metrics: [{{type: accuracy, value: {sum(graded) / len(graded):.4f}, name: task given}}]"
    yield "---"


def _kind(model: ModelContents) -> str:
    pictures = model.image_shape is None or len(model.image_shape) == _PICTURES
    return "image-classification" if pictures else "tabular-classification"


def _body(name: str, model: ModelContents, tasks: Sequence[TaskContents]) -> Iterator[str]:
    yield f"# {_text(name)}"
    yield ""
    yield (
        f"{len(tasks):,} tasks on one network of {model.weights:,} frozen weights: each task is a mask that says which "
        "weights it uses, so none can change another. The task need not be said: it is found for each input."
    )
    yield ""
    yield "```sh"
    yield "pip install supsup"
    yield f"supsup predict {shlex.quote(printable(f'{name}.supsup'))} {_INPUTS[_kind(model)]}"
    yield "```"
    yield ""
    yield "## Tasks"
    yield ""
    yield "| task | classes | examples | right, % | learned | bytes |"
    yield "|---|---|---|---|---|---|"
    for task in tasks[:_LISTED]:
        right = "–" if task.accuracy is None else f"{100 * task.accuracy:.1f}"
        cells = (_text(task.task), _classes(task), _number(task.examples), right, _text(task.learned[:10]))
        yield f"| {' | '.join(cells)} | {_number(task.bytes)} |"
    if len(tasks) > _LISTED:
        yield ""
        yield f"{len(tasks) - _LISTED:,} more; `supsup tasks` lists them all."
    yield ""
    yield from _figures(model, tasks)


def _figures(model: ModelContents, tasks: Sequence[TaskContents]) -> Iterator[str]:
    graded = [task.accuracy for task in tasks if task.accuracy is not None]
    if graded:
        yield (
            "*Right* is the share of examples held back from training that is answered rightly, the task given: "
            f"{100 * sum(graded) / len(graded):.1f} % on average over {len(graded):,} tasks. "
            "`supsup evaluate` says how often it is right, and how often the task is found, when it is not given."
        )
    else:
        yield "Accuracies are not in the file; `supsup evaluate` measures them on data with labels."
    yield ""
    yield "## Data, training and size"
    yield ""
    shape = " × ".join(map(str, model.image_shape)) if model.image_shape else "none yet"
    noted = [f"{_text(key)}: {_text(value)}" for key, value in model.notes.items()]
    recipes = {recipe_in_words(task.recipe) for task in tasks if task.recipe is not None}
    own = f"chosen for each task by examples held back, such as {min(recipes)}" if recipes else ""
    recipe = own or ", ".join(f"{key} {value}" for key, value in model.recipe.items())
    yield f"- Inputs: {shape}" + (f"; {', '.join(noted)}" if noted else "")
    yield f"- Network: {_text(model.network or 'a module of its own, which has to be given')}, seed {model.seed}"
    yield f"- Weights: {model.weights:,}, checksum `{_text(model.weights_checksum)}`"
    yield f"- Recipe: {_text(recipe)}"
    size = f"{model.file_bytes:,} bytes"
    if model.masks is not None and tasks:
        size += f", of which masks {model.masks:,}: {model.masks / len(tasks):,.0f} a task"
    if model.memory is not None:
        size += f", of which memory {model.memory:,}, whatever the number of tasks"
    yield f"- File: {size}"
    yield f"- Made {_text(model.created)} by supsup {_text(model.library)}; this card by supsup {supsup.__version__}"


def _classes(task: TaskContents) -> str:
    if task.class_names is None:
        return f"{task.classes:,}"
    some = ", ".join(_text(name) for name in task.class_names[:_NAMED])
    return f"{task.classes:,}: {some}{', …' if len(task.class_names) > _NAMED else ''}"


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _text(value: object) -> str:
    """Text from a file that Markdown takes for nothing but text."""
    return re.sub(r"([\\`*_{}\[\]<>#|~!$&])", r"\\\1", printable(value))
