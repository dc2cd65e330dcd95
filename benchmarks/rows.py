"""Rows of a comparison, one JSON file each: figures beside the published ones, and where they come from.

A job makes one row, or several from one training. Jobs are generators that stop after each task, so that on a GPU
several go side by side, each on a stream of its own: small networks leave most of the machine idle.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from supsup import progress
from supsup.provenance import provenance

Curves = dict[str, dict[int, list[float]]]  # by label and number of tasks learned, % for each seed
Published = dict[str, dict[int, float]]
Made = dict[str, tuple[Curves, int]]  # by row: figures and bytes
Work = Generator[None, None, Made]


@dataclass(frozen=True)
class Job:
    """A training, with a file and the published figures for each row that it makes."""

    paths: dict[str, Path]
    settings: dict[str, Any]
    published: dict[str, Published]
    tasks: int
    work: Callable[[], Work]

    @property
    def finished(self) -> bool:
        """Whether all its rows have been written with these settings."""
        return all(path.exists() and self._same(path) for path in self.paths.values())

    def _same(self, path: Path) -> bool:
        there: dict[str, Any] = json.loads(path.read_text())
        return bool(there["settings"] == json.loads(json.dumps(self.settings)))


def run_jobs(jobs: Sequence[Job], device: torch.device, at_once: int) -> int:
    """Run what is not finished, some at once; a failure is printed and stops no other. Returns how many failed."""
    for job in jobs:
        if job.finished:
            print(f"{', '.join(path.name for path in job.paths.values())}: there already", flush=True)
    waiting, failed = [job for job in jobs if not job.finished], 0
    with progress.bar("rivals", sum(job.tasks for job in waiting)) as advance:
        while waiting:
            group, waiting = waiting[:at_once], waiting[at_once:]
            failed += _side_by_side(group, device, advance)
    return failed


def _side_by_side(group: Sequence[Job], device: torch.device, advance: progress.Advance) -> int:
    begin, failed = time.perf_counter(), 0
    lanes = [(job, job.work(), torch.cuda.Stream() if device.type == "cuda" else None) for job in group]
    while lanes:
        for lane in list(lanes):
            job, work, stream = lane
            lane_of: AbstractContextManager[Any] = nullcontext() if stream is None else torch.cuda.stream(stream)
            try:
                with lane_of:
                    next(work)
                advance(1)
            except StopIteration as done:
                lanes.remove(lane)
                for row, path in job.paths.items():
                    write_row(path, job, row, done.value[row], time.perf_counter() - begin, len(group), device)
            except Exception:
                lanes.remove(lane)
                failed += 1
                print(f"{', '.join(job.paths)} failed:\n{traceback.format_exc()}", flush=True)
    return failed


def write_row(
    path: Path, job: Job, row: str, made: tuple[Curves, int], seconds: float, at_once: int, device: torch.device
) -> None:
    """Write a finished row, whole or not at all."""
    curves, size = made
    record = {
        "settings": job.settings,
        "accuracy %": {
            label: {n: round(mean(values), 3) for n, values in curve.items()} for label, curve in curves.items()
        },
        "deviation over seeds": {
            label: {n: round(stdev(values), 3) for n, values in curve.items() if len(values) > 1}
            for label, curve in curves.items()
        },
        "published %": job.published.get(row, {}),
        "bytes": size,
        "seconds": round(seconds, 1),
        "trainings at once": at_once,
        "made by": provenance(device),
    }
    waiting = path.with_suffix(".part")
    waiting.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    waiting.replace(path)
    print(path.name, record["accuracy %"], "published", record["published %"], f"{seconds:.0f} s", flush=True)
