"""HopSupSup on SplitMNIST: learn every task, forget the masks, recover each from its test images, classify.

All seeds are trained together. The true masks are kept here, outside the models, to compare with.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from supsup import data, nets
from supsup.data import Task
from supsup.hopfield.learner import HopSupSup, learn_in_parallel, outputs_in_parallel, recover_in_parallel
from supsup.hopfield.units import Recovery, UnitRecipe
from supsup.runtime import progress
from supsup_paper.catalogue.experiments import HopfieldExperiment
from supsup_paper.records import PlannedRow, RowResult
from supsup_paper.runs.environment import Environment
from supsup_paper.runs.schedule import PlannedTraining, Work

RIGHT = 0.01  # a mask counts as the right one if it differs from it in less than this share of the units


@dataclass(frozen=True)
class Recall:
    """What one way of choosing masks gave; rows are models, columns tasks.

    accuracy  share of the test images whose output among all tasks' outputs is the right one (GNu)
    distance  share of the units in which the mask differs from the one that was learned
    entropy   in nats, mean over the test images; NaN where none was measured
    traces    for the first model and each task: distances [steps, tasks] to every task's mask on the way
    """

    accuracy: Tensor
    distance: Tensor
    entropy: Tensor
    seconds: float
    traces: list[Tensor]

    @property
    def right(self) -> Tensor:
        """Where the right mask was found."""
        return self.distance < RIGHT

    def summary(self) -> dict[str, Any]:
        """The figures as plain values."""
        return {
            "accuracy %": 100 * self.accuracy.mean().item(),
            "right masks": int(self.right.sum()),
            "exactly right": int((self.distance == 0).sum()),
            "of": self.distance.numel(),
            "seconds": round(self.seconds, 3),
            "accuracy % by seed": [round(100 * value, 3) for value in self.accuracy.mean(1).tolist()],
            "accuracy % by seed and task": [[round(100 * v, 3) for v in row] for row in self.accuracy.tolist()],
            "distance by seed and task": [[round(v, 5) for v in row] for row in self.distance.tolist()],
            "entropy by seed and task": [[round(v, 4) for v in row] for row in self.entropy.tolist()],
        }


@dataclass(frozen=True)
class HopfieldResult:
    """`own`: each task with the mask that was learned for it; `recovered`: by procedure, with Ψ and μ alone."""

    tasks: list[str]
    seeds: list[int]
    own: Recall
    recovered: dict[str, Recall]
    learning_seconds: float
    memory_bytes: list[int]  # of one model, after each task


def learn_and_recover(models: Sequence[HopSupSup], stream: Sequence[Task], procedures: Sequence[str]) -> HopfieldResult:
    """Models that have learned nothing yet learn the stream and are graded on it."""
    tasks = list(stream)
    masks: list[list[Tensor]] = []
    sizes = []
    begin = _clock(models[0].device)
    with progress.bar("learning", len(tasks)) as advance:
        for task in tasks:
            masks.append(learn_in_parallel(models, task))
            sizes.append(models[0].memory_bytes)
            advance(1)
    learning = _clock(models[0].device) - begin
    own = _graded(models, tasks, masks, None)
    recovered = {name: _graded(models, tasks, masks, name) for name in procedures}
    return HopfieldResult([t.name for t in tasks], [m.seed for m in models], own, recovered, learning, sizes)


def _graded(
    models: Sequence[HopSupSup], tasks: Sequence[Task], masks: Sequence[Sequence[Tensor]], procedure: str | None
) -> Recall:
    """One procedure on every task; without one, the masks as they were learned."""
    device = models[0].device
    true = torch.stack([torch.cat(list(mask), dim=-1) for mask in masks])  # [tasks, n, all units]
    accuracy, distance, unsure, traces = [], [], [], []
    first_output, seconds = 0, 0.0
    with progress.bar(procedure or "own masks", len(tasks)) as advance:
        for index, task in enumerate(tasks):
            x, y = task.test.tensors(device)
            units, levels = list(masks[index]), torch.full((len(models),), torch.nan)
            if procedure is not None:
                begin = _clock(device)
                recovered = recover_in_parallel(models, x, history=True, procedure=procedure)
                seconds += _clock(device) - begin
                units, levels = recovered.units, recovered.entropy
                assert recovered.history is not None
                traces.append((recovered.history[:, None, 0] != true[None, :, 0]).float().mean(-1).cpu())
            answers = outputs_in_parallel(models, x, units).argmax(-1)
            accuracy.append((answers == y + first_output).float().mean(-1).cpu())
            distance.append((torch.cat(units, dim=-1) != true[index]).float().mean(-1).cpu())
            unsure.append(levels.cpu())
            first_output += task.classes
            advance(1)
    return Recall(
        torch.stack(accuracy, dim=1), torch.stack(distance, dim=1), torch.stack(unsure, dim=1), seconds, traces
    )


def _clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def run_hopfield(trial: PlannedTraining[HopfieldExperiment], environment: Environment) -> Work:
    """Learn with every seed, then grade each procedure that a row asks for."""
    training = trial.experiment.training
    stream = data.split(environment.source("mnist"), 2, tasks=training.tasks)
    widths = (784, training.units, training.units, 10)
    recipe, recovery = UnitRecipe(epochs=training.epochs), Recovery(starts=training.starts)
    models = [
        HopSupSup(nets.HopMLP(widths), seed, recipe=recipe, recovery=recovery, device=environment.device)
        for seed in trial.seeds
    ]
    procedures = dict.fromkeys(wanted.experiment.own.procedure for wanted in trial.wanted)
    experiment = learn_and_recover(models, stream, [name for name in procedures if name != "own"])
    for wanted in trial.wanted:
        for number, seed in enumerate(trial.seeds):
            yield finished(wanted, seed, number, experiment)


def finished(wanted: PlannedRow[HopfieldExperiment], seed: int, number: int, experiment: HopfieldResult) -> RowResult:
    """A row of the seed with this number; the first seed's has the way to each mask as well."""
    procedure = wanted.experiment.own.procedure
    outcome: Recall = experiment.own if procedure == "own" else experiment.recovered[procedure]
    seeds, tasks = len(experiment.seeds), experiment.tasks
    figures = {"accuracy %": {"": 100 * outcome.accuracy[number].mean().item()}}
    trace: dict[str, object] = {}
    if procedure != "own":
        figures["right masks %"] = {"": 100 * outcome.right[number].float().mean().item()}
        trace["distance"] = _by_task(tasks, outcome.distance[number].tolist(), 5)
        trace["entropy"] = _by_task(tasks, outcome.entropy[number].tolist(), 4)
        if number == 0:
            trace["tasks"] = tasks
            trace["distances on the way"] = {
                task: [[round(value, 4) for value in step] for step in way.tolist()]
                for task, way in zip(tasks, outcome.traces)
            }
    each = _by_task(tasks, (100 * outcome.accuracy[number]).tolist(), 3)
    seconds = {"learning": experiment.learning_seconds / seeds, "grading": outcome.seconds / seeds}
    return RowResult(
        wanted, seed, figures, each, {"Ψ and μ": experiment.memory_bytes[-1]}, seconds, trace, at_once=seeds
    )


def _by_task(tasks: list[str], values: list[float], digits: int) -> dict[str, float]:
    return {task: round(value, digits) for task, value in zip(tasks, values)}
