"""Training small networks on a CPU: as many tasks side by side as torch has threads, each on one of them.

Torch would divide every operation of a step among its threads, and where operations are small these mostly wait for one
another. A lone task has one thread too, so that its mask is the same to the bit whatever it is learned with.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import cross_entropy

from supsup.data import Part
from supsup.masks.bank import pack_columns
from supsup.masks.frozen import FrozenNet
from supsup.runtime.interrupts import uninterrupted
from supsup.runtime.locks import new_lock
from supsup.runtime.progress import Advance, report_step
from supsup.training.batches import batch_positions
from supsup.training.executors import CannotTrain, Job, Trained
from supsup.training.fast.operations import LayerState, Rates, step_scores
from supsup.training.plain import RANDOM_LOCK, loss_and_accuracy, seeded
from supsup.training.recipe import Recipe

_SMALL = 64 << 20  # bytes that a step keeps for the backward pass; larger steps keep torch's own threads busy
_PROBES = 3  # of whether a network draws random numbers: another thread may have drawn them
_STARTING = new_lock()
_AHEAD = 2  # jobs for each thread, of which one waits


class ThreadsOfOne(ThreadPoolExecutor):
    """A pool whose threads are all started at once, with one torch thread in each.

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


class FlatTraining:
    """Scores of one task end to end, so that masking and the optimiser are one pass over memory; and its statistics.

    For masks that a threshold makes. Autograd gives the gradient of the masked weights, as on the plain path, whose
    steps these are up to rounding.

    channels_last  how images and convolutions lie in memory, which changes nothing but is faster on a CPU
    """

    def __init__(self, net: FrozenNet, recipe: Recipe, steps: int, channels_last: bool) -> None:
        self.net, self.recipe, self.done = net, recipe, 0
        self._rates = Rates(recipe, steps, net.device)
        self._channels_last = channels_last
        sizes = [shape.numel() for shape in net.shapes.values()]

        self._layer = LayerState.empty(torch.zeros(sum(sizes), device=net.device), 1, recipe)
        self._gradient = torch.zeros_like(self._layer.scores)
        spans = [slice(stop - size, stop) for size, stop in zip(sizes, accumulate(sizes))]
        self._spans = dict(zip(net.shapes, spans))
        for name, view in self._views(self._layer.weight).items():
            view.copy_(net.weights[name])
        self.masked = {name: view.requires_grad_() for name, view in self._views(self._layer.masked[0]).items()}
        for name, view in self._views(self._gradient[0]).items():
            self.masked[name].grad = view

    def start(self, scores: Mapping[str, Tensor]) -> None:
        """Start from these scores, with fresh statistics."""
        self.statistics = {name: value.clone() for name, value in self.net.statistics.items()}
        for name, view in self._views(self._layer.scores[0]).items():
            view.copy_(scores[name])
        torch.mul(self._layer.weight, self._layer.scores >= 0, out=self._layer.masked)

    def outputs(self, x: Tensor) -> Tensor:
        """The network's outputs in training mode, to be differentiated by `masked`."""
        if self._channels_last and x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        with self.net.training() as module, torch.enable_grad():
            return self.net.run(x, self.masked | self.statistics, module)

    def step(self, x: Tensor, y: Tensor) -> None:
        """One batch."""
        outputs = self.outputs(x)
        with torch.enable_grad():
            loss = cross_entropy(outputs, y)
        loss.backward()
        step_scores(self._layer, self._gradient, self.recipe, self.done, self._rates)
        self._gradient.zero_()
        self.done += 1
        self._last = outputs.detach(), y

    def figures(self) -> tuple[float, float]:
        """Loss and accuracy of the last batch, before its step."""
        return loss_and_accuracy(*self._last)

    def scores(self) -> dict[str, Tensor]:
        """The scores as they stand, a copy."""
        views = self._views(self._layer.scores[0])
        return {name: view.clone(memory_format=torch.contiguous_format) for name, view in views.items()}

    def _views(self, flat: Tensor) -> dict[str, Tensor]:
        """Where each weight lies in a tensor of all of them."""
        return {name: self._shaped(flat[span], self.net.shapes[name]) for name, span in self._spans.items()}

    def _shaped(self, flat: Tensor, shape: torch.Size) -> Tensor:
        if self._channels_last and len(shape) == 4:
            outputs, inputs, height, width = shape
            return flat.view(outputs, height, width, inputs).permute(0, 3, 1, 2)
        return flat.view(shape)


