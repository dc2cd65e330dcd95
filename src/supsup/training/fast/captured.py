"""Training any module on a GPU: the plain path's step as a CUDA graph, several tasks at a time on separate streams.

Matrix products are in bfloat16 (autocast) unless float32 is asked for; scores, moments and statistics are float32.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from supsup.data import Part, Task
from supsup.kernels.graphs import WAITING, repeat_in_graph
from supsup.masks.frozen import FrozenNet
from supsup.runtime.progress import Advance
from supsup.training.executors import (
    CannotTrain,
    Executor,
    Feed,
    Job,
    Trained,
    batch_positions,
    can_feed,
    count_fitting,
    free_memory,
    same_images,
)
from supsup.training.plain import RANDOM_LOCK, State, Trainable, TrainableMask, generator_states, seeded
from supsup.training.recipe import Recipe

_STEPS = 10  # in one launch: each is hundreds of kernels
_STREAMS = 10  # tasks at once at most
_REHEARSALS = 3  # at most: random numbers in one of them may have been drawn by another thread
_AHEAD = 4  # rounds of launches that the host may be ahead of the device
_WARM_UP = 2  # steps that make the optimiser's state and compile kernels before anything is captured


def step_launches(
    step: Callable[[], None], steps: int, device: torch.device, at_once: int = 50
) -> tuple[Callable[[], None], int]:
    """A launch of up to `at_once` steps on a GPU, where they are captured, else of one; and how many launches to make.

    `step` must read and write the same tensors each time and never wait for the host; capturing overwrites the tensors.
    """
    if device.type != "cuda":
        return step, steps
    at_once = max(count for count in range(1, at_once + 1) if steps % count == 0)
    return repeat_in_graph(step, at_once, min(steps, _WARM_UP)), steps // at_once


class ScheduledOptimiser:
    """A torch optimiser that can be reset, and whose learning rate follows a recipe's schedule on the device."""

    def __init__(self, recipe: Recipe, trained: Sequence[Tensor], steps: int) -> None:
        self.optimiser = recipe.build(trained)
        self._rates = torch.tensor([recipe.rate(step, steps) for step in range(steps)], device=trained[0].device)
        self._count = torch.zeros(1, dtype=torch.int64, device=trained[0].device)
        for group in self.optimiser.param_groups:
            group["lr"] = torch.tensor(recipe.learning_rate, device=trained[0].device)
            if trained[0].is_cuda:
                group["capturable"] = True
                group["fused"] = recipe.optimiser != "rmsprop"  # there is no fused one

    def step(self) -> None:
        """One step of the optimiser."""
        for group in self.optimiser.param_groups:
            group["lr"].copy_(self._rates.index_select(0, self._count)[0])
        self.optimiser.step()
        self._count += 1

    def restart(self) -> None:
        """Reset all moments and counts, in place."""
        self._count.zero_()
        for state in self.optimiser.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    value.zero_()


