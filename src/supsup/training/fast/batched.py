"""Many masks of a fully connected network trained in step, without autograd: forward, backward and update by hand.

With one task on a CPU this is a faster way to train one mask; thousands of tasks fill a GPU. Each operation of a step
is plain torch, which defines it and runs anywhere, and one Triton kernel on a GPU (in tests: in Triton's interpreter).
With numba, the update is one compiled pass on a CPU where torch has one thread. Shapes: t tasks, b images in a batch,
f features of an image; a layer has [out, in] weights shared by all tasks.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from supsup.kernels import available
from supsup.kernels.graphs import repeat_in_graph
from supsup.masks import philox
from supsup.masks.bank import pack_columns
from supsup.masks.frozen import FrozenNet
from supsup.masks.scores import kept_scores, score_bound, score_label
from supsup.runtime.interrupts import uninterrupted
from supsup.runtime.locks import new_lock
from supsup.runtime.progress import Advance, report_step
from supsup.training.executors import Feed, Job, Trained, alike, batch_positions, count_fitting, free_memory, grouped
from supsup.training.recipe import Recipe

if available.NUMBA:
    from supsup.kernels import numba_masks
if available.TRITON:
    from supsup.kernels import triton_training

_FEW_TASKS = 4  # up to this many, small products in one launch each beat those of the library
_TOGETHER = 2500  # tasks at once at most: more are not faster, and an interruption loses them
_REPORTED = 50  # steps between two looks at the clock
_SCORES = 1 << 26  # drawn at once
_STARTING = new_lock()
_AHEAD = 2  # jobs for each thread, of which one waits


def gather(feed: Feed, x: Tensor, y: Tensor) -> None:
    """Fill the first features of x [t, b, ≥ f], and y [t, b], with the batch of the feed's present step."""
    if x.is_cuda and available.TRITON:
        assert feed.maps is not None
        shared = (feed.part.images.flatten(1), *feed.by_feature, feed.maps, feed.rows, feed.labels, feed.step)
        triton_training.triton_gather(shared, x, y)
        return
    for task in range(len(x)):
        images, y[task] = feed.batch(task, x.shape[1])
        x[task, :, : images[0].numel()] = images.flatten(1)


def loss_gradient(outputs: Tensor, y: Tensor, size: int) -> None:
    """Turn the first `size` outputs [t, b, ≥ size] into the gradient of the mean cross-entropy, in place; 0 beyond."""
    if outputs.is_cuda and available.TRITON:
        triton_training.triton_loss_gradient(outputs, y, size)
        return
    batch = outputs.shape[1]
    p = outputs[..., :size].float().softmax(-1)
    p.scatter_add_(2, y.long()[..., None], torch.full_like(p[..., :1], -1.0))
    outputs[..., :size] = p.div_(batch)
    outputs[..., size:] = 0


def forward(inputs: Tensor, masked: Tensor, out: Tensor, relu: bool) -> None:
    """out [t, b, out] = inputs [t, b, in] · masked [t, out, in]ᵀ, with ReLU if `relu`."""
    if out.is_cuda and available.TRITON and len(out) <= _FEW_TASKS:
        triton_training.triton_product(inputs, masked, out, transposed=True, relu=relu)
        return
    torch.bmm(inputs, masked.transpose(1, 2), out=out)
    if relu:
        out.relu_()


def backward(delta: Tensor, masked: Tensor, inputs: Tensor) -> Tensor:
    """The gradient at the inputs [t, b, in] of a layer, through the ReLU that made them."""
    if delta.is_cuda and available.TRITON and len(delta) <= _FEW_TASKS:
        below = torch.empty_like(inputs)
        triton_training.triton_product(delta, masked, below, gate=inputs)
        return below
    below = torch.bmm(delta, masked)
    torch.ops.aten.threshold_backward.grad_input(below, inputs, 0, grad_input=below)
    return below


class LayerState(NamedTuple):
    """Scores and optimiser state of one layer for t tasks, and the masked weights they give."""

    weight: Tensor  # [out, in] float32, frozen, shared
    scores: Tensor  # [t, out, in] float32
    masked: Tensor  # [t, out, in] in the precision of the matrix products
    first: Tensor | None  # momentum (SGD) or first moment (Adam)
    second: Tensor | None  # second moment (RMSprop, Adam)

    @classmethod
    def empty(cls, weight: Tensor, masked: Tensor, recipe: Recipe) -> LayerState:
        """For a layer's weights, frozen and masked, with the moments that the recipe's optimiser needs; all zeros."""

        def state() -> Tensor:
            return torch.zeros_like(masked, dtype=torch.float32)

        first = state() if recipe.optimiser == "adam" or recipe.momentum else None
        return cls(weight, state(), masked, first, None if recipe.optimiser == "sgd" else state())


