"""Training small networks on a CPU by autograd: as many tasks side by side as torch has threads (`ThreadsOfOne`)."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import cross_entropy

from supsup.data import Part
from supsup.masks.bank import pack_columns
from supsup.masks.frozen import FrozenNet
from supsup.runtime.locks import new_lock
from supsup.runtime.progress import Advance, report_step
from supsup.training.executors import CannotTrain, Job, Trained, batch_positions
from supsup.training.fast.batched import LayerState, in_threads_of_one, step_scores
from supsup.training.plain import RANDOM_LOCK, loss_and_accuracy, seeded
from supsup.training.recipe import Recipe

_SMALL = 64 << 20  # bytes that a step keeps for the backward pass; larger steps keep torch's own threads busy
_PROBES = 3  # of whether a network draws random numbers: another thread may have drawn them


class FlatTraining:
    """Scores of one task end to end, so that masking and the optimiser are one pass over memory; and its statistics.

    For masks that a threshold makes. Autograd gives the gradient of the masked weights, as on the plain path, whose
    steps these are up to rounding.

    layout  of images and convolutions in memory; channels last is faster on a CPU, and changes nothing else
    """

    def __init__(self, net: FrozenNet, recipe: Recipe, steps: int, layout: torch.memory_format) -> None:
        self.net, self.recipe, self.steps, self.layout, self.done = net, recipe, steps, layout, 0
        size = sum(shape.numel() for shape in net.shapes.values())
        self._layer = LayerState.empty(torch.zeros(size), torch.zeros(1, size), recipe)
        self._gradient = torch.zeros_like(self._layer.scores)
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
        if self.layout == torch.channels_last and x.ndim == 4:
            x = x.contiguous(memory_format=self.layout)
        with self.net.training() as module, torch.enable_grad():
            return self.net.run(x, self.masked | self.statistics, module)

    def step(self, x: Tensor, y: Tensor) -> None:
        """One batch."""
        outputs = self.outputs(x)
        with torch.enable_grad():
            loss = cross_entropy(outputs, y)
        loss.backward()
        step_scores(self._layer, self._gradient, self.recipe, self.done, self.steps)
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
        shapes = self.net.shapes
        views = {}
        for (name, shape), piece in zip(shapes.items(), flat.split([shape.numel() for shape in shapes.values()])):
            views[name] = piece.view(shape)
            if self.layout == torch.channels_last and len(shape) == 4:
                outputs, inputs, height, width = shape
                views[name] = piece.view(outputs, height, width, inputs).permute(0, 3, 1, 2)
        return views


_layouts: WeakKeyDictionary[FrozenNet, dict[Any, torch.memory_format | None]] = WeakKeyDictionary()


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
        if any(step_layout(net, job.recipe, job.task.train) is None for job in jobs):
            raise CannotTrain
        telling = new_lock()

        def train(job: Job, stop: threading.Event) -> Trained:
            task, recipe = job.task, job.recipe
            layout = step_layout(net, recipe, task.train)
            assert layout is not None
            training = FlatTraining(net, recipe, job.steps, layout)
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


def step_layout(net: FrozenNet, recipe: Recipe, part: Part) -> torch.memory_format | None:
    """The layout in which steps on a batch of this size can be taken side by side; None: in no layout.

    One step is tried for each network and shape, and its outcome remembered. A module may need one layout (`view`),
    change its weights, or leave some out: then it cannot be trained here.
    """
    shape, tokens = (recipe.batch_size, *part.shape), part.tokens
    known = _layouts.setdefault(net, {})
    if (shape, tokens) not in known:
        x = torch.zeros(shape, dtype=torch.int64 if tokens else torch.float32)
        known[shape, tokens] = _layout(net, recipe, x)
    return known[shape, tokens]


def _layout(net: FrozenNet, recipe: Recipe, x: Tensor) -> torch.memory_format | None:
    for layout in (torch.channels_last, torch.contiguous_format):
        try:
            return layout if _is_plain(net, recipe, x, layout) else None
        except CannotTrain:
            return None
        except RuntimeError:
            continue
    return None


def _is_plain(net: FrozenNet, recipe: Recipe, x: Tensor, layout: torch.memory_format) -> bool:
    """Whether a step draws no random numbers and uses every weight; an error where it cannot be taken or is large."""
    training = FlatTraining(net, recipe, 1, layout)
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        if sum(kept.values()) > _SMALL:
            raise CannotTrain
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