class CapturedTraining:
    """Trains one task at a time: state in tensors that stay, the batches, and the step to be captured.

    precision  of the matrix products (None: bfloat16 on a GPU, float32 on a CPU)
    """

    def __init__(
        self, trainable: Trainable, state: State, recipe: Recipe, part: Part, precision: torch.dtype | None = None
    ) -> None:
        device = trainable.device
        self.trainable, self.recipe, self.part = trainable, recipe, part.on(device)
        self.steps = recipe.steps_for(len(part))
        self.precision = precision or (torch.bfloat16 if device.type == "cuda" else torch.float32)
        self.state: State = {name: _laid_out(value.clone()) for name, value in state.items()}
        self._kind = self._kind_of(state, recipe, part)
        trained = [self.state[name].requires_grad_() for name in trainable.trained_names(self.state)]
        self.scheduled = ScheduledOptimiser(recipe, trained, self.steps)
        self.feed: Feed | None = None
        self._given: Iterator[tuple[Tensor, Tensor]] = iter(())  # batches from the host, where there is no feed
        if can_feed(part):
            drawn = self.steps * recipe.batch_size
            self.feed = Feed.empty(self.part, 1, drawn, mapped=part.pixels is not None)
        else:
            self._x = torch.zeros(recipe.batch_size, *part.shape, device=device)
            self._y = torch.zeros(recipe.batch_size, dtype=torch.int64, device=device)
        self._captured: tuple[Callable[[], None], int] | None = None

    def fits(self, state: State, recipe: Recipe, part: Part) -> bool:
        """Whether a task with this state, recipe and images can be trained here."""
        if self._kind_of(state, recipe, part) != self._kind:
            return False
        return self.feed is None or same_images(part.on(self.trainable.device), self.part)

    def _kind_of(self, state: State, recipe: Recipe, part: Part) -> tuple[object, ...]:
        """What tasks that are trained here, one after the other, have in common."""
        trained, shapes = self.trainable.trained_names(state), {name: value.shape for name, value in state.items()}
        fed = (part.pixels is None,) if can_feed(part) else None
        return recipe, trained, shapes, recipe.steps_for(len(part)), part.shape, fed

    @property
    def launches(self) -> int:
        """The number of launches that make up a task; the first access captures the step."""
        if self._captured is None:
            at_once = _STEPS if self.feed is not None else 1
            try:
                with torch.enable_grad():
                    self._captured = step_launches(self._step, self.steps, self.trainable.device, at_once)
            except RuntimeError as error:
                raise CannotTrain(str(error).splitlines()[0]) from error
        return self._captured[1]

    @torch.no_grad()
    def start(self, state: Mapping[str, Tensor], task: Task, offset: int = 0) -> None:
        """Begin a task from this state; `offset` is added to its labels."""
        assert self.launches
        for name, value in state.items():
            self.state[name].copy_(value)
        self.scheduled.restart()
        seed, recipe = self.trainable.seed, self.recipe
        if self.feed is not None:
            self.feed.fill([task], seed, recipe.batch_size, offset=offset)
            return
        order = batch_positions(seed, task.name, len(task.train), recipe.batch_size, self.steps)
        batches = task.train.on(self.trainable.device).training_batches(order, seed, task.name)
        self._given = ((x, y + offset) for x, y in batches)

    def launch(self) -> None:
        """The next few steps."""
        assert self._captured is not None
        if self.feed is None:
            x, y = next(self._given)
            self._x.copy_(x, non_blocking=True)
            self._y.copy_(y, non_blocking=True)
        self._captured[0]()

    def ended(self) -> State:
        """The state as it stands, a copy."""
        return {name: value.detach().clone() for name, value in self.state.items()}

    def _step(self, watched: nn.Module | None = None) -> None:
        if self.feed is None:
            x, y = self._x, self._y
        else:
            x, y = self.feed.batch(0, self.recipe.batch_size)
            self.feed.step += 1
        x = _laid_out(x)
        reduced = self.precision != torch.float32
        with (
            self.trainable.training() as module,
            torch.autocast(x.device.type, self.precision, reduced, cache_enabled=False),
        ):
            outputs = self.trainable.run(self.state, x, watched or module)
        loss = cross_entropy(outputs.float(), y)
        penalty = self.trainable.penalty(self.state)
        self.scheduled.optimiser.zero_grad()
        (loss if penalty is None else loss + penalty).backward()
        self.trainable.before_update(self.state)
        self.scheduled.step()
        self.trainable.after_update(self.state)

    def rehearse(self) -> bool:
        """Run one step without capturing it; returns whether it drew random numbers on the device.

        `CannotTrain` if the step makes the host wait, or if Python decides anything in it that may be decided
        differently next time: a graph would repeat the first decision for ever.
        """
        device = self.trainable.device
        for _ in range(_REHEARSALS):
            with RANDOM_LOCK, seeded(self.trainable.seed, "rehearsal", device), self.trainable.training() as module:
                before, drawn = _decisions(module), generator_states(device)[-1]
                with WAITING.writing() if device.type == "cuda" else nullcontext(), _no_waiting(device):
                    self._step(module)
                after, drawn_after = _decisions(module), generator_states(device)[-1]
            self.scheduled.restart()
            if self.feed is not None:
                self.feed.step.zero_()
            if before == after:
                return not torch.equal(drawn, drawn_after)
        raise CannotTrain("its forward pass draws random numbers on the host or changes the network")


def run_captured(trainings: Sequence[CapturedTraining], advance: Advance | None = None) -> None:
    """Run all steps of trainings that were started, each on a separate stream.

    advance  is called with every finished share of a task; without it the host does not wait for the device
    """
    rounds = max(training.launches for training in trainings)
    streams: list[torch.cuda.Stream] = []  # none on a CPU
    if trainings[0].trainable.device.type == "cuda":
        here = torch.cuda.current_stream()
        streams = [torch.cuda.Stream() for _ in trainings] if len(trainings) > 1 else [here]
        for stream in streams:
            stream.wait_stream(here)
    marks: list[torch.cuda.Event] = []
    for number in range(rounds):
        share = 0.0
        for i, training in enumerate(trainings):
            if number < training.launches:
                with torch.cuda.stream(streams[i]) if streams else nullcontext():
                    training.launch()
                share += 1 / training.launches
        if advance is not None:
            if streams:
                marks.append(streams[-1].record_event())
                if len(marks) > _AHEAD:
                    marks.pop(0).synchronize()
            advance(share)
    for stream in streams:
        here.wait_stream(stream)


