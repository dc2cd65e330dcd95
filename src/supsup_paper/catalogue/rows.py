"""An entry of the catalogue is a table or figure of the paper; a row is one line or curve in it.

An experiment runs at one of two scales: "full" as in the paper, "quick" with fewer tasks and steps, for 2 cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from supsup.runtime.errors import SupSupError
from supsup_paper.catalogue.experiments import Experiment, Json
from supsup_paper.catalogue.settings import settings_of
from supsup_paper.catalogue.tolerances import Tolerance


@dataclass(frozen=True)
class Row:
    """One line of a table or curve of a figure.

    name            part of the file names in results/
    experiment      what is trained and how it is graded, at full scale
    published       by figure ("accuracy %", …) and place on the entry's axis ("10", "250", … or "" for a single number)
    tolerance       how far from the published value still counts as reproduced; None: measured, without a verdict
    beyond          a method or a question that the paper does not have: shown in the same table, said to be ours, and
                    never called reproduced; what it has of `published` is the paper's own method, for orientation
    remark          what is known about why ours differs, said where it is not plainly reproduced
    less_is_better  a cost
    same_as         "entry/row" whose measurement this one repeats though it is made by other settings
    """

    name: str
    label: str
    experiment: Experiment
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    tolerance: Tolerance | None = None
    beyond: bool = False
    remark: str = ""
    less_is_better: bool = False
    same_as: str = ""

    @property
    def settings(self) -> dict[str, Json]:
        """The experiment's settings at full scale, as the files in results/ have them."""
        return settings_of(self.experiment)


@dataclass(frozen=True)
class Entry:
    """A table or figure of the paper.

    where   it stands in the paper
    axis    what the places of a row's figures are ("tasks learned", "outputs s", "γ", …); "" for single numbers
    figure  how it is drawn: "curves" over the axis, "bytes" (accuracy against bytes), "bars", or "distances"
    """

    name: str
    title: str
    where: str
    rows: tuple[Row, ...]
    axis: str = ""
    figure: str = "curves"
    note: str = ""


def repeated_rows(entries: Mapping[str, Entry]) -> dict[str, str]:
    """Rows whose measurement stands in an earlier row already: "entry/row" by "entry/row".

    A row repeats another that has the same experiment, unless it is held against other published figures: that is
    another comparison.
    """
    rows = {f"{entry.name}/{row.name}": row for entry in entries.values() for row in entry.rows}
    first: dict[tuple[object, ...], list[str]] = {}
    repeats: dict[str, str] = {}
    for name, row in rows.items():
        kind, training, own = row.experiment.kind, row.experiment.training, row.experiment.own
        earlier = first.setdefault((kind, training, own), [])
        same = [other for other in earlier if not row.published or rows[other].published == row.published]
        if row.same_as in rows:
            same = [row.same_as]
        if same:
            repeats[name] = same[0]
        else:
            earlier.append(name)
    return repeats


SCALES = ("quick", "full")
_SEEDS = {"full": {"hopfield": 20}, "quick": {"hopfield": 2}}  # where nobody says how many; else 1


def seeds_of(entry: str, scale: str, asked: int | None) -> int:
    """How many seeds an entry is run with."""
    if asked is not None and asked < 1:
        raise SupSupError(f"--seeds is {asked}; give 1 or more")
    return asked or _SEEDS[scale].get(entry, 1)


def at_scale(row: Row, scale: str) -> Experiment:
    """A row's experiment at this scale."""
    if scale not in SCALES:
        raise SupSupError(f"unknown scale {scale!r}; use {' or '.join(SCALES)}")
    return row.experiment.quick() if scale == "quick" else row.experiment
