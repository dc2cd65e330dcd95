"""Many masks of a fully connected network trained in step, without autograd: forward, backward and update by hand.

With one task on a CPU this is a faster way to train one mask; thousands of tasks fill a GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from supsup.kernels.graphs import repeat_in_graph
from supsup.masks import philox
from supsup.masks.bank import pack_columns
from supsup.masks.frozen import FrozenNet
from supsup.masks.scores import kept_scores, score_bound, score_label
from supsup.runtime.progress import Advance, report_step
from supsup.training.batches import Feed, batch_positions
from supsup.training.executors import Job, Trained, count_fitting, free_memory, grouped
from supsup.training.fast.operations import LayerState, Rates, backward, forward, gather, loss_gradient, update
from supsup.training.fast.side_by_side import in_threads_of_one
from supsup.training.recipe import Recipe

_TOGETHER = 2500  # tasks at once at most: more are not faster, and an interruption loses them
_REPORTED = 50  # steps between two looks at the clock
_SCORES = 1 << 26  # drawn at once


def pad_width(width: int) -> int:
    """Widths are rounded up to a multiple of 8, with weights of 0, so that rows of half-precision numbers align."""
    return -(-width // 8) * 8


class BatchedTrainer:
    """Scores of t tasks and their optimiser state, and one training step for all of them.

    precision  of the matrix products; scores and optimiser state are float32 always
    steps      how many there will be, for a learning rate that changes
    """

    def __init__(
        self,
        net: FrozenNet,
        tasks: int,
        recipe: Recipe,
        batch_size: int,
        precision: torch.dtype | None = None,
        steps: int | None = None,
    ) -> None:
        self.net, self.recipe = net, recipe
        device = net.device
        if precision is None:
            precision = torch.bfloat16 if device.type == "cuda" else torch.float32
        shapes = list(net.shapes.values())
        self.widths = [pad_width(shapes[0][1]), *(pad_width(shape[0]) for shape in shapes)]
        self.outputs = shapes[-1][0]
        self.precision = precision
        self.rates = Rates(recipe, recipe.steps if steps is None else steps, device)
        self.step_count = torch.zeros(1, dtype=torch.int32, device=device)
        self.layers = [self._layer(weight, tasks, precision) for weight in net.weights.values()]
        self.resize(tasks, batch_size)

    def resize(self, tasks: int, batch_size: int) -> None:
        """Buffers for batches of another size."""

        def buffer(width: int) -> Tensor:
            return torch.zeros(tasks, batch_size, width, dtype=self.precision, device=self.net.device)

        self.x, *self.hidden = (buffer(width) for width in self.widths)
        self.y = torch.zeros(tasks, batch_size, dtype=torch.int32, device=self.net.device)

    def _layer(self, weight: Tensor, tasks: int, precision: torch.dtype) -> LayerState:
        rows, columns = weight.shape
        weight = pad(weight, (0, pad_width(columns) - columns, 0, pad_width(rows) - rows))
        return LayerState.empty(weight, tasks, self.recipe, precision)

    def start(self, scores: Callable[[str], Iterable[Tensor]]) -> None:
        """Start from the scores of each weight, given as consecutive pieces [some tasks, out, in]."""
        self.step_count.zero_()
        for name, layer in zip(self.net.weights, self.layers):
            rows, columns = self.net.shapes[name]
            filled = 0
            for piece in scores(name):
                layer.scores[filled : filled + len(piece), :rows, :columns] = piece
                filled += len(piece)
            layer.masked.copy_(layer.weight * (layer.scores >= 0))
            for moment in (layer.first, layer.second):
                if moment is not None:
                    moment.zero_()

    def load(self, x: Tensor, y: Tensor) -> None:
        """Put one batch of images for one task in place."""
        if len(x) != self.x.shape[1]:
            self.resize(1, len(x))
        self.x[0, :, : x[0].numel()] = x.flatten(1)
        self.y[0].copy_(y)

    def step(self) -> None:
        """One optimiser step on the batch in x [t, b, features] and y [t, b]."""
        inputs = [self.x, *self.hidden[:-1]]
        for i, (layer, h, z) in enumerate(zip(self.layers, inputs, self.hidden)):
            forward(h, layer.masked, z, relu=i < len(self.layers) - 1)
        delta = self.hidden[-1]
        loss_gradient(delta, self.y, self.outputs)
        for i in reversed(range(len(self.layers))):
            below = None
            if i > 0:
                below = backward(delta, self.layers[i].masked, inputs[i])
            update(self.layers[i], delta, inputs[i], self.recipe, self.step_count, self.rates)
            if below is not None:
                delta = below
        self.step_count += 1

    def state(self) -> list[Tensor]:
        """All tensors that training changes, to be copied and restored."""
        tensors = [self.step_count]
        for layer in self.layers:
            tensors += [t for t in (layer.scores, layer.masked, layer.first, layer.second) if t is not None]
        return tensors

    def figures(self) -> tuple[float, float]:
        """Loss and accuracy of the first task's last batch, from what its step has left: (p − 1 at the label) / b."""
        slope, y = self.hidden[-1][0, :, : self.outputs].float() * self.x.shape[1], self.y[0].long()[:, None]
        p = slope.scatter_add(1, y, torch.ones_like(slope[:, :1]))
        loss = -p.gather(1, y).clamp(min=torch.finfo(p.dtype).tiny).log().mean()
        return float(loss), float((p.argmax(1, keepdim=True) == y).float().mean())

    def step_from(self, feed: Feed) -> None:
        """One step on the feed's next batch."""
        gather(feed, self.x, self.y)
        self.step()
        feed.step += 1

    def masks(self) -> dict[str, Tensor]:
        """The masks as they stand: booleans [t, out, in] for each weight."""
        return {name: scores >= 0 for name, scores in self._scores()}

    def scores(self) -> dict[str, Tensor]:
        """The scores as they stand, [t, out, in] for each weight, a copy."""
        return {name: scores.clone() for name, scores in self._scores()}

    def _scores(self) -> Iterator[tuple[str, Tensor]]:
        for (name, (rows, columns)), layer in zip(self.net.shapes.items(), self.layers):
            yield name, layer.scores[:, :rows, :columns]


