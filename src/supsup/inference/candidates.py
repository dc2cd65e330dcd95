"""What a method of task inference gets and returns.

It gets `Candidates`: images, candidate tasks, and how to run a task's network. It returns a `Decision`: a mask for each
decision, and how sure it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from supsup.data.rotations import ROTATIONS, mean_over_rotations
from supsup.data.task import TaskInfo
from supsup.inference.gradient import Goal, alpha_gradient, choose_layers
from supsup.inference.profiles.features import extract_features
from supsup.inference.profiles.profile import ProfileIndex, TaskProfile
from supsup.masks.bank import Bank
from supsup.masks.frozen import FrozenNet, SwitchedNets

if TYPE_CHECKING:
    from supsup.inference.methods import Inference


class KnownTask(Protocol):
    """What inference needs to know of a task; `observe` does not know its classes (0): then all outputs count."""

    name: str
    classes: int
    info: TaskInfo
    profile: TaskProfile | None


class KnownTasks(Protocol):
    """A table of tasks, in the order of their masks; `version` is another object after every change."""

    @property
    def version(self) -> object: ...

    def __len__(self) -> int: ...

    def at(self, index: int) -> KnownTask: ...


class TaskNetworks:
    """The networks of all tasks: one frozen network, and for each task a mask and what is known of it.

    warned  whether `auto.py` warned of similar tasks: it does so once
    """

    def __init__(self, net: FrozenNet, bank: Bank, tasks: KnownTasks, switched: SwitchedNets | None = None) -> None:
        self.net, self.bank, self.tasks = net, bank, tasks
        self.warned = False
        self._switched = SwitchedNets(net) if switched is None else switched
        self._profile_index = ProfileIndex()

    def outputs(self, index: int, x: Tensor) -> Tensor:
        """Outputs [n, s] of one task's network, averaged over rotations if the task was learned in all of them."""
        run, task = partial(self._switched.run, self.bank, index), self.tasks.at(index)
        if task.info.rotated:
            run = partial(mean_over_rotations, run, task.classes)
        found = [run(piece) for piece in self.net.pieces(x)]
        return found[0] if len(found) == 1 else torch.cat(found)

    def profile_index(self, features: int) -> ProfileIndex:
        """The index over all profiles with this many features, brought up to date with the task table."""
        index, tasks = self._profile_index, self.tasks
        if index.version is not tasks.version or index.features != features:
            profiles = [tasks.at(i).profile for i in range(len(tasks))]
            index = self._profile_index = index.updated(tasks.version, features, profiles, self.net.device)
        return index


class TaskView(NamedTuple):
    """Images [r, b, …] as the network sees them for some of the tasks, by index (None: for all)."""

    x: Tensor
    members: Sequence[int] | None = None


