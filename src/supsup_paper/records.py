"""The files in results/: one JSON for each row and seed, written whole or not at all, and the bytes of saved models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from supsup.file import codec
from supsup.file.codec import Bytes
from supsup.file.header import Header
from supsup.file.modelfile import ModelFile
from supsup.file.task_record import TaskRecord
from supsup_paper import records
from supsup_paper.catalogue.experiments import Experiment, Json
from supsup_paper.catalogue.settings import settings_of
from supsup_paper.provenance import provenance

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
        return bool(record["settings"] == self.settings)


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
    return {
        figure: {place: round(value, 4) for place, value in axis_positions.items()}
        for figure, axis_positions in figures.items()
    }


def write_text(path: Path, text: str) -> None:
    """A text file, written beside its name first and then put in place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".new")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


_BESIDE = "beside masks"


def bytes_of(file: Path) -> dict[str, int]:
    """Bytes of masks, of statistics and by the paper's count; without the entropy coder the masks are left out."""
    with ModelFile(file) as model:
        header, masks = model.header, _masks(model, list(model.records()))
    shapes = list(header.shapes.values())
    paper = sum(codec.paper_bytes(codec.kept_weights(mask, header.sizes), shapes, channels(header)) for mask in masks)
    statistics = len(masks) * 8 * channels(header)
    return _coded(masks, header) | {"statistics": statistics, "paper's count": round(paper)}


def bytes_kept(file: Path) -> dict[str, int]:
    """Of all tasks: coded masks, and all else that the file has of them: heads, running statistics, what finds them."""
    with ModelFile(file) as model:
        rows = list(model.records())
        masks = _masks(model, rows)
    return _coded(masks, model.header) | {_BESIDE: sum(len(row.extras) for row in rows)}


def _masks(model: ModelFile, rows: Sequence[TaskRecord]) -> list[Bytes]:
    return [row.decoded(model.header, model.reference) for row in rows]


def _coded(masks: Sequence[Bytes], header: Header) -> dict[str, int]:
    """Their bytes; nothing without the entropy coder."""
    if not codec.available():
        return {}
    return {"masks": sum(len(codec.encode(mask, header.sizes)[1]) for mask in masks)}


def channels(header: Header) -> int:
    """Normalised channels: every convolution's outputs."""
    return sum(shape[0] for shape in header.shapes.values() if len(shape) == 4)


def add_bytes(folder: Path, entry: str) -> list[Path]:
    """Measure the models that lie beside an entry's rows, and write their bytes into the rows, counted as they were."""
    changed = []
    for path in sorted((folder / entry).glob("*-seed*.json")):
        record, file = records.read_record(path), path.with_suffix(".supsup")
        if record is not None and file.exists():
            count = bytes_kept if _BESIDE in record["bytes"] else bytes_of
            records.write_record(path, record | {"bytes": record["bytes"] | count(file)})
            changed.append(path)
    return changed