def step_scores(layer: LayerState, g: Tensor, recipe: Recipe, done: int, steps: int) -> None:
    """Step number `done` of `steps`, from 0, from the gradient of the masked weights, which may be overwritten."""
    rate = recipe.rate(done, steps)
    alone = torch.get_num_threads() == 1  # a compiled loop beside torch's threads is slower
    if available.NUMBA and alone and layer.masked.dtype == torch.float32 and not g.is_cuda:
        numba_masks.numba_update(layer, g, done + 1, rate, recipe.rule)
    else:
        plain_update(layer, g, recipe, done + 1, rate)


def plain_update(layer: LayerState, g: Tensor, recipe: Recipe, count: int, rate: float) -> None:
    """The optimiser's step number `count` from the gradient of the masked weights [t, out, in], which it overwrites."""
    g.mul_(layer.weight)
    scores = layer.scores
    if recipe.weight_decay:
        g.add_(scores, alpha=recipe.weight_decay)
    decay = recipe.rule.second_decay
    if recipe.optimiser == "rmsprop":
        assert layer.second is not None
        layer.second.mul_(decay).addcmul_(g, g, value=1 - decay)
        scores.addcdiv_(g, layer.second.sqrt().add_(recipe.epsilon), value=-rate)
    elif recipe.optimiser == "adam":
        assert layer.first is not None
        assert layer.second is not None
        layer.first.lerp_(g, 1 - recipe.first_decay)
        layer.second.mul_(decay).addcmul_(g, g, value=1 - decay)
        root = (layer.second.sqrt() / (1 - decay**count) ** 0.5).add_(recipe.epsilon)
        scores.addcdiv_(layer.first, root, value=-rate / (1 - recipe.first_decay**count))
    else:
        if layer.first is not None:
            g = layer.first.mul_(recipe.momentum).add_(g)
        scores.add_(g, alpha=-rate)
    layer.masked.copy_(scores >= 0).mul_(layer.weight)


