"""What the baselines have in common: the face of `SupSup`, and a state (named tensors) for the task being learned.

A baseline says what the state of a task is, which of its tensors are trained, and what weights they give;
`executors` says who trains it.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from supsup.data import Task
from supsup.data.task import TaskInfo
from supsup.file.task_record import LearnedTask
from supsup.model import checks
from supsup.model.checks import Array
from supsup.model.predictor import Outputs, Prediction, check_outputs
from supsup.model.state import check_among, unknown_task
from supsup.nets.execution import ModuleCopies, has_only_known_layers, run_with_weights
from supsup.nets.fully_connected import unmodified_layers
from supsup.runtime import progress
from supsup.runtime.devices import resolve
from supsup.runtime.errors import SupSupError
from supsup.runtime.locks import ReadersWriter, new_lock
from supsup.runtime.process import one_thread_when_forked
from supsup.runtime.validation import choice, given, listed, names, whole
from supsup.training import Recipe
from supsup.training.fast.captured import CapturedTraining
from supsup.training.plain import State
from supsup_paper.baselines import initial
from supsup_paper.baselines.training import Stack, learn_independent, learn_one
from supsup_paper.residual.blocks import unmodified_blocks

_IMAGES = 16384  # images in one forward pass


class Baseline(ABC):
    """A network with weights that all tasks share and, for some methods, tensors that each task has of its own.

    net      any module; copied, its layers filled from `seed`
    recipe   how a task is trained
    first    how the first task is trained, where that differs
    filling  how the layers are filled, where not as the paper has it for this method; heads of tasks may have their own

    Many threads may ask while one learns; those that learn take turns. Copies and pickles have all that was learned.
    """

    filling: initial.Filling = "kaiming_normal"
    head_filling: initial.Filling | None = None  # of the last layer, where it differs
    needs_task = True  # an answer depends on the task, which must be given or inferred
    independent = False  # a task does not depend on those before it …
    first_matters = True  # … except for the first
    broadcasts = False  # `effective` takes states [n, …] as well, and nothing else is done to outputs

    def __init__(
        self,
        net: nn.Module,
        seed: int = 0,
        *,
        recipe: Recipe | None = None,
        first: Recipe | None = None,
        filling: initial.Filling | None = None,
        device: str | torch.device = "auto",
    ) -> None:
        if filling is not None:
            choice(*initial.FILLINGS)(filling, "filling")
            self.filling = filling
        self.device = resolve(device)
        self.seed = whole()(seed, "seed")
        self.recipe = Recipe() if recipe is None else given(recipe, Recipe, "recipe")
        if self.recipe.self_labels is not None or self.recipe.crops is not None:
            raise SupSupError("self_labels and crops are for masks; a baseline learns its tasks as they are")
        self.first = self.recipe if first is None else given(first, Recipe, "first")
        self.net = copy.deepcopy(given(net, nn.Module, "net")).requires_grad_(False).to(self.device)
        self.layers = initial.layer_names(net)
        if not self.layers:
            raise SupSupError("nothing to train: the network has no linear or convolutional layer")
        self.statistics = {n for n, _ in net.named_buffers() if n.endswith(("running_mean", "running_var"))}
        filled = initial.initial_weights(net, self.seed, self.filling, self.device, self.head_filling)
        self.shared: State = filled | self.fresh_statistics()
        self.own: dict[str, State] = {}  # by task, in the order of learning
        self.learned: dict[str, LearnedTask] = {}  # what is known of each of them
        self.stack: Stack | None = None  # what the last task was trained with, where states are run at once
        self.lanes: list[CapturedTraining] = []  # the same on another network on a GPU
        self.captures: bool | None = None  # whether that network can be captured, once it was tried
        self.stackable = unmodified_layers(self.net) is not None  # `run_side_by_side` knows the forward pass
        self.residual = self.broadcasts and _has_known_passes(self.net)  # kernels know all of its passes
        self.draws = not has_only_known_layers(self.net)  # layers may draw random numbers in training
        self._ready_for_threads()

    def _ready_for_threads(self) -> None:
        one_thread_when_forked()
        self.copies = ModuleCopies(self.net)
        self.lock = ReadersWriter()  # answers read what `finish` writes
        self.changing = new_lock()  # held by the thread that learns

    def __getstate__(self) -> dict[str, Any]:
        """All that was learned, without what training is made faster with."""
        with self.lock.reading():
            dropped: dict[str, Any] = {"stack": None, "lanes": [], "captures": None}
            return {
                name: dict(value) if isinstance(value, dict) else value
                for name, value in (vars(self) | dropped).items()
                if name not in ("copies", "lock", "changing")
            }

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._ready_for_threads()

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks learned, in order."""
        return list(self.own)

    @property
    def head(self) -> str:
        """The name of the last layer's weight."""
        return self.layers[-1]

    @property
    @abstractmethod
    def bytes(self) -> int:
        """What has to be stored for all tasks learned, counted as the paper counts it (docs/baselines.md)."""

    def fresh_statistics(self) -> State:
        """The running statistics of normalisation layers before anything was seen."""
        buffers = dict(self.net.named_buffers())
        return {name: buffers[name].detach().clone() for name in sorted(self.statistics)}

    def begin(self, task: Task) -> State:
        """The state from which a new task is trained."""
        return dict(self.shared)

    def trains(self, name: str, first: bool) -> bool:
        """Whether a tensor of the state is trained, on the first task or a later one."""
        return name not in self.statistics

    def trained_names(self, state: State) -> list[str]:
        """Which tensors of the state are trained on the next task."""
        return [name for name in state if self.trains(name, not self.own)]

    def training(self) -> AbstractContextManager[nn.Module]:
        """A module for `run` whose layers behave as in training."""
        return self.copies.borrow(training=True)

    def keep(self, task: Task, state: State) -> None:
        """`finish` as one step, whole or not at all, which no answer sees half of."""
        closed = self.closed(task, state)
        with self.lock.writing():
            self.finish(task, closed)
            self.learned[task.name] = LearnedTask(task.name, task.classes, info=TaskInfo(task.names))

    def closed(self, task: Task, state: State) -> State:
        """A trained state with all that takes its time to compute from it."""
        return state

    def finish(self, task: Task, state: State) -> None:
        """Keep what the training of a task has made of its state."""
        self.shared = {name: state[name] for name in self.shared}
        self.own[task.name] = {}

    def state_of(self, task: str | None) -> State:
        """The state that answers for a task."""
        return self.shared | (self.own[task] if task is not None else {})

    def effective(self, state: Mapping[str, Tensor]) -> State:
        """The network's weights (and statistics) that a state stands for."""
        return {name: state[name] for name in self.shared}

    def run(self, state: State, x: Tensor, module: nn.Module | None = None) -> Tensor:
        """Outputs [images, s] of a state; `module` is that of `training`, or None to answer."""
        return self.run_with(self.effective(state), x, module)

    def run_with(self, weights: State, x: Tensor, module: nn.Module | None = None) -> Tensor:
        """Outputs [images, s] with these weights and statistics."""
        if module is None:
            with self.copies.borrow() as idle:
                return self.run_with(weights, x, idle)
        out: Tensor = run_with_weights(module, weights, x)
        return out

    def run_side_by_side(self, state: State, x: Tensor) -> Tensor:
        """Outputs [n, b, s] of n states of a fully connected network for a batch each; tensors are [n, …]."""
        for name in self.layers[:-1]:
            x = (x @ state[name].mT).relu_()
        return x @ state[self.head].mT

    def penalty(self, state: State) -> Tensor | None:
        """What is added to the loss."""
        return None

    def before_update(self, state: State) -> None:  # noqa: B027  most methods need nothing here
        """Called between the gradient and the optimiser's step."""

    def after_update(self, state: State) -> None:  # noqa: B027  nor here
        """Called after the optimiser's step."""

    def label_offset(self, task: Task) -> int:
        """What is added to a new task's labels to find their outputs."""
        return 0

    def recipe_of_next(self) -> Recipe:
        """How the next task is trained."""
        return self.recipe if self.own else self.first

    def learn(self, data: Task, /) -> str:
        """Train on the next task; returns its name."""
        with self.changing:
            learn_one(self, given(data, Task, "the task"))
        return data.name

    def learn_many(self, stream: Sequence[Task], *, show_progress: bool | None = None) -> list[str]:
        """Learn a stream; tasks that do not depend on each other are trained together where that is known."""
        tasks = listed(stream, "the stream", "tasks")
        with progress.bar("learning", len(tasks), show=show_progress) as advance:
            for count in self.learning(tasks):
                if self.device.type == "cuda":
                    torch.cuda.current_stream(self.device).synchronize()
                advance(count)
        return [task.name for task in tasks]

    def learning(self, stream: Sequence[Task]) -> Iterator[int]:
        """`learn_many` in pieces, so that several methods can take turns; yields how many tasks were just learned."""
        tasks = listed(stream, "the stream", "tasks")
        for task in tasks:
            self.check(task)
        alone = tasks if not self.independent else tasks[: 0 if self.own or not self.first_matters else 1]
        for task in alone:
            self.learn(task)
            yield 1
        yield from learn_independent(self, tasks[len(alone) :])

    @torch.no_grad()
    def predict(
        self, x: Array, task: str | None = None, *, among: Sequence[str] | None = None, outputs: Outputs = "classes"
    ) -> Prediction:
        """A label for every image, with the task given where the method needs it.

        among    where it is not given: only these tasks come into question (all by default)
        outputs  "all": also those that stand for no class may answer, as the paper grades
        """
        check_outputs(outputs, "outputs")
        with self.lock.reading():
            asked = None if among is None else names(among, "among")
            name = self.answering(task, asked)
            classes = self.most_classes([name] if task is not None else asked) if outputs == "classes" else None
            probabilities = self.probabilities(self.checked_images(x), self.state_of(name), classes)
            return Prediction.of(probabilities, [name] * len(probabilities), self.info_of([name]))

    def most_classes(self, tasks: Iterable[str] | None) -> int:
        """The most classes that one of these tasks has (of all by default)."""
        return max(self.learned[name].classes for name in (self.own if tasks is None else tasks))

    def info_of(self, tasks: Iterable[str]) -> dict[str, TaskInfo]:
        """What the tasks have of their own, for an answer."""
        return {name: self.learned[name].info for name in tasks}

    def checked_images(self, x: Array) -> Tensor:
        """Images on the device, or an error if the network does not take them."""
        images = checks.check_images(x, self.device)
        self.outputs_for(images)
        return images

    @torch.no_grad()
    def outputs_for(self, images: Tensor) -> int:
        """How many outputs the network gives for such images, or an error if it does not take them."""
        return checks.count_outputs(lambda x: self.run_with(self.shared, x), images)

    def outputs_with(self, images: Tensor, state: State) -> Tensor:
        """All outputs for each image."""
        return torch.cat([self.run(state, piece) for piece in images.split(_IMAGES)])

    def probabilities(self, images: Tensor, state: State, classes: int | None) -> Tensor:
        """Of each class (None: of every output) for each image."""
        return self.outputs_with(images, state)[:, :classes].softmax(-1)

    def answering(self, task: str | None, among: Sequence[str] | None = None) -> str:
        """The task to answer for, or an error that says what to do.

        A method that does not need the task answers in the name of the newest that comes into question.
        """
        if not self.own:
            raise SupSupError("no task has been learned yet; call learn first")
        if task is not None:
            if not isinstance(task, str) or task not in self.own:
                raise unknown_task(task, self.tasks)
            return task
        check_among(among, self.own)
        if self.needs_task:
            raise SupSupError(f"{type(self).__name__} has to be told the task: predict(x, task=...)")
        asked = self.own if among is None else set(among)
        return next(name for name in reversed(self.own) if name in asked)

    def check(self, task: Task) -> None:
        """An error if a task cannot be learned."""
        checks.check_new_task(task, None, self.own)
        checks.check_finite(task, self.device)
        first, _ = task.train.batch(torch.zeros(1, dtype=torch.int64))
        outputs = self.outputs_for(first.to(self.device)) - self.label_offset(task)
        checks.check_label_range(task.train.labels, outputs, task.name)


def _has_known_passes(net: nn.Module) -> bool:
    """Whether it is a residual network as its class has it, whose normalisation follows batches by a momentum."""
    momenta = [layer.momentum for layer in net.modules() if isinstance(layer, nn.BatchNorm2d)]
    return unmodified_blocks(net) is not None and None not in momenta