@dataclass(frozen=True)
class Candidates:
    """The tasks that images may belong to. Every method of the table takes this and returns a `Decision`.

    networks  the frozen network, the masks, what is known of each task, and how to run its network
    views     the images [r, b, …]: r decisions from b images each, one view for each way that tasks preprocess inputs
    settings  how to decide
    members   indices of the candidates; None: all tasks
    """

    networks: TaskNetworks
    views: Sequence[TaskView]
    settings: Inference
    members: Sequence[int] | None = None

    @cached_property
    def all_tasks(self) -> bool:
        """Whether every task is a candidate."""
        return self.members is None or len(set(self.members)) == len(self.networks.bank)

    @cached_property
    def indices(self) -> Sequence[int]:
        """The index of each candidate, once; scores [r, candidates] are in this order."""
        if self.members is None or self.all_tasks:
            return range(len(self.networks.bank))
        return list(dict.fromkeys(self.members))

    @cached_property
    def tasks(self) -> list[KnownTask]:
        """What is known of each candidate."""
        return [self.networks.tasks.at(index) for index in self.indices]

    @cached_property
    def index_tensor(self) -> Tensor:
        """`indices` where the masks are."""
        device = self.networks.bank.device
        if self.all_tasks:
            return torch.arange(len(self.networks.bank), device=device)
        return torch.tensor(self.indices, dtype=torch.int64, device=device)

    @cached_property
    def membership(self) -> Tensor:
        """Which masks of the bank are candidates: [k] booleans."""
        bank = self.networks.bank
        return torch.zeros(len(bank), dtype=torch.bool, device=bank.device).index_fill_(0, self.index_tensor, True)

    @cached_property
    def uniform(self) -> Tensor | None:
        """The same coefficient for every candidate's mask: α [k]; None where all tasks are candidates."""
        return None if self.all_tasks else self.membership / self.membership.sum()

    @cached_property
    def features(self) -> list[Tensor]:
        """Features [r, b, d] of each view."""
        net = self.networks.net
        return [extract_features(net, view.x.flatten(0, 1)).unflatten(0, view.x.shape[:2]) for view in self.views]

    @cached_property
    def goal(self) -> Goal:
        """What gradients minimise; they never rotate images, so every rotation of a class counts as a class."""
        used = (task.classes * (ROTATIONS if task.info.rotated else 1) for task in self.tasks)
        return Goal(self.settings.objective, max(used))

    @cached_property
    def layers(self) -> list[str]:
        """Names of the weights whose gradients count."""
        return choose_layers(self.networks.net, self.settings.layers)

    @cached_property
    def view_of(self) -> dict[int, int]:
        """The number of a task's view, by its index; a task that is missing has the first."""
        return {index: number for number, view in enumerate(self.views) if number for index in view.members or ()}

    def outputs(self, index: int, decisions: Tensor | slice = slice(None)) -> Tensor:
        """All outputs [n, b, s] of one candidate's network, for some decisions; its classes are the first of them."""
        x: Tensor = self.views[self.view_of.get(index, 0)].x[decisions]
        found: Tensor = self.networks.outputs(index, x.flatten(0, 1)).unflatten(0, x.shape[:2])
        return found

    def gradient(
        self,
        alpha: Tensor | None,
        decisions: Tensor | slice = slice(None),
        goal: Goal | None = None,
        layers: Sequence[str] | None = None,
    ) -> Tensor:
        """−∂Obj/∂α [n, k] at coefficients α [k] (None: 1/k each); each task's number comes from its own view."""
        net, bank, goal, layers = self.networks.net, self.networks.bank, goal or self.goal, layers or self.layers
        first, *others = (alpha_gradient(net, bank, view.x[decisions], alpha, goal, layers) for view in self.views)
        for g, view in zip(others, self.views[1:]):
            first[:, view.members] = g[:, view.members]
        return first

    def highest(self, scores: Tensor, method_used: str = "", *, are_log_p: bool = False) -> Decision:
        """The candidate with the highest of the scores [r, candidates]; of equal ones the first in `indices`.

        are_log_p  softmax says how sure the choice is; otherwise a `Margin` does, which takes scores to be about normal
        """
        best = scores.max(1)
        margin = scores.softmax(1).amax(1) if are_log_p else Margin.of(best.values, scores)
        return Decision(self.index_tensor[best.indices], margin, method_used)


def first_gradient(candidates: Candidates) -> Tensor:
    """−∂Obj/∂αᵢ [r, candidates] at the uniform superposition: what gradient methods look at first."""
    return candidates.gradient(candidates.uniform)[:, candidates.index_tensor]


def highest_mask(values: Tensor, membership: Tensor | None) -> Decision:
    """The mask with the highest of the values [r, k]; membership [k] says which are candidates (None: all)."""
    best = values.max(1)
    return Decision(best.indices, Margin.of(best.values, values if membership is None else values[:, membership]))


def equal_rows(rows: Tensor) -> list[tuple[Tensor, Tensor]]:
    """(indices of equal rows, the row) for each different row: decisions that share one superposition."""
    unique, group = rows.unique(dim=0, return_inverse=True)
    return [((group == i).nonzero().flatten(), row) for i, row in enumerate(unique)]


_FEW_CANDIDATES = 3  # too few for a standard deviation of the others


class Margin(NamedTuple):
    """How far the best of k candidates is ahead: its score, and mean and variance of all scores, each [r]."""

    best: Tensor
    mean: Tensor
    variance: Tensor
    candidates: int

    @classmethod
    def of(cls, best: Tensor, scores: Tensor) -> Margin:
        """From the scores [r, k] of all candidates, the larger the better."""
        variance, mean = torch.var_mean(scores, 1, correction=0)
        return cls(best, mean, variance, scores.shape[1])

    def confidence(self) -> Tensor:
        """The chance [r] that the best of k − 1 wrong candidates scores lower.

        Wrong candidates score normally, with the mean and deviation of the others. One or two others have no useful
        deviation: then it is the softmax of the best score against the others' mean.
        """
        k = self.candidates
        above = (self.best - self.mean).double() * (k / (k - 1))  # the mean of the others
        if k <= _FEW_CANDIDATES:
            return ((k - 1) * (-above).exp() + 1).reciprocal().float()
        variance = self.variance.double() * (k / (k - 1)) - above.square() / k
        deviations = above / variance.clamp(min=torch.finfo(torch.float64).tiny).sqrt()
        logarithm: Tensor = torch.special.log_ndtr(deviations)
        return ((k - 1) * logarithm).exp().float()


class NoMargin(Enum):
    """Why a decision has no margin; the value is its confidence."""

    CERTAIN = 1.0  # the task was given, or it is the only candidate
    NOT_MEASURED = float("nan")  # the method does not score every candidate


class Decision(NamedTuple):
    """The index of a mask for each decision [r], its margin, and how it was found (empty: by the method asked for).

    margin  a tensor [r] is the confidence itself
    """

    chosen: Tensor
    margin: Margin | NoMargin | Tensor
    method_used: str = ""
