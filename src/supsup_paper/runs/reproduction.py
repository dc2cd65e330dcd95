"""One call that runs tables and figures of the paper: what is finished is skipped, the rest is planned and run."""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supsup_paper import records
from supsup_paper.catalogue import experiments as kinds
from supsup_paper.catalogue.experiments import Experiment
from supsup_paper.catalogue.rows import Entry, at_scale, seeds_of
from supsup_paper.provenance import provenance
from supsup_paper.records import PlannedRow
from supsup_paper.runs.cifar import run_cifar, run_transfer_speed
from supsup_paper.runs.cifar_baselines import run_cifar_baselines
from supsup_paper.runs.environment import Environment
from supsup_paper.runs.hopfield import run_hopfield
from supsup_paper.runs.imagenet import run_imagenet, run_imagenet_bounds
from supsup_paper.runs.mnist import run_supsup, run_unannounced
from supsup_paper.runs.mnist_baselines import run_batche, run_bounds, run_consolidation, run_psp
from supsup_paper.runs.overhead import run_mask_overhead
from supsup_paper.runs.schedule import Runner, Say, plan_trainings, run_trainings, runner_for
from supsup_paper.runs.unnamed import run_unnamed

# "tf32" and "in_step" are for baselines; an experiment is spread over a cluster where no task needs another.
_RUNNERS = (
    runner_for(kinds.SupSupExperiment, run_supsup, spread=lambda _: True),
    runner_for(kinds.UnannouncedExperiment, run_unannounced, sequential=True),
    runner_for(kinds.PSPExperiment, run_psp, in_step=True, sequential=True, tf32=True),
    runner_for(kinds.BoundsExperiment, run_bounds, in_step=True, sequential=True, tf32=True),
    runner_for(kinds.ConsolidationExperiment, run_consolidation, in_step=True, sequential=True, tf32=True),
    runner_for(kinds.BatchEExperiment, run_batche, tf32=True),
    runner_for(kinds.HopfieldExperiment, run_hopfield, in_step=True),
    runner_for(kinds.SplitCifarExperiment, run_cifar, spread=lambda it: it.training.transfer == "none"),
    runner_for(kinds.SplitCifarBaselineExperiment, run_cifar_baselines, in_step=True, sequential=True, tf32=True),
    runner_for(kinds.TransferSpeedExperiment, run_transfer_speed, spread=lambda it: it.training.transfer == "none"),
    # ImageNet itself is read while training, so its tasks cannot be sent to a cluster.
    runner_for(kinds.SplitImagenetExperiment, run_imagenet, spread=lambda it: it.training.source is not None),
    runner_for(kinds.ImagenetBoundsExperiment, run_imagenet_bounds, in_step=True),
    runner_for(kinds.ScratchUnnamedExperiment, run_unnamed, spread=lambda _: True),
    runner_for(kinds.PretrainedUnnamedExperiment, run_unnamed, spread=lambda _: True),
    runner_for(kinds.OverheadExperiment, run_mask_overhead),
)
RUNNERS: dict[str, Runner] = {runner.kind: runner for runner in _RUNNERS}


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
    failed = run_trainings(plan_trainings(waiting, RUNNERS), RUNNERS, environment, say)
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
