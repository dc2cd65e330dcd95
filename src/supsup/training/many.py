"""Training many tasks: which executor, which tasks together, and how their batches reach the device."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from supsup import philox
from supsup.bank import pack_columns
from supsup.data import Part, Task
from supsup.frozen import FrozenNet
from supsup.kernels import available
from supsup.kernels.graphs import repeated
from supsup.progress import Advance
from supsup.scores import initial_scores, score_bound, score_label
from supsup.training.batched import BatchedTrainer, supports
from supsup.training.operations import Feed
from supsup.training.order import batch_positions, many_positions
from supsup.training.plain import train_mask
from supsup.training.recipe import Recipe

if available.TRITON:
    from supsup.training import residual

Starts = Callable[[str], dict[str, Tensor]]

_TOGETHER = 2500  # tasks at once at most: more do not go faster, and an interruption loses those under way
_MEMORY = 0.7  # the share of the free memory that may be filled


class Trained(NamedTuple):
    """Tasks that were trained together, their masks as bytes [bytes, tasks], and their statistics [tasks, …] by name.

    scores  as they ended, [tasks, …] by weight, where the executor hands them out
    """

    tasks: list[Task]
    packed: Tensor
    statistics: dict[str, Tensor]
    scores: dict[str, Tensor] | None = None


def train_masks(
    net: FrozenNet,
    tasks: Sequence[Task],
    recipe: Recipe,
    advance: Advance = lambda _: None,
    precision: torch.dtype | None = None,
    scores: Starts | None = None,
) -> Iterator[Trained]:
    """Tasks as they are finished, with their masks; every task's mask is its own affair.

    precision  of the matrix products: by default bfloat16 on a GPU and float32 on a CPU
    scores     where those of a task start, by its name (`initial_scores` by default)
    """
    parts = [task.train for task in tasks]
    on_gpu = net.device.type == "cuda"
    if on_gpu and available.TRITON and residual.supports(net, recipe) and all(map(residual.takes, parts)):
        yield from _residual_on_gpu(net, tasks, recipe, advance, precision, scores)
    elif scores is not None or not supports(net, recipe):
        yield from _one_by_one(net, tasks, recipe, advance, scores)
    elif not on_gpu:
        yield from _on_cpu(net, tasks, recipe, advance, precision)
    elif all(part.in_memory and part.augmentation is None for part in parts):
        yield from _on_gpu(net, tasks, recipe, advance, precision)
    else:
        yield from _one_by_one(net, tasks, recipe, advance, scores)


def _residual_on_gpu(
    net: FrozenNet,
    tasks: Sequence[Task],
    recipe: Recipe,
    advance: Advance,
    precision: torch.dtype | None,
    scores: Starts | None,
) -> Iterator[Trained]:
    def own(task: str) -> dict[str, Tensor]:
        return initial_scores(net.seed, task, net.shapes, net.device)

    for group in residual.groups(net, tasks, recipe, free_memory(net.device)):
        jobs = [residual.Job(task, recipe, (scores or own)(task.name)) for task in group]
        trainer = residual.train_together(net, jobs, advance, precision)
        yield Trained(group, pack_columns(trainer.masks()), trainer.statistics(), trainer.final_scores())
        del trainer


def _one_by_one(
    net: FrozenNet, tasks: Sequence[Task], recipe: Recipe, advance: Advance, scores: Starts | None
) -> Iterator[Trained]:
    for task in tasks:
        share = 1 / recipe.steps_for(len(task.train))
        start = None if scores is None else scores(task.name)
        trainer = train_mask(net, task.name, task.train, recipe, lambda share=share: advance(share), start)  # type: ignore[misc]
        packed = pack_columns({name: bits[None] for name, bits in trainer.mask().items()})
        statistics = {name: value[None] for name, value in trainer.statistics.items()}
        yield Trained([task], packed, statistics, {n: value.detach()[None] for n, value in trainer.scores.items()})


def _on_cpu(
    net: FrozenNet, tasks: Sequence[Task], recipe: Recipe, advance: Advance, precision: torch.dtype | None
) -> Iterator[Trained]:
    """As many tasks side by side as torch has threads, each on one of them: nothing waits for anything.

    A lone task has one thread too, so that its mask is the same to the bit whatever it is learned with.
    """
    threads = min(torch.get_num_threads(), len(tasks))
    mine = threading.local()
    stop = threading.Event()

    def train(task: Task) -> Tensor:
        if not hasattr(mine, "trainer"):
            mine.trainer = BatchedTrainer(net, 1, recipe, recipe.batch_size, precision)
        trainer: BatchedTrainer = mine.trainer
        start_group(trainer, [task.name])
        steps = recipe.steps_for(len(task.train))
        order = batch_positions(net.seed, task.name, len(task.train), recipe.batch_size, steps)
        for x, y in task.train.training_batches(order, net.seed, task.name):
            if stop.is_set():
                break
            trainer.load(x, y)
            trainer.step()
        return pack_columns(trainer.masks())

    with one_thread_each(), ThreadPoolExecutor(threads) as pool:
        try:
            for task, packed in zip(tasks, pool.map(train, tasks)):
                yield Trained([task], packed, {})
                advance(1)
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Torch operations on one thread for a while."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _on_gpu(
    net: FrozenNet, tasks: Sequence[Task], recipe: Recipe, advance: Advance, precision: torch.dtype | None
) -> Iterator[Trained]:
    for group in groups(net, tasks, recipe, free_memory(net.device)):
        trainer = BatchedTrainer(net, len(group), recipe, recipe.batch_size, precision)
        feed = make_feed(net, group, recipe)
        step = repeated(partial(trainer.step_from, feed))
        feed.step.zero_()
        start_group(trainer, [task.name for task in group])
        steps = recipe.steps_for(len(group[0].train))
        for count in range(steps):
            step()
            if count % 50 == 49 or count == steps - 1:
                torch.cuda.synchronize()
                advance(len(group) * (count % 50 + 1) / steps)
        packed = pack_columns(trainer.masks())
        del trainer, feed, step
        yield Trained(group, packed, {})


def free_memory(device: torch.device) -> int:
    """Bytes on the device that torch could still take."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def groups(net: FrozenNet, tasks: Sequence[Task], recipe: Recipe, memory: int) -> list[list[Task]]:
    """Tasks that share their images and length, in groups of about equal size that fit into memory; order is kept."""
    runs: list[list[Task]] = []
    for task in tasks:
        before = runs[-1][0].train if runs else None
        if before is not None and before.images is task.train.images and len(before) == len(task.train):
            runs[-1].append(task)
        else:
            runs.append([task])
    out = []
    for run in runs:
        each = bytes_per_task(net, recipe, recipe.steps_for(len(run[0].train)))
        most = max(1, min(_TOGETHER, int(_MEMORY * memory) // each))
        count = math.ceil(len(run) / most)
        size = math.ceil(len(run) / count)
        out += [run[start : start + size] for start in range(0, len(run), size)]
    return out


def bytes_per_task(net: FrozenNet, recipe: Recipe, steps: int) -> int:
    """What training one task takes on the device: scores, moments, masked weights, a batch's activations, its order."""
    weights = sum(shape.numel() for shape in net.shapes.values())
    units = sum(shape[0] for shape in net.shapes.values()) + next(iter(net.shapes.values()))[1]
    moments = {"rmsprop": 1, "adam": 2, "sgd": 1 if recipe.momentum else 0}[recipe.optimiser]
    return weights * (4 + 4 * moments + 4 + 2) + 8 * units * recipe.batch_size + 8 * steps * recipe.batch_size


def start_group(trainer: BatchedTrainer, names: Sequence[str]) -> None:
    """Begin training the tasks of these names, each from its own `initial_scores`."""
    net = trainer.net

    def scores(weight: str) -> Iterator[Tensor]:
        shape = net.shapes[weight]
        at_once = max(1, (1 << 26) // shape.numel())
        for start in range(0, len(names), at_once):
            labels = [score_label(name, weight) for name in names[start : start + at_once]]
            yield philox.uniform(net.seed, labels, shape.numel(), score_bound(shape), net.device).view(-1, *shape)

    trainer.start(scores)


def make_feed(net: FrozenNet, group: Sequence[Task], recipe: Recipe) -> Feed:
    """The batches of a group of tasks that share their images, as `batch_positions` orders them."""
    steps = recipe.steps_for(len(group[0].train))
    feed = image_feed(group[0].train.on(net.device), len(group), steps * recipe.batch_size)
    alike: dict[tuple[int, int], list[int]] = {}  # tasks with the same rows and labels
    for i, task in enumerate(group):
        alike.setdefault((id(task.train.rows), id(task.train.labels)), []).append(i)
    for members in alike.values():
        part = group[members[0]].train.on(net.device)
        at_once = max(1, (1 << 26) // len(part))
        for start in range(0, len(members), at_once):
            chosen = members[start : start + at_once]
            names = [group[i].name for i in chosen]
            positions = many_positions(net.seed, names, len(part), feed.rows.shape[1], net.device)
            feed.rows[chosen] = (positions if part.rows is None else part.rows[positions]).int()
            feed.labels[chosen] = part.labels[positions].int()
    feed.maps.copy_(torch.stack([feature_map(task.train) for task in group]))
    return feed


def image_feed(part: Part, tasks: int, drawn: int) -> Feed:
    """An empty feed from a part's images, on their device, with room for `drawn` positions of each task."""
    images = part.images.flatten(1)

    def room(width: int) -> Tensor:
        return torch.zeros(tasks, width, dtype=torch.int32, device=images.device)

    return Feed(
        images=images,
        gain=_by_feature(part, part.gain),
        offset=_by_feature(part, part.offset),
        maps=room(images.shape[1]),
        rows=room(drawn),
        labels=room(drawn),
        step=torch.zeros(1, dtype=torch.int32, device=images.device),
    )


def _by_feature(part: Part, values: Tensor) -> Tensor:
    """One number per feature of an image from one, or one per channel."""
    return values.float().view(-1, 1).expand(-1, math.prod(part.shape) // values.numel()).flatten().contiguous()


def feature_map(part: Part) -> Tensor:
    """Where each feature of a flattened image comes from, −1 for nowhere: [features] int32."""
    features = math.prod(part.shape)
    if part.pixels is None:
        return torch.arange(features, dtype=torch.int32, device=part.images.device)
    pixels = part.pixels.int()
    if len(pixels) == features:
        return pixels
    shift = torch.arange(0, features, len(pixels), dtype=torch.int32, device=pixels.device)[:, None]
    return torch.where(pixels < 0, -1, pixels + shift).flatten()
