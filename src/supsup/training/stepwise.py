"""Training one mask batch by batch, for `observe`: it can be suspended half-trained and resumed later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from supsup.data import Part
from supsup.kernels.graphs import repeat_in_graph
from supsup.masks.frozen import FrozenNet
from supsup.runtime.errors import SupSupError
from supsup.runtime.interrupts import uninterrupted
from supsup.training.executors import Feed, feature_map
from supsup.training.fast.batched import BatchedTrainer, steps_by_hand
from supsup.training.plain import MaskTraining
from supsup.training.recipe import Recipe

_STEPS = 20  # steps in one launch on a GPU


def step_trainer(net: FrozenNet, recipe: Recipe) -> StepTrainer:
    """The fastest trainer for this network."""
    if recipe.schedule != "constant" or recipe.warm_up:
        raise SupSupError(
            'observe has no last step, so its learning rate must be constant: Recipe(schedule="constant")'
        )
    if recipe.self_labels is not None:
        raise SupSupError(
            "observe does not know a task's classes before it ends, so it cannot use self_labels; use learn"
        )
    return DirectSteps(net, recipe) if steps_by_hand(net, recipe) else StepTrainer(net, recipe)


class StepTrainer:
    """For any module, by autograd. A step is never interrupted."""

    def __init__(self, net: FrozenNet, recipe: Recipe) -> None:
        self.net, self.recipe = net, recipe

    def start(self, scores: Mapping[str, Tensor], statistics: Mapping[str, Tensor] | None = None) -> None:
        """Start a mask from these scores, and from a task's statistics if given."""
        self.trainer = MaskTraining(self.net, scores, self.recipe, statistics=statistics)

    def suspend(self) -> Any:
        """The mask being trained, with its scores and optimiser state."""
        return self.trainer

    def resume(self, state: Any) -> None:
        """Continue with a mask that was suspended."""
        self.trainer = state

    def step(self, x: Tensor, y: Tensor) -> None:
        """One batch."""
        with uninterrupted():
            self.trainer.step(x, y)

    def run(self, part: Part, positions: Tensor) -> None:
        """The batches of a part at positions [n, b], one after the other."""
        part = part.on(self.net.device)
        for batch in positions:
            self.step(*part.batch(batch))

    def mask(self) -> dict[str, Tensor]:
        """The mask as it stands, and the task's statistics."""
        return self.trainer.mask() | self.trainer.statistics


class DirectSteps(StepTrainer):
    """The same for fully connected networks, by hand; on a GPU the batches of `run` never wait for the host."""

    def __init__(self, net: FrozenNet, recipe: Recipe) -> None:
        super().__init__(net, recipe)
        self.batched = BatchedTrainer(net, 1, recipe)
        self._feed: Feed | None = None  # on a GPU, and the functions that take one batch, or `_STEPS`, from it
        self._one_step: Callable[[], None]
        self._steps: Callable[[], None]

    def start(self, scores: Mapping[str, Tensor], statistics: Mapping[str, Tensor] | None = None) -> None:
        self.batched.start(lambda name: [scores[name][None]])

    def suspend(self) -> list[Tensor]:
        return [value.clone() for value in self.batched.state()]

    def resume(self, state: list[Tensor]) -> None:
        for value, kept in zip(self.batched.state(), state):
            value.copy_(kept)

    def step(self, x: Tensor, y: Tensor) -> None:
        with uninterrupted():
            self.batched.load(x, y)
            self.batched.step()

    def run(self, part: Part, positions: Tensor) -> None:
        if self.net.device.type != "cuda":
            super().run(part, positions)
            return
        part, positions = part.on(self.net.device), positions.to(self.net.device)
        feed, order = self._feed_for(part, positions), positions.flatten()
        assert feed.maps is not None
        feed.maps[0] = feature_map(part)
        feed.rows[0, : len(order)] = (order if part.rows is None else part.rows[order]).int()
        feed.labels[0, : len(order)] = part.labels[order].int()
        feed.step.zero_()
        for _ in range(len(positions) // _STEPS):
            self._steps()
        for _ in range(len(positions) % _STEPS):
            self._one_step()

    def mask(self) -> dict[str, Tensor]:
        return {name: bits[0] for name, bits in self.batched.masks().items()}

    def _feed_for(self, part: Part, positions: Tensor) -> Feed:
        """A feed for these images with room for the positions."""
        batch_size, feed = positions.shape[1], self._feed
        same_size = self.batched.x.shape[1] == batch_size
        if feed and same_size and feed.part.images is part.images and positions.numel() <= feed.rows.shape[1]:
            return feed
        if not same_size:
            self.batched.resize(batch_size)
        feed = self._feed = Feed.empty(part, 1, positions.numel(), mapped=True)
        state, one = self.suspend(), partial(self.batched.step_from, feed)
        self._one_step, self._steps = repeat_in_graph(one), repeat_in_graph(one, _STEPS)
        self.resume(state)
        return feed
