"""Training many tasks of a residual network on one GPU: which go together, and how their batches reach the kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor

from supsup.data import Part, Task
from supsup.errors import SupSupError
from supsup.frozen import FrozenNet
from supsup.kernels.graphs import repeated
from supsup.progress import Advance
from supsup.training.order import many_positions
from supsup.training.recipe import Recipe
from supsup.training.residual.trainer import ImageFeed, ResidualTrainer

_TOGETHER = 120  # tasks at most: more do not go faster, and an interruption loses those under way
_MEMORY = 0.7  # the share of the free memory that may be filled
_DRAWN = 1 << 22  # crops drawn at once
_REPORTED = 50  # steps between two looks at the clock


@dataclass(frozen=True)
class Job:
    """A mask to train: a task, how, and from which scores; those trained together may keep different numbers."""

    task: Task
    recipe: Recipe
    scores: Mapping[str, Tensor]


def takes(part: Part) -> bool:
    """Whether these images can be fed to the kernels."""
    return part.in_memory and part.images.dtype == torch.uint8 and part.images.ndim == 4 and part.pixels is None


def train_together(
    net: FrozenNet,
    jobs: Sequence[Job],
    advance: Advance = lambda _: None,
    precision: torch.dtype | None = None,
) -> ResidualTrainer:
    """The trainer of these jobs when it is done; they must share their images, length and all but the weights kept."""
    first = jobs[0]
    steps = first.recipe.steps_for(len(first.task.train))
    for job in jobs:
        same_length = job.recipe.steps_for(len(job.task.train)) == steps
        if not same_length or _but_for_budget(job.recipe) != _but_for_budget(first.recipe):
            raise SupSupError(
                f"task {job.task.name!r} has another recipe or length than those it is to be trained with"
            )
    part = first.task.train
    channels, height, width = part.shape
    kept = [[job.recipe.kept(shape) for shape in net.shapes.values()] for job in jobs]
    trainer = ResidualTrainer(
        net, (channels, height, width), kept, first.recipe, first.recipe.batch_size, steps, precision or torch.bfloat16
    )
    feed = image_feed(net, [job.task for job in jobs], steps, first.recipe.batch_size)
    step = repeated(partial(trainer.step_from, feed))
    trainer.start({name: torch.stack([job.scores[name] for job in jobs]) for name in net.shapes})
    for count in range(steps):
        step()
        if count % _REPORTED == _REPORTED - 1 or count == steps - 1:
            torch.cuda.synchronize()
            advance(len(jobs) * (count % _REPORTED + 1) / steps)
    return trainer


def _but_for_budget(recipe: Recipe) -> dict[str, object]:
    return {name: value for name, value in asdict(recipe).items() if name not in ("budget", "density")}


def groups(net: FrozenNet, tasks: Sequence[Task], recipe: Recipe, memory: int) -> Iterator[list[Task]]:
    """Tasks in order, as many together as memory allows, while they share images and length."""
    waiting: list[Task] = []
    for task in tasks:
        most = max(1, min(_TOGETHER, int(_MEMORY * memory) // bytes_per_task(net, task.train, recipe)))
        if waiting and (len(waiting) >= most or not _alike(waiting[0].train, task.train)):
            yield waiting
            waiting = []
        waiting.append(task)
    if waiting:
        yield waiting


def _alike(one: Part, other: Part) -> bool:
    return one.images is other.images and len(one) == len(other) and one.augmentation == other.augmentation


def bytes_per_task(net: FrozenNet, part: Part, recipe: Recipe) -> int:
    """What training one task takes on the device, about: activations and slopes, scores and moments, its order."""
    pixels = math.prod(part.shape[-2:]) * recipe.batch_size
    widths = [shape[0] for shape in net.shapes.values()]
    weights = sum(shape.numel() for shape in net.shapes.values())
    values = sum(pixels * width * widths[0] // max(width, widths[0]) for width in widths)
    return 10 * values + 48 * weights + 12 * recipe.steps_for(len(part)) * recipe.batch_size


def image_feed(net: FrozenNet, tasks: Sequence[Task], steps: int, batch: int) -> ImageFeed:
    """The batches of tasks that share their images, in the order and with the crops that every executor gives them."""
    parts = {task.name: task.train.on(net.device) for task in tasks}
    names, part = list(parts), parts[tasks[0].name]
    places = [names.index(task.name) for task in tasks]  # several jobs may train on the same task
    drawn = steps * batch
    positions = many_positions(net.seed, names, len(part), drawn, net.device)
    rows, labels = (torch.empty(len(names), drawn, dtype=torch.int32, device=net.device) for _ in range(2))
    for i, own in enumerate(parts.values()):
        rows[i] = positions[i] if own.rows is None else own.rows[positions[i]]
        labels[i] = own.labels[positions[i]]
    channels = part.shape[0]
    return ImageFeed(
        images=part.images,
        gain=part.gain.float().expand(channels).contiguous(),
        offset=part.offset.float().expand(channels).contiguous(),
        rows=rows[places],
        labels=labels[places],
        draws=_draws(net, names, part, steps, batch)[places],
        padding=part.augmentation.padding if part.augmentation is not None else 0,
    )


def _draws(net: FrozenNet, tasks: Sequence[str], part: Part, steps: int, batch: int) -> Tensor:
    """The crops of all steps, as a feed holds them: [tasks, steps · batch]."""
    draws = torch.zeros(len(tasks), steps, batch, dtype=torch.int32, device=net.device)
    if part.augmentation is not None:
        at_once = max(1, _DRAWN // (batch * len(tasks)))
        for start in range(0, steps, at_once):
            numbers = range(start, min(start + at_once, steps))
            drawn = part.augmentation.draws_many(net.seed, tasks, numbers, batch, net.device)
            line, column, mirrored = drawn.unbind(-1)
            draws[:, start : numbers.stop] = line + (column << 8) + (mirrored << 16)
    return draws.flatten(1)