class BatchedOnGPU:
    """Thousands of tasks of a fully connected network at once, as one CUDA graph for each step."""

    name = "batched on a GPU"

    def takes(self, net: FrozenNet, jobs: Sequence[Job], precision: torch.dtype | None) -> bool:
        return (
            net.device.type == "cuda"
            and precision in (None, torch.bfloat16, torch.float32)
            and _in_step(net, jobs)
            and all(job.task.train.in_memory and job.task.train.augmentation is None for job in jobs)
        )

    def tasks_at_once(self, net: FrozenNet, job: Job, precision: torch.dtype | None) -> int:
        return count_fitting(bytes_per_task(net, job), free_memory(net.device), _TOGETHER)

    def train(
        self, net: FrozenNet, jobs: Sequence[Job], precision: torch.dtype | None, advance: Advance
    ) -> Generator[Trained, None, None]:
        for group in grouped(jobs, _alike, lambda job: self.tasks_at_once(net, job, precision)):
            recipe, steps = group[0].recipe, group[0].steps
            trainer = BatchedTrainer(net, len(group), recipe, recipe.batch_size, precision, steps)
            tasks = [job.task for job in group]
            feed = Feed.empty(tasks[0].train.on(net.device), len(group), steps * recipe.batch_size, mapped=True)
            feed.fill(tasks, net.seed, recipe.batch_size)
            step = repeat_in_graph(partial(trainer.step_from, feed))
            feed.step.zero_()
            start_jobs(trainer, group)
            for count in range(1, steps + 1):
                step()
                if count % _REPORTED == 0 or count == steps:
                    torch.cuda.synchronize()
                    report_step(advance, tasks[0].name, count, steps, trainer.figures)
                    advance(len(group) * ((count - 1) % _REPORTED + 1) / steps)
            trained = Trained(
                tasks, pack_columns(trainer.masks()), {}, trainer.scores() if group[0].keep_scores else None
            )
            del trainer, feed, step
            yield trained


