"""Which task do these images belong to? Every method that the paper names, as functions of a query and a bank of masks.

Images come as [r, b, …]: r decisions from b images each. Answers are indices into the bank, [r].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from supsup.inference import objectives, search
from supsup.inference.gradient import Goal, can_be_captured, query
from supsup.inference.objectives import Margin
from supsup.masks.bank import Bank
from supsup.masks.frozen import FrozenNet
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import check_fields, choice, names, optional, real, text, whole

Method = Literal["auto", "features", "one-shot", "binary", "gamma", "descent", "exhaustive"]
_CHOOSING = ("auto", "features")  # methods that take no other settings
_MOST_STEPS = 10_000  # of descent: a file may ask for any number
Gradient = Callable[[Tensor | None, Tensor | None], Tensor]  # (decisions [n], α [k]; None: all) → −∂Obj/∂α [n, k]
Answered = Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]  # (what runs a network, images [n, …]) → outputs


@dataclass(frozen=True)
class Inference:
    """How a task is inferred.

    method      one-shot: one gradient decides. binary: halve the candidates until one is left. gamma: keep the best
                fraction `gamma` each time (1/2 is binary, 1/k is one-shot). descent: gradient descent on α.
                exhaustive: try every mask and take the lowest objective (k passes).
                features: one pass without a mask, and statistics that every task left when it was learned.
                auto: features, the best few masks where they leave doubt and, among many tasks, one gradient
                (docs/inference.md).
    objective   "H" entropy, "G" superfluous outputs only (needs more outputs than classes), "M" minus the maximum.
                For exhaustive also "energy" and "mixture", calibrated for each task (`objectives.CALIBRATED`).
    layers      which weights' gradients count: "all" as in the paper, "first", "last", or names of weights.
    coordinates for one-shot: rank the tasks from about so many numbers of the gradient alone, those largest in size,
                eight neighbours at a time, and decide exactly among the best few. None: all of them. 16,384 are enough
                for thousands of tasks.
    """

    method: Method = "one-shot"
    objective: str = "H"
    layers: str | Sequence[str] = "all"
    gamma: float = 0.5
    steps: int = 20
    step_size: float = 0.1
    coordinates: int | None = None

    def __post_init__(self) -> None:
        check_fields(
            self,
            method=choice(*get_args(Method)),
            objective=choice(*objectives.OBJECTIVES, *objectives.CALIBRATED),
            layers=_layers,
            gamma=real(above=0, below=1),
            steps=whole(1, _MOST_STEPS),
            step_size=real(above=0),
            coordinates=optional(whole(1)),
        )
        if self.coordinates is not None and self.method != "one-shot":
            raise SupSupError(f"coordinates goes with method 'one-shot', not {self.method!r}; leave one of them out")
        if self.objective in objectives.CALIBRATED and self.method != "exhaustive":
            raise SupSupError(
                f"objective {self.objective!r} compares masks one by one: it goes with method 'exhaustive', not "
                f"{self.method!r}"
            )

        if self.method in _CHOOSING and replace(self, method="one-shot") != Inference():
            raise SupSupError(
                f"method {self.method!r} takes no other settings; leave them out, or name the method they are for"
            )

    def replaced(self, **settings: Any) -> Inference:
        """With other settings; where they come without a method to one that takes none, they are for One-Shot.

        "energy" and "mixture" are for exhaustive.
        """
        given = {name: value for name, value in settings.items() if isinstance(value, str)}
        method, objective = given.get("method"), given.get("objective")
        if "method" not in settings and settings and self.method in _CHOOSING:
            calibrated = objective in objectives.CALIBRATED
            return Inference(**{"method": "exhaustive" if calibrated else "one-shot"} | settings)
        return Inference(**settings) if method in _CHOOSING else replace(self, **settings)

    @property
    def needs_profiles(self) -> bool:
        """Whether tasks are found by what they left when they were learned."""
        return self.method in _CHOOSING or self.objective in objectives.CALIBRATED


def _layers(value: Any, name: str) -> str | tuple[str, ...]:
    """A word, or the names of weights; that they are the network's is checked where it is known."""
    return text(value, name) if isinstance(value, str) else tuple(names(value, name))


AUTO = Inference("auto")  # how `SupSup` infers when nobody says how


class Decision(NamedTuple):
    """The index of a mask for each decision [r], and how it stands out among the candidates.

    standing  None: there is one candidate only; a tensor: NaN, it was not looked at
    method_used  how it was found
    """

    chosen: Tensor
    margin: Margin | Tensor | None = None
    method_used: str = ""


class TaskView(NamedTuple):
    """Images [r, b, …] as some of the tasks see them, by index (None: as all do)."""

    x: Tensor
    members: Sequence[int] | None = None

    def of(self, decisions: Tensor) -> TaskView:
        """Some of the decisions."""
        return TaskView(self.x[decisions], self.members)


def infer(net: FrozenNet, bank: Bank, x: Tensor, members: Sequence[int] | None, classes: int, how: Inference) -> Tensor:
    """The index of the mask that each decision falls on, among `members` of the bank (None: all of them)."""
    return decide(net, bank, [TaskView(x)], members, classes, how).chosen


