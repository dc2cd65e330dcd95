"""Networks that run n states of a rival at once: fully connected ones anywhere, residual ones by kernels on a GPU.

Both have the labels y [n, b] of the batch they took last and `statistics`, running moments [n, channels] by name, which
outputs move. `mapped`: their feed has a map of pixels for each state; `at_once`: steps in one launch of a CUDA graph.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from supsup.data import Part
from supsup.kernels import available
from supsup.nets.resnet import ResNet
from supsup.training.batches import Feed
from supsup.training.fast.operations import gather
from supsup.training.jobs import fitting, free_memory
from supsup.training.trainee import State

if available.TRITON:
    from supsup.training.fast.residual.executor import TOGETHER, addressable, bytes_of_training, feeds
    from supsup.training.fast.residual.function import ResidualFunction
    from supsup.training.fast.residual.passes import Passes

if TYPE_CHECKING:
    from supsup_paper.rivals.rival import Baseline

_CHAINS = 512  # states of a fully connected network at once at most
_KERNELS = {"cuda": torch.bfloat16}  # devices whose kernels residual networks go through, and the activations there


class StackedFullyConnected:
    """A fully connected network, as the rival runs it side by side."""

    mapped, at_once = True, 50

    def __init__(self, rival: Baseline, part: Part, count: int, batch_size: int) -> None:
        self._rival = rival
        self._x = torch.zeros(count, batch_size, math.prod(part.shape), device=rival.device)
        self.y = torch.zeros(count, batch_size, dtype=torch.int32, device=rival.device)
        self.statistics: State = {}

    def load(self, feed: Feed) -> None:
        """Take the batch of the feed's present step."""
        gather(feed, self._x, self.y)

    def outputs(self, state: State) -> Tensor:
        """Outputs [n, b, s] of states [n, …] for that batch; what all of them share is not stacked."""
        return self._rival.run_side_by_side(state, self._x)


class StackedResidual:
    """A residual network with the weights that states stand for, through the kernels that train masks."""

    mapped, at_once = False, 10

    def __init__(self, rival: Baseline, part: Part, count: int, batch_size: int) -> None:
        assert isinstance(rival.net, ResNet)
        self._rival, (channels, height, width) = rival, part.shape
        precision = _KERNELS[rival.device.type]
        self._passes = Passes(rival.net, (channels, height, width), count, batch_size, precision, rival.device)
        self._run = ResidualFunction(self._passes)
        self.y, self.statistics = self._passes.y, self._passes.statistics

    def load(self, feed: Feed) -> None:
        """Take the batch of the feed's present step."""
        self._passes.gather(feed, feed.step)

    def outputs(self, state: State) -> Tensor:
        """Outputs [n, b, s] of states [n, …] for that batch; what all of them share is not stacked."""
        return self._run(self._rival.effective(state))


def known(rival: Baseline) -> bool:
    """Whether states of a rival can be run at once, given the right images."""
    return rival.stackable or (rival.residual and rival.device.type in _KERNELS and available.TRITON)


def stacked_network(rival: Baseline, part: Part) -> type[StackedFullyConnected] | type[StackedResidual] | None:
    """What runs states of a rival at once on these images, in its next task; None where nothing does."""
    if rival.stackable:
        return StackedFullyConnected if part.in_memory and part.augmentation is None else None
    takes = known(rival) and feeds(part) and addressable(rival.net, part, rival.recipe_of_next())
    return StackedResidual if takes else None


def most_at_once(rival: Baseline, part: Part) -> int:
    """How many states of a rival can be trained on such images at once, as far as the device has memory for them."""
    network = stacked_network(rival, part)
    if network is None:
        return 1
    if network is StackedFullyConnected:
        return _CHAINS
    if rival.device.type != "cuda":
        return TOGETHER
    return fitting(bytes_of_training(rival.net, part, rival.recipe_of_next()), free_memory(rival.device), TOGETHER)
