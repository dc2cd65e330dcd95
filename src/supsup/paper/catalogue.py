"""The shape of the catalogue: an entry is a table or figure of the paper, a row one line or curve in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """One line of a table or curve of a figure.

    name       part of the file names in results/
    settings   what the run needs, JSON values
    published  by figure ("accuracy %", …) and place on the entry's axis ("10", "250", … or "" for a single number)
    tolerance  how many points below the published value still count as reproduced; None where nothing was published
    beyond     not in the paper: shown in the same table, and said to be ours
    remark     what is known about why ours may differ, said where it misses
    """

    name: str
    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    tolerance: float | None = None
    beyond: bool = False
    remark: str = ""


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


def settings_of(run: str, training: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A row's settings: the experiment that makes it, what rows of one training share, and what is the row's own."""
    return {"run": run, "training": dict(training), "own": dict(own)}
