"""A mask of any module in training with its scores end to end: masking and the optimiser are one pass over memory.

Autograd gives the gradient of the masked weights, as on the plain path, whose steps these are up to rounding.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping, Sequence
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
from supsup.runtime.locks import new_lock
from supsup.runtime.progress import Advance, report
from supsup.training.batches import batch_positions
from supsup.training.draws import DRAWING, seeded
from supsup.training.fast.operations import LayerState, Rates, step_scores
from supsup.training.fast.threads import in_threads_of_one
from supsup.training.jobs import Job, Trained
from supsup.training.plain import figures_of
from supsup.training.recipe import Recipe


class FlatTraining:
    """Scores, their optimiser and the statistics of one task, for masks that a threshold makes.

    channels_last  how images and convolutions lie in memory, which has no meaning but is faster on a CPU
    """

    def __init__(self, net: FrozenNet, recipe: Recipe, steps: int, channels_last: bool) -> None:
        self.net, self.recipe, self.done = net, recipe, 0
        self._rates = Rates(recipe, steps, net.device)
        self._channels_last = channels_last
        sizes = [shape.numel() for shape in net.shapes.values()]

        def zeros() -> Tensor:
            return torch.zeros(1, sum(sizes), device=net.device)

        kind = recipe.optimiser
        self._layer = LayerState(
            weight=zeros()[0],
            scores=zeros(),
            masked=zeros(),
            first=zeros() if kind == "adam" or recipe.momentum else None,
            second=zeros() if kind in ("rmsprop", "adam") else None,
        )
        self._gradient = zeros()
        spans = [slice(stop - size, stop) for size, stop in zip(sizes, accumulate(sizes))]
        self._spans = dict(zip(net.shapes, spans))
        for name, view in self._views(self._layer.weight).items():
            view.copy_(net.weights[name])
        self.masked = {name: view.requires_grad_() for name, view in self._views(self._layer.masked[0]).items()}
        for name, view in self._views(self._gradient[0]).items():
            self.masked[name].grad = view

    def start(self, scores: Mapping[str, Tensor]) -> None:
        """Begin from these scores, with fresh statistics."""
        self.statistics = {name: value.clone() for name, value in self.net.statistics.items()}
        for name, view in self._views(self._layer.scores[0]).items():
            view.copy_(scores[name])
        torch.mul(self._layer.weight, self._layer.scores >= 0, out=self._layer.masked)

    def outputs(self, x: Tensor) -> Tensor:
        """What the network gives in training, to be differentiated by `masked`."""
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
        return figures_of(*self._last)

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


# MERGED MODULE DOC: Training small networks of any kind on a CPU: as many tasks side by side as torch has threads, each on one of them. Torch would divide every operation of a step among its threads, and where operations are small these mostly wait for one another. A lone task has one thread too, so that its mask is the same to the bit whatever it is learned with.
_SMALL = 64 << 20  # bytes that a step keeps for its way back; for more, torch's own threads have enough to do
_TRIALS = 3  # of whether a network draws random numbers: another thread may have drawn them


class _Large(Exception):
    """A step that keeps more than a small network's does."""


class Trial(NamedTuple):
    """What one step showed: whether such steps can be taken side by side, and how tensors should lie in memory."""

    works: bool
    channels_last: bool = False


_trials: WeakKeyDictionary[FrozenNet, dict[Any, Trial]] = WeakKeyDictionary()


class SideBySide:
    """The executor for small modules on a CPU whose masks a threshold makes."""

    name = "side by side on a CPU"

    def takes(self, net: FrozenNet, jobs: Sequence[Job], precision: torch.dtype | None) -> bool:
        if net.device.type != "cpu" or net.head or precision not in (None, torch.float32):
            return False
        simple = all(job.recipe.selection == "threshold" for job in jobs)
        return simple and all(tried(net, job.recipe, job.task.train).works for job in jobs)

    def train(
        self, net: FrozenNet, jobs: Sequence[Job], precision: torch.dtype | None, advance: Advance
    ) -> Generator[Trained, None, None]:
        telling = new_lock()

        def train(job: Job, stop: threading.Event) -> Trained:
            task, recipe = job.task, job.recipe
            training = FlatTraining(net, recipe, job.steps, tried(net, recipe, task.train).channels_last)
            training.start(job.first_scores(net))
            order = batch_positions(net.seed, task.name, len(task.train), recipe.batch_size, job.steps)
            for x, y in task.train.training_batches(order, net.seed, task.name):
                if stop.is_set():
                    break
                training.step(x, y)
                with telling:
                    report(advance, task.name, training.done, job.steps, training.figures)
                    advance(1 / job.steps)
            scores = {name: value[None] for name, value in training.scores().items()}
            packed = pack_columns({name: value >= 0 for name, value in scores.items()})
            statistics = {name: value[None] for name, value in training.statistics.items()}
            return Trained([task], packed, statistics, scores if job.keep_scores else None)

        yield from in_threads_of_one(train, jobs)


def tried(net: FrozenNet, recipe: Recipe, part: Part) -> Trial:
    """What a step on a batch of this size shows; tried once for each network."""
    shape, tokens = (recipe.batch_size, *part.shape), part.tokens
    known = _trials.setdefault(net, {})
    if (shape, tokens) not in known:
        x = torch.zeros(shape, dtype=torch.int64 if tokens else torch.float32)
        known[shape, tokens] = _trial(net, recipe, x)
    return known[shape, tokens]


def _trial(net: FrozenNet, recipe: Recipe, x: Tensor) -> Trial:
    """A module may ask for one layout (`view`), change its weights, or leave some out: then it is not for us."""
    for channels_last in (True, False):
        try:
            return Trial(_is_plain(net, recipe, x, channels_last), channels_last)
        except _Large:
            return Trial(False)
        except RuntimeError:
            continue
    return Trial(False)


def _is_plain(net: FrozenNet, recipe: Recipe, x: Tensor, channels_last: bool) -> bool:
    """Whether a step neither draws random numbers nor leaves a weight out; an error where it cannot be taken."""
    training = FlatTraining(net, recipe, 1, channels_last)
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        if sum(kept.values()) > _SMALL:
            raise _Large
        return tensor

    for _ in range(_TRIALS):
        training.start(net.weights)
        with DRAWING, seeded(net.seed, "trial", net.device):
            before = torch.get_rng_state()
            with saved_tensors_hooks(note, lambda tensor: tensor):
                outputs = training.outputs(x)
            with torch.enable_grad():
                gradients = torch.autograd.grad(outputs.sum(), list(training.masked.values()), allow_unused=True)
            if torch.equal(before, torch.get_rng_state()):
                return all(gradient is not None for gradient in gradients)
    return False
