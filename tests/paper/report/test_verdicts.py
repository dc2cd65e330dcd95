"""Verdicts are the report's word of honour: what is allowed, on which side, by how many seeds, and whose method."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from supsup_paper.catalogue.entries import ENTRIES
from supsup_paper.catalogue.experiments import LENET, MnistTraining, SupSupExperiment, SupSupGrading
from supsup_paper.catalogue.rows import Row
from supsup_paper.catalogue.tolerances import Tolerance
from supsup_paper.report.grids import remarks
from supsup_paper.report.summary import summarise
from supsup_paper.report.verdicts import (
    BETTER,
    LARGEST_SPREAD,
    MEASURED,
    NOT_RUN,
    PARTLY,
    QUICK,
    REPRODUCED,
    WORSE,
    OverSeeds,
    deciding,
    over_seeds,
    status_of,
)

EXPERIMENT = SupSupExperiment(MnistTraining("permuted", LENET, 100, 250), SupSupGrading(stages=(250,)))
TOLERANCE = Tolerance(0.3, "rows of these tests", "nowhere")
RESULTS = Path(__file__).parents[3] / "results"


def row(published: dict[str, float], **more: object) -> Row:
    return Row("r", "r", EXPERIMENT, {"accuracy %": published}, TOLERANCE, **more)  # type: ignore[arg-type]


def verdict(line: Row, ours: dict[str, OverSeeds]) -> str:
    return status_of(line, {"accuracy %": ours}, run=True, full=True)


def test_mean_and_deviation_are_those_of_the_seeds() -> None:
    found = over_seeds([1.0, 2.0, 6.0])
    assert found.mean == 3.0
    assert found.deviation == pytest.approx(7**0.5)
    assert over_seeds([5.0]).deviation is None


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        (96.0, REPRODUCED),
        (95.7, REPRODUCED),
        (95.6951, REPRODUCED),
        (95.69, WORSE),
        (96.3, REPRODUCED),
        (96.3049, REPRODUCED),
        (96.31, BETTER),
    ],
)
def test_one_seed_is_held_to_the_tolerance_on_both_sides_as_printed(ours: float, expected: str) -> None:
    """96.00 less 0.30 is 95.70: what prints as 95.70 is reproduced, 95.69 is not."""
    assert verdict(row({"": 96.0}), {"": OverSeeds(ours, None, 1)}) == expected


@pytest.mark.parametrize("seeds", [2, 3, 10])
def test_a_spread_allows_what_one_run_more_would_differ_by(seeds: int) -> None:
    deviation = 0.5
    most = 2 * deviation * math.sqrt(1 + 1 / seeds)
    inside, outside = math.floor(100 * most) / 100, math.ceil(100 * most) / 100 + 0.01
    for sign, beyond in ((-1, WORSE), (1, BETTER)):
        assert verdict(row({"": 90.0}), {"": OverSeeds(90 + sign * inside, deviation, seeds)}) == REPRODUCED
        assert verdict(row({"": 90.0}), {"": OverSeeds(90 + sign * outside, deviation, seeds)}) == beyond


def test_a_small_spread_does_not_narrow_the_tolerance() -> None:
    assert verdict(row({"": 90.0}), {"": OverSeeds(90.3, 0.01, 3)}) == REPRODUCED


def test_seeds_that_failed_allow_nothing_more() -> None:
    """93.5 and 34.9 make a deviation of 41: within twice that everything would be reproduced."""
    failed = over_seeds([93.48, 34.94])
    assert failed.deviation is not None
    assert failed.deviation > LARGEST_SPREAD
    assert verdict(row({"": 92.54}), {"": failed}) == WORSE
    assert verdict(row({"": 90.0}), {"": OverSeeds(80.0, LARGEST_SPREAD, 3)}) == REPRODUCED


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ((90.0, 90.0), REPRODUCED),
        ((90.0, 91.0), BETTER),
        ((91.0, 92.0), BETTER),
        ((90.0, 89.0), WORSE),
        ((92.0, 89.0), WORSE),
    ],
)
def test_the_worst_stage_decides(stages: tuple[float, float], expected: str) -> None:
    ours = {place: OverSeeds(value, None, 1) for place, value in zip(("10", "250"), stages)}
    line = row({"10": 90.0, "250": 90.0})
    assert verdict(line, ours) == expected
    decided = deciding(line, {"accuracy %": ours}, expected)
    assert (decided is None) == (expected == REPRODUCED)
    assert decided is None or (decided.verdict == expected and decided.position == "250")


def test_a_stage_that_was_not_measured_leaves_a_row_partly_run() -> None:
    line = row({"10": 90.0, "250": 90.0})
    assert verdict(line, {"10": OverSeeds(90.0, None, 1)}) == PARTLY
    assert verdict(line, {"10": OverSeeds(91.0, None, 1)}) == PARTLY
    assert verdict(line, {"10": OverSeeds(80.0, None, 1)}) == WORSE


def test_of_a_cost_less_is_better() -> None:
    line = row({"": 1.0}, less_is_better=True)
    for ours, expected in ((1.3, REPRODUCED), (2.8, WORSE), (0.2, BETTER)):
        assert verdict(line, {"": OverSeeds(ours, None, 1)}) == expected


@pytest.mark.parametrize("ours", [80.0, 90.0, 99.0])
def test_a_method_of_ours_is_measured_whatever_the_paper_has(ours: float) -> None:
    """The published figure is that of another method; to call ours reproduced would be a claim about the paper."""
    line = Row("r", "r", EXPERIMENT, {"accuracy %": {"": 90.0}}, beyond=True)
    assert verdict(line, {"": OverSeeds(ours, None, 1)}) == MEASURED


def test_without_results_or_a_full_run_there_is_no_verdict() -> None:
    figures = {"accuracy %": {"": OverSeeds(90.0, None, 1)}}
    assert status_of(row({"": 90.0}), {}, run=False, full=False) == NOT_RUN
    assert status_of(row({"": 90.0}), figures, run=True, full=False) == QUICK
    assert verdict(Row("r", "r", EXPERIMENT), {"": OverSeeds(90.0, None, 1)}) == MEASURED


def test_agreement_by_spread_alone_is_said() -> None:
    ours = {"accuracy %": {"": OverSeeds(88.0, 2.0, 3)}}
    decided = deciding(row({"": 90.0}), ours, REPRODUCED)
    assert decided is not None
    assert decided.by_spread
    assert deciding(row({"": 88.2}), ours, REPRODUCED) is None


def test_every_row_that_is_worse_says_what_is_known_of_why() -> None:
    summary = summarise(ENTRIES, RESULTS)
    worse = [(entry, line) for entry in summary.entries for line in entry.rows if line.status == WORSE]
    assert worse
    for entry, line in worse:
        said = dict(remarks(entry))[line.row.label]
        assert line.row.remark, f"{entry.entry.name}/{line.row.name}"
        assert line.row.remark in said
