"""The four scenarios say what is told and what counts."""

import pytest

from supsup import SupSupError
from supsup.evaluation.grading import SCENARIOS, GNs, GNu, scenario_named


def test_the_letters_mean_what_the_paper_says() -> None:
    for name, scenario in SCENARIOS.items():
        assert scenario.given_in_training == (name[0] == "G")
        assert scenario.given_at_test == (name[1] == "G")
        assert scenario.shared_labels == name.endswith("s")


def test_an_unknown_scenario_lists_the_known_ones() -> None:
    with pytest.raises(SupSupError, match=r"GG.*GNs.*GNu.*NNs"):
        scenario_named("NNu")


def test_names_that_other_papers_use() -> None:
    assert [scenario_named(name) for name in ("Task-IL", "Domain-IL", "Class-IL")] == [SCENARIOS["GG"], GNs, GNu]
    with pytest.raises(SupSupError, match=r"GNu \(Class-IL\)"):
        scenario_named("class-il")
