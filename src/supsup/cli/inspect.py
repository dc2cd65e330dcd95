"""`supsup tasks` and `supsup info`: the contents of a model file, as tables and as JSON; model cards use them too.

Names in a file may come from anyone: they are printed through `escape_for_terminal` only.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from rich.table import Table
from torch import Tensor
from typer import Argument, Option

from supsup import SupSup
from supsup.cli.console import LONG_LINE, escape_for_terminal, interruptible, print_table
from supsup.data import Task
from supsup.data.task import TaskInfo
from supsup.file import codec
from supsup.file.header import Header
from supsup.file.modelfile import ModelFile
from supsup.file.task_record import EXAMPLES, PROFILE, info_of, tensors_of
from supsup.hopfield.learner import KIND, read_hop_contents
from supsup.inference.methods import METHODS

File = Annotated[Path, Argument(help="The model file.")]
Json = Annotated[bool, Option("--json", help="Print everything as JSON.")]
_ACCURACY, _EXAMPLES = "held-back accuracy", "training examples"  # names of extras of a task
_LISTED_CLASSES = 5


@dataclass(frozen=True)
class TaskContents:
    """One task; None where the file does not say.

    density   fraction of the weights that the mask keeps
    bytes     of the mask and all other data of the task
    accuracy  on images held out when the task was learned, with the task given
    """

    task: str
    classes: int
    info: TaskInfo
    learned: str
    density: float | None = None
    bytes: int | None = None
    bits_per_weight: float | None = None
    examples: int | None = None
    accuracy: float | None = None

    def describe(self) -> dict[str, Any]:
        """Plain values for JSON."""
        figures = ("learned", "density", "bytes", "bits_per_weight", "examples", "accuracy")
        values = {name: getattr(self, name) for name in figures}
        return {"task": self.task, "classes": self.classes} | self.info.describe() | values


@dataclass(frozen=True)
class ModelContents:
    """A whole file: its header and figures over all tasks.

    named, raw        tasks with class names, and tasks that take raw inputs
    masks             bytes of all masks, with the entropy bound and the paper's count for comparison
    memory            bytes of the memory that holds all masks of a HopSupSup model
    profiles          tasks with a profile, by which the task is inferred
    checked, correct  held-out images when tasks were learned, and how many had their task inferred correctly
    """

    header: Header
    file_bytes: int
    tasks: int
    inference: dict[str, Any]
    named: int = 0
    raw: int = 0
    masks: int | None = None
    entropy_bound: float | None = None
    papers_count: float | None = None
    extras: int | None = None
    memory: int | None = None
    profiles: int = 0
    checked: int = 0
    correct: int = 0
    chosen_recipes: dict[str, int] = field(default_factory=dict)

    @property
    def weights(self) -> int:
        """The number of frozen weights."""
        return sum(self.header.sizes)

    def describe(self) -> dict[str, Any]:
        """Plain values for JSON."""
        header = self.header
        about = {name: getattr(header, name) for name in ("kind", "seed", "image_shape", "recipe", "notes", "created")}
        about |= {"library": header.library, "format": header.format, "weights_checksum": header.weights}
        about |= {"network": network_call(header), "weights": self.weights, "tensors": len(header.shapes)}
        return about | {each.name: getattr(self, each.name) for each in fields(self) if each.name != "header"}


def tasks_command(file: File, json: Json = False) -> None:
    """List the tasks of a model file."""
    with interruptible("nothing was changed"), ModelFile(file) as model:
        tasks = list(read_tasks(model))
    if json:
        print(to_json([task.describe() for task in tasks]))
        return
    masks = any(task.bytes is not None for task in tasks)
    graded = any(task.accuracy is not None for task in tasks)
    figures = ["density %", "bytes", "bits/weight"] if masks else []
    table = Table("task", title=escape_for_terminal(file.name))
    for heading in ("classes", *figures, *(["accuracy %"] if graded else []), "learned"):
        table.add_column(heading, justify="right")
    table.add_column("labels and inputs")
    for task in tasks:
        cells = [f"{task.classes:,}"]
        if masks:
            cells += [f"{100 * (task.density or 0):.2f}", f"{task.bytes:,}", f"{task.bits_per_weight:.4f}"]
        if graded:
            cells.append("–" if task.accuracy is None else f"{100 * task.accuracy:.1f}")
        cells.append(escape_for_terminal(task.learned[:10]))
        table.add_row(escape_for_terminal(task.task, LONG_LINE), *cells, _labels(task.info))
    print_table(table)


def info_command(file: File, json: Json = False) -> None:
    """Show the contents and the size of a model file.

    For comparison with the size of the masks, also shows the entropy bound and the paper's count.
    """
    with interruptible("nothing was changed"), ModelFile(file) as model:
        contents = read_contents(model)
    if json:
        print(to_json(contents.describe()))
        return
    table = Table(title=escape_for_terminal(file.name), show_header=False)
    for name, value in _lines(contents).items():
        if value:
            table.add_row(name, escape_for_terminal(value, LONG_LINE))
    print_table(table)


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


def read_tasks(model: ModelFile) -> Iterator[TaskContents]:
    """Every task, in order."""
    if model.header.kind == KIND:
        for task in read_hop_contents(model)[1]:
            yield TaskContents(task.name, task.classes, task.info, task.learned_at)
        return
    weights = sum(model.header.sizes)
    for row in model.records():
        scalars = {name: float(value) for name, value in tensors_of(row).items() if value.numel() == 1}
        yield TaskContents(
            row.name,
            row.classes,
            info_of(row, model.header),
            row.created,
            row.kept / weights,
            len(row.mask) + len(row.extras),
            8 * len(row.mask) / weights,
            int(scalars[_EXAMPLES]) if _EXAMPLES in scalars else None,
            scalars.get(_ACCURACY),
        )


def read_contents(model: ModelFile) -> ModelContents:
    """The file as a whole; reads every mask."""
    header, size = model.header, model.path.stat().st_size
    if header.kind == KIND:
        settings, tasks = read_hop_contents(model)
        recovery = {"rule": settings["rule"], **asdict(settings["recovery"])}
        return ModelContents(header, size, len(tasks), recovery, memory=len(model.state()))
    totals: Counter[str] = Counter()
    bound = paper = 0.0
    recipes: Counter[str] = Counter()
    for row in model.records():
        packed = row.decoded(header, model.reference)
        bound += codec.entropy_bytes(packed, header.sizes)
        paper += codec.paper_bytes(codec.kept_weights(packed, header.sizes), list(header.shapes.values()))
        info = info_of(row, header)
        totals.update(masks=len(row.mask), extras=len(row.extras))
        totals.update(named=info.names is not None, raw=info.inputs is not None)
        checked = tensors_of(row).get(f"{PROFILE}checked")
        if checked is not None and checked.shape == (2,):
            totals.update(profiles=1, checked=int(checked[0]), correct=int(checked[1]))
        if info.recipe is not None:
            recipes[summarise_recipe(info.recipe)] += 1
    return ModelContents(
        header,
        size,
        len(model.names),
        header.inference,
        entropy_bound=bound,
        papers_count=paper,
        chosen_recipes=dict(recipes.most_common()),
        **{name: totals[name] for name in ("masks", "extras", "named", "raw", "profiles", "checked", "correct")},
    )


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
    """Plain values as ASCII JSON."""
    return json.dumps(_finite(contents), indent=1)


def _finite(value: object) -> object:
    """JSON has no infinities, and labels may be of any type."""
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _labels(info: TaskInfo) -> str:
    """A task's class names and its inputs, in a few words."""
    names = info.names or ()
    labels = ", ".join(map(str, names[:_LISTED_CLASSES])) + (", …" if len(names) > _LISTED_CLASSES else "")
    return escape_for_terminal("; ".join(filter(None, (labels, info.describe()["inputs"]))), LONG_LINE)


