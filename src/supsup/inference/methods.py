"""The table of inference methods. A new method is a file with one function, and one line in `METHODS`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from torch import Tensor

from supsup.inference.auto import auto_scores, decide_auto
from supsup.inference.binary import decide_binary, decide_gamma
from supsup.inference.candidates import (
    BareMasks,
    Candidates,
    Decision,
    NoMargin,
    TaskNetworks,
    TaskView,
    first_gradient,
)
from supsup.inference.descent import decide_descent
from supsup.inference.exhaustive import decide_exhaustive, mask_scores
from supsup.inference.features import decide_features, task_likelihoods
from supsup.inference.one_shot import decide_one_shot
from supsup.masks.bank import Bank
from supsup.masks.frozen import FrozenNet

if TYPE_CHECKING:
    from supsup.inference.settings import Inference


class Method(NamedTuple):
    """One row of the table.

    decide             the task of each decision, among two candidates or more
    scores             what the first pass gives each candidate: [r, candidates], the higher the better
    needs_profiles     tasks must have been given profiles when they were learned
    takes_settings     fields of `Inference` beside `method` change what it does
    takes_coordinates  also `coordinates`
    takes_calibrated   also the calibrated objectives, "energy" and "mixture"
    """

    decide: Callable[[Candidates], Decision]
    scores: Callable[[Candidates], Tensor]
    needs_profiles: bool = False
    takes_settings: bool = False
    takes_coordinates: bool = False
    takes_calibrated: bool = False


METHODS: dict[str, Method] = {
    "auto": Method(decide_auto, auto_scores, needs_profiles=True),
    "features": Method(decide_features, task_likelihoods, needs_profiles=True),
    "one-shot": Method(decide_one_shot, first_gradient, takes_settings=True, takes_coordinates=True),
    "binary": Method(decide_binary, first_gradient, takes_settings=True),
    "gamma": Method(decide_gamma, first_gradient, takes_settings=True),
    "descent": Method(decide_descent, first_gradient, takes_settings=True),
    "exhaustive": Method(decide_exhaustive, mask_scores, takes_settings=True, takes_calibrated=True),
}

if TYPE_CHECKING:
    MethodName = str
else:
    MethodName = Literal[tuple(METHODS)]  # command lines take their choices from it


def choose_tasks(candidates: Candidates) -> Decision:
    """The candidate that each decision falls on, by the method of the settings."""
    if len(candidates.indices) == 1:
        chosen = candidates.index_tensor.expand(len(candidates.views[0].x))
        return Decision(chosen, NoMargin.CERTAIN, "the only task")
    method = candidates.settings.method
    decision = METHODS[method].decide(candidates)
    return decision if decision.method_used else decision._replace(method_used=method)


def infer_indices(
    net: FrozenNet, bank: Bank, x: Tensor, members: Sequence[int] | None, classes: int, how: Inference
) -> Tensor:
    """The index of the mask that each decision of images [r, b, …] falls on, for masks without a task table."""
    networks = TaskNetworks(net, bank, BareMasks(len(bank), classes))
    return choose_tasks(Candidates(networks, [TaskView(x)], how, members)).chosen
