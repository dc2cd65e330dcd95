"""One call that runs tables and figures of the paper: what is finished is skipped, the rest is planned and run."""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supsup_paper import records
from supsup_paper.catalogue.experiments import Experiment
from supsup_paper.catalogue.rows import Entry, at_scale, seeds_of
from supsup_paper.provenance import provenance
from supsup_paper.records import PlannedRow
from supsup_paper.runs import RUNS
from supsup_paper.runs.environment import Environment
from supsup_paper.runs.schedule import Say, plan_trainings, run_trainings


@dataclass(frozen=True)
class CallResult:
    """What a call did: files it wrote, files that were there already, trials that failed, and its wall time."""

    written: int
    skipped: int
    failed: int
    seconds: float


def reproduce_entries(
    entries: Sequence[Entry], folder: Path, scale: str, seeds: int | None, environment: Environment, say: Say
) -> CallResult:
    """Run every row of these entries that is not in the folder yet, and note the wall time there."""
    begin, began = time.perf_counter(), datetime.datetime.now(datetime.UTC)
    asked = [
        (wanted, seed)
        for entry in entries
        for wanted in wanted_rows(entry, folder, scale)
        for seed in range(seeds_of(entry.name, scale, seeds))
    ]
    waiting = [(wanted, seed) for wanted, seed in asked if not wanted.finished(seed)]
    if len(waiting) < len(asked):
        say(f"{len(asked) - len(waiting)} of {len(asked)} rows and seeds are there already and are not run again")
    failed = run_trainings(plan_trainings(waiting, RUNS), RUNS, environment, say)
    written = [wanted.path(seed) for wanted, seed in waiting if wanted.finished(seed)]
    result = CallResult(len(written), len(asked) - len(waiting), failed, time.perf_counter() - begin)
    if written:
        _note_time(folder, written, scale, began, result, environment)
    return result


def wanted_rows(entry: Entry, folder: Path, scale: str) -> list[PlannedRow[Experiment]]:
    """The rows of an entry at a scale."""
    return [PlannedRow(entry.name, row.name, entry.axis, scale, at_scale(row, scale), folder) for row in entry.rows]


def _note_time(
    folder: Path,
    written: list[Path],
    scale: str,
    began: datetime.datetime,
    result: CallResult,
    environment: Environment,
) -> None:
    path = folder / "wall-time.json"
    earlier: list[Any] = (records.read_record(path) or {}).get("calls", [])
    call = {
        "scale": scale,
        "written": sorted(path.relative_to(folder).with_suffix("").as_posix() for path in written),
        "jobs failed": result.failed,
        "began": began.isoformat(timespec="milliseconds"),
        "seconds": round(result.seconds, 1),
        "made by": provenance(environment.device),
    }
    records.write_record(path, {"calls": [*earlier, call]})