def _lines(model: ModelContents) -> dict[str, str]:
    """The lines of `supsup info`; empty ones are left out."""
    header = model.header
    weights = f"{model.weights:,} in {len(header.shapes)} tensors, seed {header.seed}"
    lines = {
        "kind": header.kind,
        "network": network_call(header) or "your own module",
        "weights checksum": header.weights,
        "images": " × ".join(map(str, header.image_shape)) if header.image_shape else "none learned yet",
        "recipe": ", ".join(f"{key} {value}" for key, value in header.recipe.items()),
    }
    if model.memory is not None:
        lines["frozen weights"] = weights
        lines["memory"] = f"{model.memory:,} bytes, independent of the number of tasks"
    else:
        lines["masked weights"] = weights
        sizes = f"entropy bound {model.entropy_bound:,.0f}, the paper's count {model.papers_count:,.0f}"
        lines["masks"] = f"{model.masks:,} bytes ({sizes})"
        lines["extras"] = f"{model.extras:,} bytes"
    lines["tasks"] = f"{model.tasks:,}"
    lines["tasks"] += f", {model.named:,} with class names" if model.named else ""
    lines["tasks"] += f", {model.raw:,} from raw inputs" if model.raw else ""
    lines["inference"] = _inference(model)
    if model.checked:
        share = f"{100 * model.correct / model.checked:.0f} %"
        lines["task inference"] = f"correct for {share} of {model.checked:,} held-out images when tasks were learned"
    lines["chosen recipes"] = "; ".join(f"{text} ({count:,} ×)" for text, count in model.chosen_recipes.items())
    lines["notes"] = ", ".join(f"{key}: {value}" for key, value in header.notes.items())
    lines["created"] = f"{header.created} by supsup {header.library}, format {header.format}"
    lines["file"] = f"{model.file_bytes:,} bytes"
    return lines


def _inference(model: ModelContents) -> str:
    """How tasks are inferred."""
    method = METHODS.get(model.inference.get("method", ""))
    if method is None or method.settings:
        return ", ".join(f"{key} {value}" for key, value in model.inference.items() if value is not None)
    if not method.needs_profiles:
        return str(model.inference["method"])
    some = "all" if model.profiles == model.tasks else f"{model.profiles:,} of {model.tasks:,}"
    return f"{model.inference['method']}, with the profiles of {some} tasks"
