"""`Inference`: how the task of an input is inferred."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from supsup.inference.methods import METHODS
from supsup.inference.objectives import CALIBRATED, OBJECTIVES
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import check_fields, choice, names, optional, real, text, whole

_MOST_STEPS = 10_000  # of descent: a file may ask for any number


@dataclass(frozen=True)
class Inference:
    """How a task is inferred.

    method      one-shot: one gradient decides. binary: halve the candidates until one is left. gamma: keep the best
                fraction `gamma` each time (1/2 is binary, 1/k is one-shot). descent: gradient descent on α.
                exhaustive: try every mask and take the lowest objective (k passes).
                features: one pass without a mask; each task's profile says how likely its result is.
                auto: features, the best few masks where they leave doubt and, among many tasks, one gradient
                (docs/inference.md).
    objective   "H" entropy, "G" superfluous outputs only (needs more outputs than classes), "M" minus the maximum.
                For exhaustive also "energy" and "mixture", calibrated for each task (`objectives.CALIBRATED`).
    layers      which weights' gradients count: "all" as in the paper, "first", "last", or names of weights.
    coordinates for one-shot: rank the tasks from about this many numbers of the gradient alone, the largest in size,
                eight neighbours at a time, and decide exactly among the best few. None: all of them. 16,384 are enough
                for thousands of tasks.
    """

    method: str = "one-shot"
    objective: str = "H"
    layers: str | Sequence[str] = "all"
    gamma: float = 0.5
    steps: int = 20
    step_size: float = 0.1
    coordinates: int | None = None

    def __post_init__(self) -> None:
        check_fields(
            self,
            method=choice(*METHODS),
            objective=choice(*OBJECTIVES, *CALIBRATED),
            layers=_layers,
            gamma=real(above=0, below=1),
            steps=whole(1, _MOST_STEPS),
            step_size=real(above=0),
            coordinates=optional(whole(1)),
        )
        method = METHODS[self.method]
        if self.coordinates is not None and not method.takes_coordinates:
            raise SupSupError(
                f"coordinates goes with method {_methods('takes_coordinates')}, not {self.method!r}; "
                "leave one of them out"
            )
        if self.objective in CALIBRATED and not method.takes_calibrated:
            raise SupSupError(
                f"objective {self.objective!r} compares masks one by one: it goes with method "
                f"{_methods('takes_calibrated')}, not {self.method!r}"
            )
        if not method.takes_settings and replace(self, method=Inference.method) != Inference():
            raise SupSupError(
                f"method {self.method!r} takes no other settings; leave them out, or name the method they are for"
            )

    def replaced(self, **settings: Any) -> Inference:
        """With other settings. A method without settings yields to the default, or to one that takes the objective."""
        wanted = settings.get("method", self.method)
        if not settings or (isinstance(wanted, str) and wanted in METHODS and METHODS[wanted].takes_settings):
            return replace(self, **settings)
        if "method" in settings:
            return Inference(**settings)
        objective = settings.get("objective")
        if isinstance(objective, str) and objective in CALIBRATED:
            settings["method"] = next(name for name, method in METHODS.items() if method.takes_calibrated)
        return Inference(**settings)


def _methods(flag: str) -> str:
    """The methods that have a flag, for an error."""
    return " or ".join(repr(name) for name, method in METHODS.items() if getattr(method, flag))


def _layers(value: Any, name: str) -> str | tuple[str, ...]:
    """A word, or names of weights; that the network has them is checked once it is known."""
    return text(value, name) if isinstance(value, str) else tuple(names(value, name))


AUTO = Inference("auto")  # the default of `SupSup`