def pad_width(width: int) -> int:
    """Widths are rounded up to a multiple of 8, with weights of 0, so that rows of half-precision numbers align."""
    return -(-width // 8) * 8


class BatchedTrainer:
    """Scores of t tasks and their optimiser state, and one training step for all of them.

    precision  of the matrix products; scores and optimiser state are float32 always
    steps      how many there will be, for a learning rate that changes
    """

    def __init__(
        self, net: FrozenNet, tasks: int, recipe: Recipe, precision: torch.dtype | None = None, steps: int | None = None
    ) -> None:
        self.net, self.recipe = net, recipe
        self.steps = recipe.steps if steps is None else steps
        self.precision = precision or (torch.bfloat16 if net.device.type == "cuda" else torch.float32)
        self.outputs = list(net.shapes.values())[-1][0]
        self.step_count = torch.zeros(1, dtype=torch.int32, device=net.device)
        self.layers = [self._layer(weight, tasks) for weight in net.weights.values()]
        if net.device.type == "cuda":
            constant = recipe.schedule == "constant" and not recipe.warm_up
            rates = [recipe.rate(step, self.steps) for step in range(1 if constant else self.steps)]
            self._rates = torch.tensor(rates, dtype=torch.float32, device=net.device)  # later steps have the last
        self.resize(recipe.batch_size)

    def resize(self, batch_size: int) -> None:
        """Buffers for batches of another size."""
        tasks, device = len(self.layers[0].scores), self.net.device
        widths = [self.layers[0].weight.shape[1], *(len(layer.weight) for layer in self.layers)]
        self.x, *self.hidden = (
            torch.zeros(tasks, batch_size, width, dtype=self.precision, device=device) for width in widths
        )
        self.y = torch.zeros(tasks, batch_size, dtype=torch.int32, device=device)

    def _layer(self, weight: Tensor, tasks: int) -> LayerState:
        rows, columns = weight.shape
        weight = pad(weight, (0, pad_width(columns) - columns, 0, pad_width(rows) - rows))
        masked = torch.zeros(tasks, *weight.shape, dtype=self.precision, device=weight.device)
        return LayerState.empty(weight, masked, self.recipe)

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
            self.resize(len(x))
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
            below = backward(delta, self.layers[i].masked, inputs[i]) if i else delta
            self._update(self.layers[i], delta, inputs[i])
            delta = below
        self.step_count += 1

    def _update(self, layer: LayerState, delta: Tensor, inputs: Tensor) -> None:
        """A step on a layer's scores, from the gradient at its outputs [t, b, out] and its inputs [t, b, in]."""
        if delta.is_cuda and available.TRITON:
            rule = self.recipe.rule
            triton_training.triton_update(layer, delta, inputs, self.step_count, self._rates, rule)
        else:
            g = torch.bmm(delta.transpose(1, 2), inputs).float()
            step_scores(layer, g, self.recipe, int(self.step_count), self.steps)

    def state(self) -> list[Tensor]:
        """All tensors that training changes, to be copied and restored."""
        changed = [self.step_count, *(tensor for layer in self.layers for tensor in layer[1:])]
        return [tensor for tensor in changed if tensor is not None]

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


def run_steps(step: Callable[[], None], steps: int) -> Iterator[tuple[int, int]]:
    """Take all steps on a GPU; now and then wait for them, and yield how many are done, and how many of them newly."""
    for count in range(1, steps + 1):
        step()
        if count % _REPORTED == 0 or count == steps:
            torch.cuda.synchronize()
            yield count, (count - 1) % _REPORTED + 1


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
        for group in grouped(jobs, alike, lambda job: self.tasks_at_once(net, job, precision)):
            recipe, steps = group[0].recipe, group[0].steps
            trainer = BatchedTrainer(net, len(group), recipe, precision, steps)
            tasks = [job.task for job in group]
            feed = Feed.of(net, group, mapped=True)
            step = repeat_in_graph(partial(trainer.step_from, feed))
            feed.step.zero_()
            start_jobs(trainer, group)
            for count, done in run_steps(step, steps):
                report_step(advance, tasks[0].name, count, steps, trainer.figures)
                advance(len(group) * done / steps)
            trained = Trained(
                tasks, pack_columns(trainer.masks()), {}, trainer.scores() if group[0].keep_scores else None
            )
            del trainer, feed, step
            yield trained


class BatchedOnCPU:
    """As many tasks of a fully connected network at once as torch has threads; see `ThreadsOfOne`."""

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
                of_thread.trainer = BatchedTrainer(net, 1, recipe, precision)
            trainer: BatchedTrainer = of_thread.trainer
            trainer.steps = job.steps
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
    kinds = {(job.recipe, job.scores is None, job.keep_scores) for job in jobs}
    return len(kinds) == 1 and steps_by_hand(net, jobs[0].recipe)


class ThreadsOfOne(ThreadPoolExecutor):
    """A pool whose threads are all started at once, with one torch thread in each, to train tasks side by side.

    Torch would divide every operation of a step among its threads, and where operations are small these mostly wait for
    one another. A lone task has one thread too, so that its mask is the same to the bit whatever it is learned with.

    Setting torch's number of threads applies to the calling thread, and to all threads of the process that start later.
    So it is one only while these threads start. A new thread reads the number and restores it: the calling thread may
    have another number, and may itself have started in such a moment.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        started = threading.Barrier(threads + 1)

        def begin() -> None:
            torch.set_num_threads(1)
            torch.get_num_threads()  # a thread adopts the number at its first query
            started.wait()

        def start() -> None:
            before = torch.get_num_threads()
            try:
                for _ in range(threads):
                    self.submit(int)
                started.wait()
            except BaseException:
                started.abort()
                raise
            finally:
                torch.set_num_threads(before)

        super().__init__(threads, initializer=begin)
        with _STARTING, uninterrupted(), ThreadPoolExecutor(1) as other:
            other.submit(start).result()


def in_threads_of_one(
    train: Callable[[Job, threading.Event], Trained], jobs: Sequence[Job]
) -> Generator[Trained, None, None]:
    """Results in the order of the jobs, as many trained at a time as torch has threads; `train` stops at its event.

    Few jobs start before the first result is taken, so that the consumer gets the cores too: an interruption loses
    masks that have not been taken yet.
    """
    stop = threading.Event()
    with ThreadsOfOne(min(torch.get_num_threads(), len(jobs))) as pool:
        begun: deque[Future[Trained]] = deque()
        try:
            for job in jobs:
                begun.append(pool.submit(train, job, stop))
                if len(begun) > _AHEAD * pool.threads:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
