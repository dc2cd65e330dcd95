"""The shape of the catalogue: an entry is a table or figure of the paper, a row one line or curve in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from supsup.paper.experiments import Experiment, Json, settings_of


@dataclass(frozen=True)
class Row:
    """One line of a table or curve of a figure.

    name        part of the file names in results/
    experiment  what is trained and how it is graded, at full scale
    published   by figure ("accuracy %", …) and place on the entry's axis ("10", "250", … or "" for a single number)
    tolerance   how many points below the published value still count as reproduced; None where nothing was published
    beyond      not in the paper: shown in the same table, and said to be ours
    remark      what is known about why ours may differ, said where it misses
    """

    name: str
    label: str
    experiment: Experiment
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    tolerance: float | None = None
    beyond: bool = False
    remark: str = ""

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
