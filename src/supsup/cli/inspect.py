"""`supsup tasks`, `info` and `card`: the contents of a model file, as tables, as JSON and as a model card.

Names in a file may come from anyone: they are printed through `escape_for_terminal` only, Markdown gets them escaped,
and the metadata of a card as quoted strings.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from rich.table import Column, Table
from torch import Tensor
from typer import Argument, Option

import supsup
from supsup import SupSup
from supsup.cli.console import LONG_LINE, File, Yes, confirm, escape_for_terminal, interruptible, print_table, say
from supsup.data import Task
from supsup.file import codec
from supsup.file.header import Header
from supsup.file.modelfile import ModelFile
from supsup.file.paths import writable_path
from supsup.file.task_record import EXAMPLES, PROFILE, info_of, tensors_of
from supsup.hopfield.learner import KIND, read_hop_contents
from supsup.inference.methods import METHODS
from supsup.runtime.errors import printable

Json = Annotated[bool, Option("--json", help="Print everything as JSON.")]
Contents = dict[str, Any]  # of a file or a task, as plain values
_ACCURACY, _EXAMPLES = "held-back accuracy", "training examples"  # names of extras of a task
_LISTED_CLASSES = 5  # of a task in a table
_CARD_TASKS, _CARD_CLASSES = 200, 10  # listed on a card
_EXAMPLE_INPUTS = {"image-classification": "picture.png", "tabular-classification": "table.csv"}
_INSTALLED = {"image-classification": "'.[images]'", "tabular-classification": "."}
_IMAGE_DIMENSIONS = 3


def tasks_command(file: File, json: Json = False) -> None:
    """List the tasks of a model file."""
    with interruptible("nothing was changed"), ModelFile(file) as model:
        tasks = list(read_tasks(model))
    if json:
        print(to_json(tasks))
        return
    masks = any(task["bytes"] is not None for task in tasks)
    graded = any(task["accuracy"] is not None for task in tasks)
    headings = ["classes"] + masks * ["density %", "bytes", "bits/weight"] + graded * ["accuracy %"] + ["learned"]
    figures = (Column(heading, justify="right") for heading in headings)
    table = Table("task", *figures, "labels and inputs", title=escape_for_terminal(file.name))
    for task in tasks:
        cells = [f"{task['classes']:,}"]
        if masks:
            cells += [f"{100 * (task['density'] or 0):.2f}", f"{task['bytes']:,}", f"{task['bits_per_weight']:.4f}"]
        if graded:
            cells.append("–" if task["accuracy"] is None else f"{100 * task['accuracy']:.1f}")
        cells.append(escape_for_terminal(task["learned"][:10]))
        names = task["class_names"] or ()
        labels = ", ".join(map(str, names[:_LISTED_CLASSES])) + (", …" if len(names) > _LISTED_CLASSES else "")
        remarks = escape_for_terminal("; ".join(filter(None, (labels, task["inputs"]))), LONG_LINE)
        table.add_row(escape_for_terminal(task["task"], LONG_LINE), *cells, remarks)
    print_table(table)


def info_command(file: File, json: Json = False) -> None:
    """Show the contents and the size of a model file.

    For comparison with the size of the masks, also shows the entropy bound and the paper's count.
    """
    with interruptible("nothing was changed"), ModelFile(file) as model:
        contents = read_contents(model)
    if json:
        print(to_json(contents))
        return
    table = Table(title=escape_for_terminal(file.name), show_header=False)
    for name, value in _lines(contents).items():
        if value:
            table.add_row(name, escape_for_terminal(value, LONG_LINE))
    print_table(table)


def card_command(
    file: File,
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


def record_outcome(model: SupSup, task: str, examples: int, accuracy: float, images: Tensor | None = None) -> None:
    """Keep figures for the model card with a task, and images for the web page; the next save writes them."""
    extras = {_EXAMPLES: torch.tensor(examples), _ACCURACY: torch.tensor(accuracy, dtype=torch.float64)}
    if images is not None:
        extras[EXAMPLES] = images
    model.extras[task] = model.extras.get(task, {}) | extras


def example_images(task: Task, most: int = 6) -> Tensor | None:
    """An image of each of the first classes, uint8 and not normalised; None if the inputs are not images."""
    part, dimensions = task.train, 3
    if part.images.dtype != torch.uint8 or len(part.shape) != dimensions or not len(part):
        return None
    firsts = [int((part.labels == label).int().argmax()) for label in range(min(task.classes, most))]
    not_normalised = replace(part, gain=torch.tensor(1.0), offset=torch.tensor(0.0))
    images = not_normalised.batch(torch.tensor(firsts))[0].to(torch.uint8)
    return images[:, :1] if bool((images == images[:, :1]).all()) else images


def read_tasks(model: ModelFile) -> Iterator[Contents]:
    """Every task, in order, as `supsup tasks --json` prints it; None where the file does not say.

    density   fraction of the weights that the mask keeps
    bytes     of the mask and all other data of the task
    accuracy  on images held out when the task was learned, with the task given
    """
    figures = ("density", "bytes", "bits_per_weight", "examples", "accuracy")
    if model.header.kind == KIND:
        for task in read_hop_contents(model)[1]:
            about = {"task": task.name, "classes": task.classes} | task.info.describe()
            yield about | {"learned": task.learned_at} | dict.fromkeys(figures)
        return
    weights = sum(model.header.sizes)
    for row in model.records():
        scalars = {name: float(value) for name, value in tensors_of(row).items() if value.numel() == 1}
        about = {"task": row.name, "classes": row.classes} | info_of(row, model.header).describe()
        examples = int(scalars[_EXAMPLES]) if _EXAMPLES in scalars else None
        size, bits = len(row.mask) + len(row.extras), 8 * len(row.mask) / weights
        values = (row.kept / weights, size, bits, examples, scalars.get(_ACCURACY))
        yield about | {"learned": row.created} | dict(zip(figures, values, strict=True))


def read_contents(model: ModelFile) -> Contents:
    """The file as a whole, as `supsup info --json` prints it: its header, and figures over all tasks. Reads every mask.

    named, raw  tasks with class names, and tasks that take raw inputs
    masks       bytes of all masks, with the entropy bound and the paper's count for comparison
    memory      bytes of the memory that holds all masks of a HopSupSup model
    profiles    tasks with a profile, by which the task is inferred; profile_size: "small" or "large" ones
    """
    header = model.header
    about = ("kind", "seed", "image_shape", "recipe", "notes", "created", "library", "format")
    found: Contents = {name: getattr(header, name) for name in about}
    found |= {"weights_checksum": header.weights, "network": network_call(header)}
    found |= {"weights": sum(header.sizes), "tensors": len(header.shapes), "file_bytes": model.path.stat().st_size}
    found |= {"tasks": len(model.names), "inference": header.inference, "named": 0, "raw": 0}
    found |= dict.fromkeys(("masks", "entropy_bound", "papers_count", "extras", "memory"))
    found |= {"profiles": 0, "chosen_recipes": {}}
    found |= {} if header.profile_size == "default" else {"profile_size": header.profile_size}
    if header.kind == KIND:
        settings, tasks = read_hop_contents(model)
        recovery = {"rule": settings["rule"], **asdict(settings["recovery"])}
        return found | {"tasks": len(tasks), "inference": recovery, "memory": len(model.state())}
    found |= {"masks": 0, "entropy_bound": 0.0, "papers_count": 0.0, "extras": 0}
    recipes: Counter[str] = Counter()
    for row in model.records():
        packed, info = row.decoded(header, model.reference), info_of(row, header)
        kept = codec.kept_weights(packed, header.sizes)
        found["masks"] += len(row.mask)
        found["entropy_bound"] += codec.entropy_bytes(packed, header.sizes)
        found["papers_count"] += codec.paper_bytes(kept, list(header.shapes.values()))
        found["extras"] += len(row.extras)
        found["named"] += info.names is not None
        found["raw"] += info.inputs is not None
        found["profiles"] += f"{PROFILE}means" in tensors_of(row)
        if info.recipe is not None:
            recipes[summarise_recipe(info.recipe)] += 1
    return found | {"chosen_recipes": dict(recipes.most_common())}


def network_call(header: Header) -> str | None:
    """The call that builds the network; None for a network of the user."""
    built = header.architecture
    if not built:
        return None
    return f"{built.get('name')}({', '.join(f'{key}={value!r}' for key, value in built.get('arguments', {}).items())})"


def summarise_recipe(recipe: Mapping[str, object]) -> str:
    """The most important settings of a recipe that was chosen for a task."""
    important = ("optimiser", "learning_rate", "steps", "batch_size")
    return " ".join(f"{key} {value}" for key, value in recipe.items() if key in important)


def to_json(contents: object) -> str:
    """Plain values as ASCII JSON, which has no infinities; what it has no type for, such as some labels, as text."""
    plain = json.loads(json.dumps(contents, default=str), parse_constant=lambda _: None)
    return json.dumps(plain, indent=1)


def _lines(model: Contents) -> dict[str, str]:
    """The lines of `supsup info`; empty ones are left out."""
    kind = "masked" if model["memory"] is None else "frozen"
    lines = {
        "kind": model["kind"],
        "network": model["network"] or "your own module",
        "weights checksum": model["weights_checksum"],
        "images": " × ".join(map(str, model["image_shape"] or ())) or "none learned yet",
        "recipe": ", ".join(f"{key} {value}" for key, value in model["recipe"].items()),
        f"{kind} weights": f"{model['weights']:,} in {model['tensors']} tensors, seed {model['seed']}",
    }
    if model["memory"] is not None:
        lines["memory"] = f"{model['memory']:,} bytes, independent of the number of tasks"
    else:
        sizes = f"entropy bound {model['entropy_bound']:,.0f}, the paper's count {model['papers_count']:,.0f}"
        lines["masks"] = f"{model['masks']:,} bytes ({sizes})"
        lines["extras"] = f"{model['extras']:,} bytes"
    lines["tasks"] = f"{model['tasks']:,}"
    lines["tasks"] += f", {model['named']:,} with class names" if model["named"] else ""
    lines["tasks"] += f", {model['raw']:,} from raw inputs" if model["raw"] else ""
    lines["inference"] = _inference(model)
    lines["chosen recipes"] = "; ".join(f"{text} ({count:,} ×)" for text, count in model["chosen_recipes"].items())
    lines["notes"] = ", ".join(f"{key}: {value}" for key, value in model["notes"].items())
    lines["created"] = f"{model['created']} by supsup {model['library']}, format {model['format']}"
    lines["file"] = f"{model['file_bytes']:,} bytes"
    return lines


def _inference(model: Contents) -> str:
    """How tasks are inferred."""
    settings = model["inference"]
    method = METHODS.get(settings.get("method", ""))
    if method is None or method.settings:
        return ", ".join(f"{key} {value}" for key, value in settings.items() if value is not None)
    if not method.needs_profiles:
        return str(settings["method"])
    some = "all" if model["profiles"] == model["tasks"] else f"{model['profiles']:,} of {model['tasks']:,}"
    size = f"{model['profile_size']} " if "profile_size" in model else ""
    return f"{settings['method']}, with the {size}profiles of {some} tasks"


def write_card(name: str, model: Contents, tasks: Sequence[Contents], licence: str | None = None) -> str:
    """The text of a model card. In its YAML every text of a user is a JSON string, which is valid YAML."""
    shape, notes, quoted = model["image_shape"], model["notes"], json.dumps
    images = shape is None or len(shape) == _IMAGE_DIMENSIONS
    kind = "image-classification" if images else "tabular-classification"
    graded = [task["accuracy"] for task in tasks if task["accuracy"] is not None]
    lines = ["---", "library_name: supsup"]
    lines += [f"license: {quoted(licence)}"] if licence else []
    lines += [f"pipeline_tag: {kind}", "tags: [supsup, continual-learning, supermasks]"]
    lines += [f"datasets: [{quoted(str(notes['data']))}]"] if "data" in notes else []
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
    metadata = "\n".join(lines)
    more = f"\n{len(tasks) - _CARD_TASKS:,} more; `supsup tasks` lists all of them.\n"
    inputs = " × ".join(map(str, shape or ())) or "none yet"
    inputs += f"; {', '.join(f'{_text(key)}: {_text(value)}' for key, value in notes.items())}" if notes else ""
    recipes = {summarise_recipe(task["recipe"]) for task in tasks if task["recipe"] is not None}
    recipe = ", ".join(f"{key} {value}" for key, value in model["recipe"].items())
    if recipes:
        recipe = f"chosen for each task on held-out examples, for example {min(recipes)}"
    size = f"{model['file_bytes']:,} bytes"
    if model["masks"] is not None and tasks:
        size += f", of which masks {model['masks']:,}: {model['masks'] / len(tasks):,.0f} per task"
    if model["memory"] is not None:
        size += f", of which memory {model['memory']:,}, independent of the number of tasks"
    return f"""{metadata}
