"""What a model file holds, as plain values: for tables, for JSON and for a model card."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from supsup.data import Task
from supsup.data.labels import Label
from supsup.data.task_info import TaskInfo
from supsup.file import codec
from supsup.file.header import Header
from supsup.file.modelfile import ModelFile
from supsup.file.task_record import EXAMPLES, PROFILE, info_of, tensors_of
from supsup.hopfield.file import KIND, read
from supsup.model.supsup import SupSup

_ACCURACY, _EXAMPLES = "held-back accuracy", "training examples"  # among a task's extras


@dataclass(frozen=True)
class TaskContents:
    """One task; None is what the file does not say.

    density   the share of the weights that the mask keeps
    bytes     of the mask and of all that belongs to the task
    accuracy  on what was held back when it was learned, the task given
    """

    task: str
    classes: int
    class_names: list[Label] | None
    inputs: str | None
    recipe: Mapping[str, str | int | float | None] | None
    learned: str
    density: float | None = None
    bytes: int | None = None
    bits_per_weight: float | None = None
    examples: int | None = None
    accuracy: float | None = None


@dataclass(frozen=True)
class ModelContents:
    """A whole file.

    masks   bytes of all masks, the entropy bound and the paper's own count of them
    memory  bytes of the memory that holds all masks of a HopSupSup model
    traces  tasks that left statistics to be found by; of so many `asked` images held back, so many tasks were `found`
    """

    kind: str
    network: str | None
    seed: int
    weights: int
    tensors: int
    weights_checksum: str
    image_shape: list[int] | None
    recipe: dict[str, Any]
    inference: dict[str, Any]
    notes: dict[str, Any]
    created: str
    library: str
    format: int
    file_bytes: int
    tasks: int
    named: int = 0
    raw: int = 0
    masks: int | None = None
    entropy_bound: float | None = None
    papers_count: float | None = None
    extras: int | None = None
    memory: int | None = None
    profiles: int = 0
    asked: int = 0
    found: int = 0
    chosen_recipes: dict[str, int] = field(default_factory=dict)


def note_outcome(model: SupSup, task: str, examples: int, accuracy: float, images: Tensor | None = None) -> None:
    """Keep with a task what a model card says of it, and images for a page; in the file with the next save."""
    noted = {_EXAMPLES: torch.tensor(examples), _ACCURACY: torch.tensor(accuracy, dtype=torch.float64)}
    if images is not None:
        noted[EXAMPLES] = images
    model.extras[task] = model.extras.get(task, {}) | noted


def some_images(task: Task, most: int = 6) -> Tensor | None:
    """An image of each of the first classes, as the task has it, uint8; None where there are no pictures."""
    part, picture = task.train, 3
    if part.images.dtype != torch.uint8 or len(part.shape) != picture or not len(part):
        return None
    firsts = [int((part.labels == label).int().argmax()) for label in range(min(task.classes, most))]
    as_they_are = replace(part, gain=torch.tensor(1.0), offset=torch.tensor(0.0))
    images = as_they_are.batch(torch.tensor(firsts))[0].to(torch.uint8)
    return images[:, :1] if bool((images == images[:, :1]).all()) else images


def tasks_of(model: ModelFile) -> Iterator[TaskContents]:
    """Every task, in order."""
    if model.header.kind == KIND:
        for task in read(model).tasks:
            yield TaskContents(task.name, task.classes, *_own(task.info), task.learned_at)
        return
    weights = sum(model.header.sizes)
    for row in model.records():
        kept = {name: float(value) for name, value in tensors_of(row).items() if value.numel() == 1}
        examples = kept.get(_EXAMPLES)
        yield TaskContents(
            row.name,
            row.classes,
            *_own(info_of(row, model.header)),
            row.created,
            row.kept / weights,
            len(row.mask) + len(row.extras),
            8 * len(row.mask) / weights,
            None if examples is None else int(examples),
            kept.get(_ACCURACY),
        )


def _own(info: TaskInfo) -> tuple[list[Label] | None, str | None, Mapping[str, str | int | float | None] | None]:
    """The names of the classes, what becomes of inputs in a few words, and the recipe."""
    names = None if info.names is None else list(info.names)
    replaced = []
    if info.inputs is not None:
        count = info.inputs.gain.numel()
        replaced.append("tokens" if info.inputs.tokens else f"raw, {count} mean{'' if count == 1 else 's'}")
        replaced += ["channels last"] if info.inputs.channels_last else []
    replaced += ["in four rotations"] if info.rotated else []
    return names, ", ".join(replaced) or None, info.recipe


def contents_of(model: ModelFile) -> ModelContents:
    """The file as a whole; every mask is read."""
    header = model.header
    about = _about(header) | {"file_bytes": model.path.stat().st_size}
    if header.kind == KIND:
        contents = read(model)
        recovery = {"rule": contents.rule, **asdict(contents.recovery)}
        return ModelContents(**about, tasks=len(contents.tasks), inference=recovery, memory=len(model.state()))
    masks, extras, named, raw, bound, paper = 0, 0, 0, 0, 0.0, 0.0
    profiles = asked = found = 0
    chosen: Counter[str] = Counter()
    for row in model.records():
        packed = row.decoded(header, model.reference).packed
        masks, extras = masks + len(row.mask), extras + len(row.extras)
        bound += codec.entropy_bytes(packed, header.sizes)
        paper += codec.paper_bytes(codec.kept_weights(packed, header.sizes), list(header.shapes.values()))
        info = info_of(row, header)
        named, raw = named + (info.names is not None), raw + (info.inputs is not None)
        checked = tensors_of(row).get(f"{PROFILE}checked")
        if checked is not None and checked.shape == (2,):
            profiles, asked, found = profiles + 1, asked + int(checked[0]), found + int(checked[1])
        if info.recipe is not None:
            chosen[recipe_in_words(info.recipe)] += 1
    return ModelContents(
        **about,
        tasks=len(model.names),
        inference=header.inference,
        named=named,
        raw=raw,
        masks=masks,
        entropy_bound=bound,
        papers_count=paper,
        extras=extras,
        profiles=profiles,
        asked=asked,
        found=found,
        chosen_recipes=dict(chosen.most_common()),
    )


def _about(header: Header) -> dict[str, Any]:
    """What every kind of model has."""
    return {
        "kind": header.kind,
        "network": network_in(header),
        "seed": header.seed,
        "weights": sum(header.sizes),
        "tensors": len(header.shapes),
        "weights_checksum": header.weights,
        "image_shape": header.image_shape,
        "recipe": header.recipe,
        "notes": header.notes,
        "created": header.created,
        "library": header.library,
        "format": header.format,
    }


def network_in(header: Header) -> str | None:
    """The call that built the network; None for one of the user's own."""
    built = header.architecture
    if not built:
        return None
    return f"{built.get('name')}({', '.join(f'{key}={value!r}' for key, value in built.get('arguments', {}).items())})"


def recipe_in_words(recipe: Mapping[str, object]) -> str:
    """What matters most of a recipe that was chosen for a task."""
    escape_for_terminal = ("optimiser", "learning_rate", "steps", "batch_size")
    return " ".join(f"{key} {value}" for key, value in recipe.items() if key in escape_for_terminal)


def as_json(contents: object) -> str:
    """Plain values as JSON that any terminal and any program can take."""
    return json.dumps(_finite(contents), indent=1)


def _finite(value: object) -> object:
    """JSON has no infinities, and labels may be any numbers."""
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