class Captured(Executor):
    """The executor for any module on a GPU."""

    name = "captured on a GPU"

    def takes(self, net: FrozenNet, jobs: Sequence[Job], precision: torch.dtype | None) -> bool:
        return net.device.type == "cuda" and precision in (None, torch.bfloat16, torch.float32)

    def train(
        self, net: FrozenNet, jobs: Sequence[Job], precision: torch.dtype | None, advance: Advance
    ) -> Generator[Trained, None, None]:
        before = torch.cuda.memory_reserved(net.device)
        first = _capture_mask(net, jobs[0], precision)
        with warned():
            draws = first.rehearse()  # random numbers would be drawn in turns, so tasks go one by one
            assert first.launches
        taken = torch.cuda.memory_reserved(net.device) - before
        at_once, captured = 1 if draws else count_fitting(taken, free_memory(net.device), _STREAMS), [first]
        for start in range(0, len(jobs), at_once):
            group = jobs[start : start + at_once]
            with _drawing(net, group[0]):  # what is captured is run once before
                for i, job in enumerate(group):
                    state = _first_state(net, job)
                    if i == len(captured) or not captured[i].fits(state, job.recipe, job.task.train):
                        captured[i : i + 1] = [_capture_mask(net, job, precision)]  # takes long
                    captured[i].start(state, job.task)
            with _drawing(net, group[0]):
                run_captured(captured[: len(group)], advance)
            yield from (
                TrainableMask(net, job.recipe).result(job.task, each.ended()) for job, each in zip(group, captured)
            )


@contextmanager
def _drawing(net: FrozenNet, job: Job) -> Iterator[None]:
    """While it lasts, layers draw the random numbers of a job; networks of known layers draw none."""
    if net.is_known:
        yield
    else:
        with RANDOM_LOCK, seeded(net.seed, job.task.name, net.device):
            yield


def _capture_mask(net: FrozenNet, job: Job, precision: torch.dtype | None) -> CapturedTraining:
    weights = {name: _laid_out(weight) for name, weight in net.weights.items()}
    trainable = TrainableMask(net, job.recipe, weights)
    return CapturedTraining(trainable, _first_state(net, job), job.recipe, job.task.train, precision)


def _first_state(net: FrozenNet, job: Job) -> State:
    return {**net.statistics, **job.first_scores(net)}


def _laid_out(value: Tensor) -> Tensor:
    """Channels last, which convolution kernels of a GPU prefer."""
    return value.contiguous(memory_format=torch.channels_last) if value.is_cuda and value.ndim == 4 else value


def _decisions(modules: nn.Module) -> list[Any]:
    """What Python code may base decisions on: the host's random generators, and settings that layers keep."""
    settings = [
        {n: value for n, value in vars(module).items() if n != "training" and isinstance(value, int | float | str)}
        for module in modules.modules()
    ]
    return [settings, random.getstate(), torch.get_rng_state().tolist()]


@contextmanager
def _no_waiting(device: torch.device) -> Iterator[None]:
    """`CannotTrain` where the host waits for the device, or a layer does not take images channels last."""
    mode = None
    if device.type == "cuda":
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.synchronize(device)
        _watch_waiting("error")
    try:
        yield
    except RuntimeError as error:  # torch's words
        if mode is not None and "synchroniz" in str(error):
            raise CannotTrain("its forward pass waits for the device") from error
        if "view" in str(error) and "reshape" in str(error):
            raise CannotTrain("`view` does not take images channels last: use `reshape` or `nn.Flatten`") from error
        raise
    finally:
        if mode is not None:
            _watch_waiting(mode)


def _watch_waiting(mode: int | str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that this is a prototype
        torch.cuda.set_sync_debug_mode(mode)


@contextmanager
def warned() -> Iterator[None]:
    """A warning where a network cannot be captured."""
    try:
        yield
    except CannotTrain as reason:
        warnings.warn(
            f"this network cannot be captured in a CUDA graph ({reason}), so its tasks are trained one step at a time, "
            "which is several times slower",
            stacklevel=4,
        )
        raise