---

# {_text(name)}

{len(tasks):,} tasks on one network of {model["weights"]:,} frozen weights. Each task is a mask that selects the \
weights it uses, so no task can change another. The task is inferred for each input.

```sh
pip install {_INSTALLED[kind]}   # in a clone of the supsup repository
supsup predict {shlex.quote(printable(f"{name}.supsup"))} {_EXAMPLE_INPUTS[kind]}
```

## Tasks

| task | classes | examples | accuracy, % | learned | bytes |
|---|---|---|---|---|---|
{"".join(map(_task_row, tasks[:_CARD_TASKS]))}{more if len(tasks) > _CARD_TASKS else ""}
{measured}

## Data, training and size

- Inputs: {inputs}
- Network: {_text(model["network"] or "your own module, which must be given")}, seed {model["seed"]}
- Weights: {model["weights"]:,}, checksum `{_text(model["weights_checksum"])}`
- Recipe: {_text(recipe)}
- File: {size}
- Created {_text(model["created"])} by supsup {_text(model["library"])}; card by supsup {supsup.__version__}
"""


def _task_row(task: Contents) -> str:
    classes, names = f"{task['classes']:,}", task["class_names"]
    if names is not None:
        classes += f": {', '.join(map(_text, names[:_CARD_CLASSES]))}{', …' if len(names) > _CARD_CLASSES else ''}"
    accuracy = "–" if task["accuracy"] is None else f"{100 * task['accuracy']:.1f}"
    examples, size = ("–" if value is None else f"{value:,}" for value in (task["examples"], task["bytes"]))
    cells = (_text(task["task"]), classes, examples, accuracy, _text(task["learned"][:10]), size)
    return f"| {' | '.join(cells)} |\n"


def _text(value: object) -> str:
    """Escape text from a file for Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>#|~!$&])", r"\\\1", printable(value))
