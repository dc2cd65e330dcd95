"""Trainings to do for the rows asked for: which rows one training makes, in what order, and which go side by side.

The work of a trial is a generator. It yields each row as soon as it is graded, so that an interruption loses none, and
between the pieces of a sequential training the number of tasks that have been finished since. On a GPU such trainings
go side by side, each on a stream of its own: small networks leave most of the machine idle.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Generic, TypeGuard, TypeVar

import torch

from supsup.runtime import progress
from supsup.runtime.errors import SupSupError
from supsup_paper.catalogue.experiments import Experiment, TrainingSettings
from supsup_paper.records import PlannedRow, RowResult, save_result
from supsup_paper.runs.environment import Environment

E = TypeVar("E", bound=Experiment, covariant=True)
Kind = TypeVar("Kind", bound=Experiment)
Work = Iterator[RowResult | int]
Say = Callable[[str], None]
_SIDE_BY_SIDE = 16  # sequential trainings that share a GPU
_SHORTLY = 1e-4  # seconds to wait where all of them are busy


@dataclass(frozen=True)
class PlannedTraining(Generic[E]):
    """One training, or several that go together, and the rows made from it, for these seeds."""

    wanted: tuple[PlannedRow[E], ...]
    seeds: tuple[int, ...]

    @property
    def experiment(self) -> E:
        """The first row's; its training is that of all rows."""
        return self.wanted[0].experiment

    @property
    def title(self) -> str:
        """What the trial makes, in a few words."""
        rows = [f"{wanted.entry}/{wanted.row}" for wanted in self.wanted]
        seeds = f"seed {self.seeds[0]}" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds"
        return f"{', '.join(rows)} ({seeds})"


@dataclass(frozen=True)
class Runner:
    """How a kind of experiment is run.

    kind        of experiment, as written to results/
    start       begins the work of a trial: training and grading
    in_step     several seeds are one trial, trained together where the device takes several
    sequential  yields between small pieces of work, and may go side by side with others
    tf32        float32 products may be computed in TensorFloat-32 on a GPU
    spread      whether an experiment's tasks can go to a cluster: none needs another, and their images are in memory
    """

    kind: str
    start: Callable[[PlannedTraining[Experiment], Environment], Work]
    in_step: bool = False
    sequential: bool = False
    tf32: bool = False
    spread: Callable[[Experiment], bool] = lambda experiment: False

    def within(self, trial: PlannedTraining[Experiment], environment: Environment) -> Environment:
        """The environment for a trial, without the cluster where it is of no use."""
        return environment if self.spread(trial.experiment) else replace(environment, cluster=None)


def runner_for(
    kind: type[Kind],
    work: Callable[[PlannedTraining[Kind], Environment], Work],
    *,
    in_step: bool = False,
    sequential: bool = False,
    tf32: bool = False,
    spread: Callable[[Kind], bool] = lambda experiment: False,
) -> Runner:
    """A run of one kind of experiment."""

    def start(trial: PlannedTraining[Experiment], environment: Environment) -> Work:
        if not _all_are(trial, kind):
            raise TypeError(f"{trial.title} is not of the kind {kind.kind!r}")
        return work(trial, environment)

    def spreads(experiment: Experiment) -> bool:
        return isinstance(experiment, kind) and spread(experiment)

    return Runner(kind.kind, start, in_step, sequential, tf32, spreads)


def _all_are(trial: PlannedTraining[Experiment], kind: type[Kind]) -> TypeGuard[PlannedTraining[Kind]]:
    return all(isinstance(wanted.experiment, kind) for wanted in trial.wanted)


def plan_trainings(
    wanted: Sequence[tuple[PlannedRow[Experiment], int]], runs: dict[str, Runner]
) -> list[PlannedTraining[Experiment]]:
    """Trials for rows and seeds that are not finished: those with one training together, sequential ones last."""
    trainings: dict[tuple[str, TrainingSettings, int], list[PlannedRow[Experiment]]] = {}
    for row, seed in wanted:
        trainings.setdefault((row.experiment.kind, row.experiment.training, seed), []).append(row)
    together: dict[tuple[object, ...], tuple[list[PlannedRow[Experiment]], list[int]]] = {}
    for (kind, training, seed), rows in trainings.items():
        names = tuple((row.entry, row.row) for row in rows)
        alone = None if runs[kind].in_step else seed
        together.setdefault((kind, training, names, alone), (rows, []))[1].append(seed)
    trials = [PlannedTraining(tuple(rows), tuple(seeds)) for rows, seeds in together.values()]
    return sorted(trials, key=lambda trial: runs[trial.experiment.kind].sequential)


