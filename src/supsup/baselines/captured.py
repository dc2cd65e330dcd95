"""Training a rival's tasks on any module on a GPU: the plain path's step, captured, with its batches on the device.

Matrix products are in bfloat16 (autocast); weights, moments and statistics stay float32. Independent tasks go side by
side on streams of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from supsup.baselines.loop import Loop, Pace
from supsup.baselines.side_by_side import State
from supsup.data import Part, Task
from supsup.errors import SupSupError
from supsup.training.order import many_positions
from supsup.training.recipe import Recipe

if TYPE_CHECKING:
    from supsup.baselines.rival import Method

_AT_ONCE = 10  # steps in one launch: each is hundreds of kernels
_DRAWN_AT_ONCE = 1000  # steps whose augmentation is drawn in one go


class Batches:
    """A task's training batches on the device, step after step: rows, labels and augmentation drawn beforehand."""

    def __init__(self, part: Part, steps: int, batch_size: int) -> None:
        device = part.images.device
        self.part, self.steps, self.batch_size = part, steps, batch_size
        self.rows = torch.zeros(steps, batch_size, dtype=torch.int64, device=device)
        self.labels = torch.zeros_like(self.rows)
        self.draws = torch.zeros(steps, batch_size, 3, dtype=torch.int16, device=device)
        self.count = torch.zeros(1, dtype=torch.int64, device=device)
        self.gain, self.offset = (
            number.float().view(-1, *[1] * (len(part.shape) - 1)) for number in (part.gain, part.offset)
        )

    def fill(self, part: Part, name: str, seed: int, offset: int) -> None:
        """The batches of a task, as the plain path has them."""
        drawn = self.steps * self.batch_size
        order = many_positions(seed, [name], len(part), drawn, self.rows.device)[0]
        self.rows.copy_((order if part.rows is None else part.rows[order]).view_as(self.rows))
        self.labels.copy_(part.labels[order].view_as(self.labels) + offset)
        if part.augmentation is not None:
            for start in range(0, self.steps, _DRAWN_AT_ONCE):
                numbers = range(start, min(start + _DRAWN_AT_ONCE, self.steps))
                drawn_now = part.augmentation.draws_many(seed, [name], numbers, self.batch_size, self.rows.device)
                self.draws[start : numbers.stop] = drawn_now[0].short()
        self.count.zero_()

    def next(self) -> tuple[Tensor, Tensor]:
        """The batch of the present step, and on to the next."""
        rows, y, draws = (table.index_select(0, self.count)[0] for table in (self.rows, self.labels, self.draws))
        images = self.part.images.index_select(0, rows).float()
        if self.part.augmentation is not None:
            images = self.part.augmentation.apply(images, draws.long())
        self.count += 1
        return images * self.gain + self.offset, y


class Bench:
    """One task at a time of a method, on any module: a state to train, and its step."""

    def __init__(self, method: Method, state: State, recipe: Recipe, part: Part) -> None:
        if part.pixels is not None:
            raise SupSupError("tasks with rearranged pixels are for fully connected networks")
        first, steps = not method.own, recipe.steps_for(len(part))
        self.method, self.recipe, self.part = method, recipe, part
        self.state = {name: value.clone() for name, value in state.items()}
        self._trained = [name for name in self.state if method.trains(name, first)]
        self.pace = Pace(recipe, [self.state[name].requires_grad_() for name in self._trained], steps)
        self.batches = Batches(part, steps, recipe.batch_size)
        method.net.train()
        self.loop = Loop(self._step, steps, method.device, _AT_ONCE)

    def fits(self, state: State, recipe: Recipe, part: Part) -> bool:
        """Whether such a task can be trained here."""
        names = [name for name in state if self.method.trains(name, not self.method.own)]
        same = (recipe, names, recipe.steps_for(len(part))) == (self.recipe, self._trained, self.loop.steps)
        return same and part.images is self.part.images and part.augmentation == self.part.augmentation

    def _step(self) -> None:
        x, y = self.batches.next()
        if x.is_cuda and x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)  # what convolutions in bfloat16 like
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda, cache_enabled=False):
            outputs = self.method.run(self.state, x)
        loss = cross_entropy(outputs.float(), y)
        penalty = self.method.penalty(self.state)
        self.pace.optimiser.zero_grad()
        (loss if penalty is None else loss + penalty).backward()
        self.method.before_update(self.state)
        self.pace.step()
        self.method.after_update(self.state)

    @torch.no_grad()
    def start(self, state: State, task: Task) -> None:
        """Begin a task from this state."""
        for name, value in state.items():
            self.state[name].copy_(value)
        part, method = task.train.on(self.method.device), self.method
        self.batches.fill(part, task.name, method.seed, method.label_offset(task))
        self.pace.restart()
        method.net.train()

    def trained(self) -> State:
        """The state as it stands."""
        return {name: value.detach().clone() for name, value in self.state.items()}


def learn_captured(method: Method, task: Task) -> None:
    """The next task."""
    method.check(task)
    state = method.begin(task)
    bench = _bench(method, 0, state, task)
    bench.start(state, task)
    bench.loop.run()
    method.finish(task, bench.trained())


def learn_on_streams(method: Method, tasks: Sequence[Task]) -> None:
    """Independent tasks, each on a bench and a stream of its own; the host does not wait for them."""
    states = [method.begin(task) for task in tasks]
    benches = [_bench(method, i, state, task) for i, (state, task) in enumerate(zip(states, tasks))]
    for bench, state, task in zip(benches, states, tasks):
        bench.start(state, task)
    here, streams = torch.cuda.current_stream(), [torch.cuda.Stream() for _ in tasks]
    for stream in streams:
        stream.wait_stream(here)
    for number in range(max(bench.loop.launches for bench in benches)):
        for bench, stream in zip(benches, streams):
            if number < bench.loop.launches:
                with torch.cuda.stream(stream):
                    bench.loop.launch()
    for stream in streams:
        here.wait_stream(stream)
    for bench, task in zip(benches, tasks):
        method.finish(task, bench.trained())


def _bench(method: Method, number: int, state: State, task: Task) -> Bench:
    """A bench for a task: that of an earlier task if it fits, since capturing takes its time."""
    recipe, part = method.recipe_of_next(), task.train.on(method.device)
    if number < len(method.benches) and method.benches[number].fits(state, recipe, part):
        return method.benches[number]
    bench = Bench(method, state, recipe, part)
    method.benches[number : number + 1] = [bench]
    return bench
