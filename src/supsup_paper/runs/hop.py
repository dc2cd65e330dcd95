"""HopSupSup on SplitMNIST: all seeds together, each task's mask recovered from Ψ and μ alone."""

from __future__ import annotations

from supsup import data, nets
from supsup.hopfield.learner import HopSupSup
from supsup.hopfield.recovery import Recovery
from supsup.hopfield.units import UnitRecipe
from supsup_paper.environment import Environment
from supsup_paper.hopfield import HopfieldResult, Recall, run_hopfield
from supsup_paper.mnist_experiments import HopfieldExperiment
from supsup_paper.records import RowResult, PlannedRow
from supsup_paper.trials import PlannedTraining, Work


def hopfield(trial: PlannedTraining[HopfieldExperiment], environment: Environment) -> Work:
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
    experiment = run_hopfield(models, stream, [name for name in procedures if name != "own"])
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