class BatchedOnCPU:
    """As many tasks of a fully connected network at once as torch has threads; see `side_by_side.py`."""

    name = "batched on a CPU"

    def takes(self, net: FrozenNet, jobs: Sequence[Job], precision: torch.dtype | None) -> bool:
        known = precision in (None, torch.bfloat16, torch.float32, torch.float64)
        return net.device.type == "cpu" and known and _in_step(net, jobs)

    def tasks_at_once(self, net: FrozenNet, job: Job, precision: torch.dtype | None) -> int:
        return torch.get_num_threads()

    def train(
        self, net: FrozenNet, jobs: Sequence[Job], precision: torch.dtype | None, advance: Advance
    ) -> Generator[Trained, None, None]:
        of_thread = threading.local()

        def train(job: Job, stop: threading.Event) -> Trained:
            task, recipe = job.task, job.recipe
            if not hasattr(of_thread, "trainer"):
                of_thread.trainer = BatchedTrainer(net, 1, recipe, recipe.batch_size, precision)
            trainer: BatchedTrainer = of_thread.trainer
            trainer.rates = Rates(recipe, job.steps, net.device)
            start_jobs(trainer, [job])
            order = batch_positions(net.seed, task.name, len(task.train), recipe.batch_size, job.steps)
            for count, (x, y) in enumerate(task.train.training_batches(order, net.seed, task.name), 1):
                if stop.is_set():
                    break
                trainer.load(x, y)
                trainer.step()
                report_step(advance, task.name, count, job.steps, trainer.figures)
            return Trained([task], pack_columns(trainer.masks()), {}, trainer.scores() if job.keep_scores else None)

        with closing(in_threads_of_one(train, jobs)) as finished:
            for trained in finished:
                yield trained
                advance(1)


def bytes_per_task(net: FrozenNet, job: Job) -> int:
    """Memory of one task in training: scores, moments, masked weights, a batch's activations, the order of batches."""
    recipe = job.recipe
    weights = sum(shape.numel() for shape in net.shapes.values())
    units = sum(shape[0] for shape in net.shapes.values()) + next(iter(net.shapes.values()))[1]
    moments = {"rmsprop": 1, "adam": 2, "sgd": 1 if recipe.momentum else 0}[recipe.optimiser]
    return weights * (4 + 4 * moments + 4 + 2) + 8 * units * recipe.batch_size + 8 * job.steps * recipe.batch_size


def start_jobs(trainer: BatchedTrainer, jobs: Sequence[Job]) -> None:
    """Start training these jobs, each from its first scores."""
    net = trainer.net

    def scores(weight: str) -> Iterator[Tensor]:
        shape = net.shapes[weight]
        at_once = max(1, _SCORES // shape.numel())
        for start in range(0, len(jobs), at_once):
            some = jobs[start : start + at_once]
            given = [job.scores[weight] for job in some if job.scores is not None]
            if given:
                yield torch.stack(given)
            elif some[0].recipe.keeps_all_of(net.pretrained):
                yield kept_scores(shape, net.device, some[0].recipe.score_bound).expand(len(some), *shape)
            else:
                labels = [score_label(job.task.name, weight) for job in some]
                bound = score_bound(shape, some[0].recipe.score_bound)
                yield philox.uniform(net.seed, labels, shape.numel(), bound, net.device).view(-1, *shape)

    trainer.start(scores)


def steps_by_hand(net: FrozenNet, recipe: Recipe) -> bool:
    """Whether forward, backward and update by hand cover this network and recipe."""
    return net.is_fully_connected and recipe.selection == "threshold"


def _in_step(net: FrozenNet, jobs: Sequence[Job]) -> bool:
    """Whether these jobs can take steps by hand together: one recipe, and scores given and kept for all or none."""

    def kind(job: Job) -> tuple[Recipe, bool, bool]:
        return job.recipe, job.scores is None, job.keep_scores

    same = all(kind(job) == kind(jobs[0]) for job in jobs)
    return same and steps_by_hand(net, jobs[0].recipe)


def _alike(one: Job, other: Job) -> bool:
    """Whether two tasks have the same images and length, so that one feed serves both."""
    return one.task.train.images is other.task.train.images and len(one.task.train) == len(other.task.train)
