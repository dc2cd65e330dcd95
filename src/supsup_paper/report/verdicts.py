"""Verdicts: whether a row's mean over seeds agrees with the published figure, is better, or is worse.

A figure is reproduced if it differs from the published one by at most the row's tolerance or, where seeds differ by
more, 2·s·√(1 + 1/n): the band in which one more run is expected, given n seeds with sample deviation s. One seed has
no spread. A row with several stages is reproduced only if all of them are: the worst stage decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from supsup_paper.catalogue.rows import Row

REPRODUCED, BETTER, WORSE, MEASURED, NOT_RUN, PARTLY, QUICK = (
    "reproduced",
    "better",
    "worse",
    "measured",
    "not run",
    "partly run",
    "quick run",
)
STATUSES = (REPRODUCED, BETTER, WORSE, MEASURED, NOT_RUN, PARTLY, QUICK)
ALWAYS_COUNTED = STATUSES[:5]
LARGEST_SPREAD = 10.0  # points; where seeds deviate by more, some have failed, and so wide a band would allow anything

RULES = (
    (
        "reproduced",
        "Our mean over seeds differs from the published figure by at most the row's tolerance t or 2 · s · √(1 + 1/n), "
        "whichever is larger. s is the sample deviation of our n seeds. A single seed has no spread, so only t "
        f"applies. Only t applies, too, where seeds deviate by more than {LARGEST_SPREAD:g} points: some of them "
        "failed, and so wide a band would allow anything.",
    ),
    (
        "better, worse",
        "It differs by more. Where a row has several stages, the worst decides: one worse stage makes the row worse, "
        "otherwise one better stage makes it better.",
    ),
    (
        "measured",
        "No verdict: the paper has no number for it, or the method is ours. A published figure beside one of our own "
        "methods belongs to the paper's method and is for orientation only.",
    ),
    (
        "counted once",
        "A row that repeats another row's experiment is shown and names the row that counts. One experiment compared "
        "with two different published columns (Tables 4 and 7) counts as two comparisons.",
    ),
)


@dataclass(frozen=True)
class OverSeeds:
    """Mean and sample deviation over seeds; None for the deviation of a single seed."""

    mean: float
    deviation: float | None
    seeds: int


@dataclass(frozen=True)
class Judgement:
    """One figure beside the published one; `ours` is None where it has not been measured."""

    figure: str
    position: str
    published: float
    ours: OverSeeds | None
    tolerance: float
    less_is_better: bool = False

    @property
    def difference(self) -> float:
        """Ours minus the published figure, both as printed."""
        return 0.0 if self.ours is None else round(round(self.ours.mean, 2) - self.published, 6)

    @property
    def allowed(self) -> float:
        """The largest difference that counts as reproduced."""
        if self.ours is None or self.ours.deviation is None or self.ours.deviation > LARGEST_SPREAD:
            return self.tolerance
        return max(self.tolerance, 2 * self.ours.deviation * math.sqrt(1 + 1 / self.ours.seeds))

    @property
    def verdict(self) -> str | None:
        """None where it has not been measured."""
        if self.ours is None:
            return None
        if abs(self.difference) <= self.allowed:
            return REPRODUCED
        return BETTER if (self.difference < 0) == self.less_is_better else WORSE

    @property
    def by_spread(self) -> bool:
        """Reproduced only because seeds differ by more than the tolerance."""
        return self.verdict == REPRODUCED and abs(self.difference) > self.tolerance


def over_seeds(values: list[float]) -> OverSeeds:
    """Mean and sample deviation."""
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return OverSeeds(mean, None, 1)
    return OverSeeds(mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)), len(values))


def judgements(row: Row, figures: Mapping[str, Mapping[str, OverSeeds]]) -> tuple[Judgement, ...]:
    """Every published percentage of a row; none where the row has no tolerance, which is in points."""
    if row.tolerance is None or row.beyond:
        return ()
    return tuple(
        Judgement(
            figure,
            position,
            published,
            figures.get(figure, {}).get(position),
            row.tolerance.points,
            row.less_is_better,
        )
        for figure, positions in row.published.items()
        if "%" in figure
        for position, published in positions.items()
    )


def status_of(row: Row, figures: Mapping[str, Mapping[str, OverSeeds]], run: bool, full: bool) -> str:
    """The verdict on a row."""
    if not run:
        return NOT_RUN
    if not full:
        return QUICK
    verdicts = [judged.verdict for judged in judgements(row, figures)]
    if not verdicts:
        return MEASURED
    if WORSE in verdicts:
        return WORSE
    if None in verdicts:
        return PARTLY
    return BETTER if BETTER in verdicts else REPRODUCED


def deciding(row: Row, figures: Mapping[str, Mapping[str, OverSeeds]], status: str) -> Judgement | None:
    """The figure that explains a verdict, None where none needs an explanation.

    It is the one furthest outside its band or, for a row that is reproduced only by the spread of its seeds, the one
    furthest from the published figure.
    """
    found = judgements(row, figures)
    if status in (BETTER, WORSE):
        outside = [judged for judged in found if judged.verdict == status]
        return max(outside, key=lambda judged: abs(judged.difference) - judged.allowed)
    wide = [judged for judged in found if judged.by_spread and status == REPRODUCED]
    return max(wide, key=lambda judged: abs(judged.difference), default=None)