class _Large(Exception):
    """A step keeps more than `_SMALL` bytes."""


class StepProbe(NamedTuple):
    """What one step shows: whether steps can be taken side by side, and the layout of tensors in memory."""

    works: bool
    channels_last: bool = False


_probes: WeakKeyDictionary[FrozenNet, dict[Any, StepProbe]] = WeakKeyDictionary()


class SideBySide:
    """The executor for small modules on a CPU whose masks a threshold makes."""

    name = "side by side on a CPU"

    def takes(self, net: FrozenNet, jobs: Sequence[Job], precision: torch.dtype | None) -> bool:
        possible = net.device.type == "cpu" and not net.head and precision in (None, torch.float32)
        return possible and all(job.recipe.selection == "threshold" for job in jobs)

    def tasks_at_once(self, net: FrozenNet, job: Job, precision: torch.dtype | None) -> int:
        return torch.get_num_threads()

    def train(
        self, net: FrozenNet, jobs: Sequence[Job], precision: torch.dtype | None, advance: Advance
    ) -> Generator[Trained, None, None]:
        if not all(probe_step(net, job.recipe, job.task.train).works for job in jobs):
            raise CannotTrain
        telling = new_lock()

        def train(job: Job, stop: threading.Event) -> Trained:
            task, recipe = job.task, job.recipe
            training = FlatTraining(net, recipe, job.steps, probe_step(net, recipe, task.train).channels_last)
            training.start(job.first_scores(net))
            order = batch_positions(net.seed, task.name, len(task.train), recipe.batch_size, job.steps)
            for x, y in task.train.training_batches(order, net.seed, task.name):
                if stop.is_set():
                    break
                training.step(x, y)
                with telling:
                    report_step(advance, task.name, training.done, job.steps, training.figures)
                    advance(1 / job.steps)
            scores = {name: value[None] for name, value in training.scores().items()}
            packed = pack_columns({name: value >= 0 for name, value in scores.items()})
            statistics = {name: value[None] for name, value in training.statistics.items()}
            return Trained([task], packed, statistics, scores if job.keep_scores else None)

        yield from in_threads_of_one(train, jobs)


def probe_step(net: FrozenNet, recipe: Recipe, part: Part) -> StepProbe:
    """What a step on a batch of this size shows; tried once for each network, and remembered."""
    shape, tokens = (recipe.batch_size, *part.shape), part.tokens
    known = _probes.setdefault(net, {})
    if (shape, tokens) not in known:
        x = torch.zeros(shape, dtype=torch.int64 if tokens else torch.float32)
        known[shape, tokens] = _probe(net, recipe, x)
    return known[shape, tokens]


def _probe(net: FrozenNet, recipe: Recipe, x: Tensor) -> StepProbe:
    """A module may need one layout (`view`), change its weights, or leave some out: then it cannot be trained here."""
    for channels_last in (True, False):
        try:
            return StepProbe(_is_plain(net, recipe, x, channels_last), channels_last)
        except _Large:
            break
        except RuntimeError:
            continue
    return StepProbe(False)


def _is_plain(net: FrozenNet, recipe: Recipe, x: Tensor, channels_last: bool) -> bool:
    """Whether a step draws no random numbers and uses every weight; an error where it cannot be taken."""
    training = FlatTraining(net, recipe, 1, channels_last)
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        if sum(kept.values()) > _SMALL:
            raise _Large
        return tensor

    for _ in range(_PROBES):
        training.start(net.weights)
        with RANDOM_LOCK, seeded(net.seed, "trial", net.device):
            before = torch.get_rng_state()
            with saved_tensors_hooks(note, lambda tensor: tensor):
                outputs = training.outputs(x)
            with torch.enable_grad():
                gradients = torch.autograd.grad(outputs.sum(), list(training.masked.values()), allow_unused=True)
            if torch.equal(before, torch.get_rng_state()):
                return all(gradient is not None for gradient in gradients)
    return False
