"""The four scenarios: when the task is given, and which answers are correct."""

from __future__ import annotations

from dataclasses import dataclass

from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import quoted


@dataclass(frozen=True)
class Scenario:
    """Named as in the paper: is the task Given or Not in training, then at test; are labels shared or unshared?"""

    name: str
    given_in_training: bool
    given_at_test: bool
    shared_labels: bool  # shared: the label alone counts; unshared: a wrong task is a wrong answer
    meaning: str


GG = Scenario("GG", True, True, False, "the task is given in training and at test")
GNs = Scenario("GNs", True, False, True, "the task is given in training, not at test; the label alone counts")
GNu = Scenario("GNu", True, False, False, "the task is given in training, not at test; a wrong task is wrong")
NNs = Scenario("NNs", False, False, True, "the task is never given; the label alone counts")

SCENARIOS = {scenario.name: scenario for scenario in (GG, GNs, GNu, NNs)}
USUAL_NAMES = {"Task-IL": GG, "Domain-IL": GNs, "Class-IL": GNu}  # in most other papers


def scenario_named(scenario: str | Scenario) -> Scenario:
    """A scenario by its name, that of the paper or the usual one."""
    if isinstance(scenario, Scenario):
        return scenario
    named = SCENARIOS | USUAL_NAMES
    if not isinstance(scenario, str) or scenario not in named:
        usual = {scenario.name: f" ({name})" for name, scenario in USUAL_NAMES.items()}
        known = "; ".join(f"{s.name}{usual.get(s.name, '')}: {s.meaning}" for s in SCENARIOS.values())
        raise SupSupError(f"unknown scenario {quoted(scenario)}; known: {known}")
    return named[scenario]
