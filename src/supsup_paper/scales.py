"""How large an experiment is run: "full" as the paper has it, "quick" with fewer tasks and steps on 2 cores."""

from __future__ import annotations

from supsup.runtime.errors import SupSupError
from supsup_paper.catalogue import Row
from supsup_paper.experiments import Experiment

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