def run_trainings(
    trials: Sequence[PlannedTraining[Experiment]], runs: dict[str, Runner], environment: Environment, say: Say
) -> int:
    """Do all trials; what goes wrong with one is said and stops no other. Returns how many failed."""
    sequential = [trial for trial in trials if runs[trial.experiment.kind].sequential]
    alone = [trial for trial in trials if not runs[trial.experiment.kind].sequential]
    failed = 0
    for number, trial in enumerate(alone, 1):
        more = f" + {len(sequential)}" if sequential else ""
        say(f"[{number} of {len(alone)}{more}] {_named(trial, runs, environment)}")
        failed += _side_by_side([trial], runs, environment, say, lambda _: None)
    size = _SIDE_BY_SIDE if environment.device.type == "cuda" else 1
    tasks = sum(trial.experiment.training.tasks * len(trial.seeds) for trial in sequential)
    for trial in sequential:
        say(f"[sequential, {len(sequential)}] {_named(trial, runs, environment)}")
    with progress.bar("task after task", tasks) as advance:
        for start in range(0, len(sequential), size):
            failed += _side_by_side(sequential[start : start + size], runs, environment, say, advance)
    return failed


def _named(trial: PlannedTraining[Experiment], runs: dict[str, Runner], environment: Environment) -> str:
    """What a trial makes, and whether it does so without the cluster that there is."""
    cluster = runs[trial.experiment.kind].within(trial, environment).cluster
    return trial.title if cluster == environment.cluster else f"{trial.title}, without the cluster"


@dataclass(frozen=True)
class RunningTraining:
    """A trial under way, on a stream of its own where several share a GPU."""

    trial: PlannedTraining[Experiment]
    run: Runner
    work: Work
    stream: torch.cuda.Stream | None

    @property
    def busy(self) -> bool:
        """Whether the device is still at what the trial asked for last."""
        return self.stream is not None and not self.stream.query()

    def next(self, device: torch.device) -> RowResult | int:
        """The next piece of work, or the row that it completes."""
        lane: AbstractContextManager[object] = nullcontext() if self.stream is None else torch.cuda.stream(self.stream)
        with lane, _products(self.run, device):
            return next(self.work)


def _side_by_side(
    group: Sequence[PlannedTraining[Experiment]],
    runs: dict[str, Runner],
    environment: Environment,
    say: Say,
    advance: progress.Advance,
) -> int:
    """Trials in turn, whichever the device is not busy with. Returns how many failed."""
    lanes, failed = [], 0
    for trial in group:
        stream = torch.cuda.Stream() if environment.device.type == "cuda" and len(group) > 1 else None
        run = runs[trial.experiment.kind]
        lanes.append(RunningTraining(trial, run, run.start(trial, run.within(trial, environment)), stream))
    while lanes:
        ready = [lane for lane in lanes if not lane.busy]
        if not ready:
            time.sleep(_SHORTLY)
        for lane in ready:
            try:
                done = lane.next(environment.device)
            except StopIteration:
                lanes.remove(lane)
            except SupSupError as error:
                lanes.remove(lane)
                failed += 1
                say(f"{lane.trial.title}: {error}")
            except Exception:
                lanes.remove(lane)
                failed += 1
                say(f"{lane.trial.title} failed:\n{traceback.format_exc()}")
            else:
                if isinstance(done, RowResult):
                    say(f"  {save_result(done, len(group), environment.device)}")
                else:
                    advance(done)
    return failed


@contextmanager
def _products(run: Runner, device: torch.device) -> Iterator[None]:
    """The precision of float32 matrix products while a trial runs."""
    before = torch.get_float32_matmul_precision()
    if run.tf32 and device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
