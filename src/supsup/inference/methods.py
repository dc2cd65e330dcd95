"""`Inference`, how the task of an input is inferred, and the table of methods.

A new method is a file with one function, and one line in `METHODS`. A setting of its own is one more field of
`Inference`, with its check.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from torch import Tensor

from supsup.inference.auto import auto_scores, decide_auto, decide_features, task_likelihoods
from supsup.inference.binary import decide_binary, decide_gamma
from supsup.inference.candidates import Candidates, Decision, NoMargin, first_gradient
from supsup.inference.descent import decide_descent
from supsup.inference.exhaustive import decide_exhaustive, mask_scores
from supsup.inference.objectives import OBJECTIVES
from supsup.inference.one_shot import decide_one_shot
from supsup.inference.profiles.profile import CALIBRATED
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import CheckedFields, choice, names, real, text, whole

_MOST_STEPS = 10_000  # of descent: a file may ask for any number


class Method(NamedTuple):
    """One row of the table.

    decide          the task of each decision, among two candidates or more
    scores          what the first pass gives each candidate: [r, candidates], the higher the better. The server shows
                    them; a method that does not score candidates itself takes `first_gradient`
    settings        fields of `Inference` beside `method` that may be given with it
    objectives      that it takes, if `objective` is among its settings
    needs_profiles  tasks must have been given profiles when they were learned
    """

    decide: Callable[[Candidates], Decision]
    scores: Callable[[Candidates], Tensor]
    settings: tuple[str, ...] = ()
    objectives: Collection[str] = tuple(OBJECTIVES)
    needs_profiles: bool = False


# The paper's methods accept each other's settings, even unused ones, so that a model can change from one to another.
# A new method lists only its own.
_SHARED = ("objective", "layers", "gamma", "steps", "step_size")
METHODS: dict[str, Method] = {
    "auto": Method(decide_auto, auto_scores, needs_profiles=True),
    "features": Method(decide_features, task_likelihoods, needs_profiles=True),
    "one-shot": Method(decide_one_shot, first_gradient, (*_SHARED, "coordinates")),
    "binary": Method(decide_binary, first_gradient, _SHARED),
    "gamma": Method(decide_gamma, first_gradient, _SHARED),
    "descent": Method(decide_descent, first_gradient, _SHARED),
    "exhaustive": Method(decide_exhaustive, mask_scores, _SHARED, (*OBJECTIVES, *CALIBRATED)),
}

if TYPE_CHECKING:
    MethodName = str
else:
    MethodName = Literal[tuple(METHODS)]  # command lines take their choices from it


@dataclass(frozen=True)
class Inference(CheckedFields):
    """How a task is inferred.

    method      one-shot: one gradient decides. binary: halve the candidates until one is left. gamma: keep the best
                fraction `gamma` each time (1/2 is binary, 1/k is one-shot). descent: gradient descent on α.
                exhaustive: try every mask and take the lowest objective (k passes).
                features: one pass without a mask; each task's profile says how likely its result is.
                auto: features, the best few masks where they leave doubt and, among many tasks, one gradient
                (docs/inference.md).
    objective   "H" entropy, "G" superfluous outputs only (needs more outputs than classes), "M" minus the maximum.
                For exhaustive also "energy" and "mixture", calibrated for each task.
    layers      which weights' gradients count: "all" as in the paper, "first", "last", or names of weights.
    coordinates for one-shot: rank the tasks from about this many numbers of the gradient alone, the largest in size,
                eight neighbours at a time, and decide exactly among the best few. None: all of them. 16,384 are enough
                for thousands of tasks.
    """

    method: Annotated[str, choice(*METHODS)] = "one-shot"
    objective: Annotated[str, choice(*OBJECTIVES, *CALIBRATED)] = "H"
    layers: Annotated[str | Sequence[str], _layers] = "all"
    gamma: Annotated[float, real(above=0, below=1)] = 0.5
    steps: Annotated[int, whole(1, _MOST_STEPS)] = 20
    step_size: Annotated[float, real(above=0)] = 0.1
    coordinates: Annotated[int, whole(1)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        method = METHODS[self.method]
        if self.objective not in method.objectives:
            suited = [name for name, other in METHODS.items() if self.objective in other.objectives]
            raise SupSupError(
                f"objective {self.objective!r} compares masks one by one: it goes with method "
                f"{' or '.join(map(repr, suited))}, not {self.method!r}"
            )
        for setting in fields(self)[1:]:
            if setting.name not in method.settings and getattr(self, setting.name) != setting.default:
                suited = [name for name, other in METHODS.items() if setting.name in other.settings]
                raise SupSupError(
                    f"{setting.name} goes with method {' or '.join(map(repr, suited))}, not {self.method!r}; "
                    "leave one of them out"
                )

    def replaced(self, **settings: Any) -> Inference:
        """With other settings; those that another method does not take go, unless they were named.

        A method without settings yields to the default, or to one that takes the objective.
        """
        wanted, objective = settings.get("method", self.method), settings.get("objective")
        method = METHODS.get(wanted) if isinstance(wanted, str) else None
        if not settings or (method is not None and method.settings):
            usual: dict[str, Any] = {}
            if method is not None and wanted != self.method:
                usual = {field.name: field.default for field in fields(self)[1:] if field.name not in method.settings}
                usual |= {} if self.objective in method.objectives else {"objective": Inference.objective}
            return replace(self, **(usual | settings))
        if isinstance(objective, str) and objective in CALIBRATED:
            suited = next(name for name, method in METHODS.items() if objective in method.objectives)
            settings = {"method": suited} | settings
        return Inference(**settings)


def _layers(value: Any, name: str) -> str | tuple[str, ...]:
    """A word, or names of weights; that the network has them is checked once it is known."""
    return text(value, name) if isinstance(value, str) else tuple(names(value, name))


AUTO = Inference("auto")  # the default of `SupSup`


def choose_tasks(candidates: Candidates) -> Decision:
    """The candidate that each decision falls on, by the method of the settings."""
    if len(candidates.indices) == 1:
        chosen = candidates.index_tensor.expand(len(candidates.views[0].x))
        return Decision(chosen, NoMargin.CERTAIN, "the only task")
    method = candidates.settings.method
    decision = METHODS[method].decide(candidates)
    return decision if decision.method_used else decision._replace(method_used=method)
