"""The files in results/: one JSON for each row and seed, written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from supsup_paper.experiments import Experiment, Json
from supsup_paper.provenance import provenance
from supsup_paper.settings import recorded, settings_of

E = TypeVar("E", bound=Experiment, covariant=True)
Figures = Mapping[str, Mapping[str, float]]
PLAIN_WAY = "plain way"  # among the seconds: what learning would have taken, one task at a time by autograd


@dataclass(frozen=True)
class PlannedRow(Generic[E]):
    """A row to make: the entry it belongs to, its experiment at the scale asked for, and the folder for its file."""

    entry: str
    row: str
    axis: str
    scale: str
    experiment: E
    folder: Path

    @property
    def settings(self) -> dict[str, Json]:
        """The experiment's settings as the file has them."""
        return settings_of(self.experiment)

    def path(self, seed: int) -> Path:
        """The file of one seed."""
        return self.folder / self.entry / f"{self.row}-seed{seed}.json"

    def finished(self, seed: int) -> bool:
        """Whether that file has been written with these settings and defaults."""
        record = read_record(self.path(seed))
        if record is None or record.get("scale") != self.scale or not isinstance(record.get("settings"), dict):
            return False
        return recorded(record["settings"]) == self.settings


@dataclass(frozen=True)
class RowResult:
    """What one row and seed gave; the fields are those of the file."""

    wanted: PlannedRow[Experiment]
    seed: int
    figures: Figures
    per_task: Mapping[str, float] = field(default_factory=dict)
    bytes: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    trace: Mapping[str, object] = field(default_factory=dict)
    note: str = ""
    at_once: int = 1  # rows or seeds that were learned in one go; the seconds are this one's share


def read_record(path: Path) -> dict[str, Any] | None:
    """A record, or None where there is none that can be read."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def write_record(path: Path, record: Mapping[str, object]) -> None:
    """Put a record in place of whatever was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    waiting = path.with_suffix(".part")
    waiting.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    waiting.replace(path)


def save_result(done: RowResult, at_once: int, device: torch.device) -> Path:
    """Write what a row and seed gave; `at_once` trainings shared the device and so its seconds."""
    wanted, path = done.wanted, done.wanted.path(done.seed)
    record: dict[str, object] = {
        "entry": wanted.entry,
        "row": wanted.row,
        "seed": done.seed,
        "scale": wanted.scale,
        "settings": wanted.settings,
        "figures": _rounded(done.figures),
        "per task": {name: round(value, 3) for name, value in done.per_task.items()},
        "bytes": dict(done.bytes),
        "seconds": {name: round(value, 3) for name, value in done.seconds.items()},
        "trainings at once": at_once * done.at_once,
    }
    if done.trace:
        record["trace"] = done.trace
    if done.note:
        record["note"] = done.note
    write_record(path, record | {"made by": provenance(device)})
    return path


def _rounded(figures: Figures) -> dict[str, dict[str, float]]:
    return {figure: {place: round(value, 4) for place, value in axis_positions.items()} for figure, axis_positions in figures.items()}