def decide(
    net: FrozenNet,
    bank: Bank,
    views: Sequence[TaskView],
    members: Sequence[int] | None,
    classes: int,
    how: Inference,
    answered: Mapping[int, Answered] | None = None,
) -> Decision:
    """`infer`, and how far the task stands out.

    answered  by index, how tasks are tried that answer by more than one pass: from what runs a network, and images

    Where tasks do not see images alike, the superposition is shown each view, and a candidate has its number from the
    gradient of its own; `coordinates` is for one view.
    """
    x = views[0].x
    everyone = members is None or len(set(members)) == len(bank)

    def candidates() -> Tensor:
        if members is None or everyone:
            return torch.arange(len(bank), device=bank.device)
        return torch.tensor(members, dtype=torch.int64, device=bank.device)

    if len(bank if members is None else members) == 1:
        return Decision(candidates().expand(len(x)))
    if how.method == "exhaustive":
        level = objectives.LEVELS[how.objective]
        return exhaustive(net, bank, views, candidates(), lambda y: level(y, classes), answered or {})
    layers, goal = choose_layers(net, how.layers), Goal(how.objective, classes)
    alive = None if everyone else _membership(bank, candidates())
    if how.coordinates is not None and len(views) == 1:
        found = few_coordinates(net, bank, x, alive, goal, layers, how.coordinates)
        return Decision(found, torch.full((len(x),), torch.nan, device=x.device))

    def gradient(decisions: Tensor | None, alpha: Tensor | None) -> Tensor:
        seen = views if decisions is None else [view.of(decisions) for view in views]
        return gradient_of_views(net, bank, seen, alpha, goal, layers)

    if how.method == "one-shot":
        return one_shot(net, bank, x, alive, goal, layers, gradient if len(views) > 1 else None)
    everywhere = _membership(bank, candidates()).expand(len(x), -1)
    if how.method == "descent":
        return descend(gradient, everywhere, how.steps, how.step_size)
    return narrow(gradient, everywhere, 0.5 if how.method == "binary" else how.gamma)


def choose_layers(net: FrozenNet, layers: str | Sequence[str]) -> list[str]:
    """Names of the weights whose gradients count."""
    names = list(net.weights)
    if isinstance(layers, str):
        known = {"all": names, "first": names[:1], "last": names[-1:]}
        if layers not in known:
            raise SupSupError(f"unknown layers {layers!r}; use 'all', 'first', 'last' or names from {names}")
        return known[layers]
    unknown = set(layers) - set(names)
    if unknown or not layers:
        raise SupSupError(f"unknown layers {sorted(unknown)}; the network's weights are {names}")
    return [name for name in names if name in set(layers)]


def alpha_gradient(
    net: FrozenNet, bank: Bank, x: Tensor, alpha: Tensor | None, goal: Goal, layers: Sequence[str]
) -> Tensor:
    """−∂Obj/∂αᵢ at the superposition with coefficients α [k] (None: 1/k each), for each decision: [r, k]."""
    superposed = bank.superposition(alpha)
    return torch.cat(
        [search.inner(query(net, piece, superposed, goal, layers), bank) for piece in _pieces(bank, x, layers)]
    )


def gradient_of_views(
    net: FrozenNet, bank: Bank, views: Sequence[TaskView], alpha: Tensor | None, goal: Goal, layers: Sequence[str]
) -> Tensor:
    """`alpha_gradient` [r, k], for each task that of the images as it sees them."""
    first, *others = (alpha_gradient(net, bank, view.x, alpha, goal, layers) for view in views)
    for g, view in zip(others, views[1:]):
        first[:, view.members] = g[:, view.members]
    return first


def first_gradient(
    net: FrozenNet, bank: Bank, views: Sequence[TaskView], members: Sequence[int], classes: int, how: Inference
) -> Tensor:
    """What One-Shot decides by: −∂Obj/∂αᵢ [r, members] at their superposition, all with the same coefficient."""
    candidates = torch.tensor(members, dtype=torch.int64, device=bank.device)
    alive = _membership(bank, candidates)
    alpha = None if bool(alive.all()) else alive / alive.sum()
    goal, layers = Goal(how.objective, classes), choose_layers(net, how.layers)
    return gradient_of_views(net, bank, views, alpha, goal, layers)[:, candidates]


def one_shot(
    net: FrozenNet,
    bank: Bank,
    x: Tensor,
    alive: Tensor | None,
    goal: Goal,
    layers: Sequence[str],
    gradient: Gradient | None = None,
) -> Decision:
    """The largest coordinate of a single gradient; alive [k] says which masks are candidates (None: all)."""
    if alive is not None:
        alpha = alive / alive.sum()
        g = alpha_gradient(net, bank, x, alpha, goal, layers) if gradient is None else gradient(None, alpha)
        return _largest(g.masked_fill_(~alive, -torch.inf), alive)
    if gradient is not None:
        return _largest(gradient(None, None))

    def answer(images: Tensor) -> Decision:
        return _largest(alpha_gradient(net, bank, images, None, goal, layers))

    if not x.is_cuda:
        return answer(x)

    def packed(images: Tensor) -> Tensor:
        index, margin, _ = answer(images)
        assert isinstance(margin, Margin)
        return torch.stack([index.double(), *(number.double() for number in margin[:3])])

    question = (net, tuple(x.shape), goal, *layers)
    index, best, mean, variance = bank.replays.answer(question, packed, x, lambda: can_be_captured(net))
    return Decision(index.long(), Margin(best, mean, variance, len(bank)))


