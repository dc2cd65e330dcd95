"""Trainings to do for the rows asked for: which rows one training makes, in what order, and which go side by side.

The work of a job is a generator. It yields each row as soon as it is graded, so that an interruption loses none, and
between the pieces of a sequential training the number of tasks that have been finished since. On a GPU such trainings
go side by side, each on a stream of its own: small networks leave most of the machine idle.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from supsup import progress
from supsup.errors import SupSupError
from supsup.paper.records import Finished, Wanted, keep
from supsup.paper.workshop import Workshop

Work = Iterator[Finished | int]
Say = Callable[[str], None]
_AT_ONCE = 16  # sequential trainings side by side on a GPU
_SHORTLY = 1e-4  # seconds to wait where all of them are busy


@dataclass(frozen=True)
class Run:
    """A kind of experiment.

    work        trains and grades a job
    in_step     several seeds are trained together
    sequential  yields between small pieces of work, and may go side by side with others
    rival       float32 products may be taken in TensorFloat-32 on a GPU
    """

    work: Callable[[Job, Workshop], Work]
    in_step: bool = False
    sequential: bool = False
    rival: bool = False


@dataclass(frozen=True)
class Job:
    """One training, or several that go together, and the rows made from it, for these seeds."""

    run: str
    training: dict[str, Any]
    wanted: tuple[Wanted, ...]
    seeds: tuple[int, ...]

    @property
    def title(self) -> str:
        """What the job makes, in a few words."""
        rows = [f"{wanted.entry}/{wanted.row}" for wanted in self.wanted]
        seeds = f"seed {self.seeds[0]}" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds"
        return f"{', '.join(rows)} ({seeds})"


def plan(wanted: Sequence[tuple[Wanted, int]], runs: dict[str, Run]) -> list[Job]:
    """Jobs for rows and seeds that are not finished: those with one training together, sequential ones last."""
    trainings: dict[tuple[str, str, int], list[Wanted]] = {}
    for row, seed in wanted:
        key = (row.settings["run"], json.dumps(row.settings["training"], sort_keys=True), seed)
        trainings.setdefault(key, []).append(row)
    together: dict[tuple[object, ...], tuple[list[Wanted], list[int]]] = {}
    for (run, training, seed), rows in trainings.items():
        alike = tuple((row.entry, row.row) for row in rows)
        own = None if runs[run].in_step else seed
        together.setdefault((run, training, alike, own), (rows, []))[1].append(seed)
    jobs = [
        Job(rows[0].settings["run"], rows[0].settings["training"], tuple(rows), tuple(seeds))
        for rows, seeds in together.values()
    ]
    return sorted(jobs, key=lambda job: runs[job.run].sequential)


def run_jobs(jobs: Sequence[Job], runs: dict[str, Run], shop: Workshop, say: Say) -> int:
    """Do all jobs; what goes wrong with one is said and stops no other. Returns how many failed."""
    sequential = [job for job in jobs if runs[job.run].sequential]
    alone = [job for job in jobs if not runs[job.run].sequential]
    failed = 0
    for number, job in enumerate(alone, 1):
        say(f"[{number} of {len(alone)}{f' + {len(sequential)}' if sequential else ''}] {job.title}")
        failed += _side_by_side([job], runs, shop, say, lambda _: None)
    size = _AT_ONCE if shop.device.type == "cuda" else 1
    tasks = sum(job.training["tasks"] for job in sequential)
    for start in range(0, len(sequential), size):
        for job in sequential[start : start + size]:
            say(f"[sequential, {len(sequential)}] {job.title}")
    with progress.bar("task after task", tasks) as advance:
        for start in range(0, len(sequential), size):
            failed += _side_by_side(sequential[start : start + size], runs, shop, say, advance)
    return failed


@dataclass(frozen=True)
class Lane:
    """A job under way, on a stream of its own where several share a GPU."""

    job: Job
    run: Run
    work: Work
    stream: torch.cuda.Stream | None

    @property
    def busy(self) -> bool:
        """Whether the device is still at what the job asked for last."""
        return self.stream is not None and not self.stream.query()

    def next(self, device: torch.device) -> Finished | int:
        """The next piece of work, or the row that it completes."""
        lane: AbstractContextManager[Any] = nullcontext() if self.stream is None else torch.cuda.stream(self.stream)
        with lane, _products(self.run, device):
            return next(self.work)


def _side_by_side(
    group: Sequence[Job], runs: dict[str, Run], shop: Workshop, say: Say, advance: progress.Advance
) -> int:
    """Jobs in turn, whichever the device is not busy with. Returns how many failed."""
    lanes, failed = [], 0
    for job in group:
        stream = torch.cuda.Stream() if shop.device.type == "cuda" and len(group) > 1 else None
        lanes.append(Lane(job, runs[job.run], runs[job.run].work(job, shop), stream))
    while lanes:
        ready = [lane for lane in lanes if not lane.busy]
        if not ready:
            time.sleep(_SHORTLY)
        for lane in ready:
            try:
                done = lane.next(shop.device)
            except StopIteration:
                lanes.remove(lane)
            except SupSupError as error:
                lanes.remove(lane)
                failed += 1
                say(f"{lane.job.title}: {error}")
            except Exception:
                lanes.remove(lane)
                failed += 1
                say(f"{lane.job.title} failed:\n{traceback.format_exc()}")
            else:
                if isinstance(done, Finished):
                    say(f"  {keep(done, len(group), shop.device)}")
                else:
                    advance(done)
    return failed


@contextmanager
def _products(run: Run, device: torch.device) -> Iterator[None]:
    """The precision of float32 matrix products while a job runs."""
    before = torch.get_float32_matmul_precision()
    if run.rival and device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