def _largest(g: Tensor, alive: Tensor | None = None) -> Decision:
    best = g.max(1)
    return Decision(best.indices, Margin.of(best.values, g if alive is None else g[:, alive]))


def few_coordinates(
    net: FrozenNet, bank: Bank, x: Tensor, alive: Tensor | None, goal: Goal, layers: Sequence[str], coordinates: int
) -> Tensor:
    """One-Shot from the largest numbers of the query alone, exact among the best candidates."""
    superposed = bank.superposition(None if alive is None else alive / alive.sum())

    def answer(images: Tensor) -> Tensor:
        queries = (query(net, piece, superposed, goal, layers) for piece in _pieces(bank, images, layers))
        return torch.cat([search.nearest(rows, bank, coordinates, alive) for rows in queries])

    if alive is not None or not search.on_gpu(bank):
        return answer(x)
    question = (net, tuple(x.shape), goal, *layers, coordinates)
    return bank.replays.answer(question, answer, x, lambda: can_be_captured(net))


def narrow(gradient: Gradient, alive: Tensor, gamma: float) -> Decision:
    """Keep the best ⌈γ·n⌉ of n candidates (always fewer than n) until one is left; alive is [r, k].

    Decisions that still consider the same candidates share one superposition. How far the last one stands out is seen
    in the first gradient.
    """
    first: Tensor | None = None
    candidates_first = alive[0]
    while (remaining := int(alive[0].sum())) > 1:
        keep = min(remaining - 1, max(1, math.ceil(gamma * remaining - 1e-9)))
        still = torch.zeros_like(alive)
        for decisions, candidates in _same_rows(alive):
            g = gradient(decisions, candidates / remaining).masked_fill(~candidates, -torch.inf)
            still[decisions] = torch.zeros_like(g, dtype=torch.bool).scatter_(1, g.topk(keep, dim=1).indices, True)
            first = g if first is None else first  # all decisions begin with the same candidates
        alive = still
    index = alive.int().argmax(1)
    assert first is not None
    return Decision(index, Margin.of(first.gather(1, index[:, None])[:, 0], first[:, candidates_first]))


def descend(gradient: Gradient, alive: Tensor, steps: int, step_size: float) -> Decision:
    """α ← α − η∇, negative coefficients to 0 and the rest renormalised, after `steps` steps the largest."""
    alpha = alive / alive.sum(1, keepdim=True)
    for _ in range(steps):
        moved = torch.zeros_like(alpha)
        for decisions, shared in _same_rows(alpha):
            moved[decisions] = (shared + step_size * gradient(decisions, shared)).clamp(min=0) * alive[decisions]
        total = moved.sum(1, keepdim=True)
        alpha = torch.where(total > 0, moved / total.clamp(min=torch.finfo(total.dtype).tiny), alpha)
    return _largest(alpha.masked_fill(~alive, -torch.inf), alive[0])


def exhaustive(
    net: FrozenNet,
    bank: Bank,
    views: Sequence[TaskView],
    candidates: Tensor,
    score: Callable[[Tensor], Tensor],
    answered: Mapping[int, Answered],
) -> Decision:
    """Every candidate mask in turn, on images as its task sees them; the one with the lowest objective."""
    seen = {index: view.x for view in views[1:] for index in view.members or ()}
    values = []
    for index in candidates.tolist():
        x = seen.get(index, views[0].x)
        run, images = partial(net.run_many, weights=net.masked(bank.subnetwork(index))), x.flatten(0, 1)
        outputs = answered[index](run, images) if index in answered else run(images)
        values.append(score(outputs).view(x.shape[:2]).mean(1))
    levels = torch.stack(values)
    lowest = levels.min(0)
    return Decision(candidates[lowest.indices], Margin.of(-lowest.values, -levels.T))


def _membership(bank: Bank, candidates: Tensor) -> Tensor:
    """[k] booleans: which masks are candidates."""
    return torch.zeros(len(bank), dtype=torch.bool, device=bank.device).index_fill_(0, candidates, True)


def _pieces(bank: Bank, x: Tensor, layers: Sequence[str]) -> tuple[Tensor, ...]:
    """Decisions in pieces whose queries fit into memory."""
    pieces: tuple[Tensor, ...] = x.split(search.rows_at_once(bank, layers))
    return pieces


def _same_rows(rows: Tensor) -> list[tuple[Tensor, Tensor]]:
    """(indices of equal rows, the row) for each different row."""
    unique, group = rows.unique(dim=0, return_inverse=True)
    return [((group == i).nonzero().flatten(), row) for i, row in enumerate(unique)]
