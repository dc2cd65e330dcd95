"""How much faster transfer learns: task 0 for 250 epochs, the others for fewer, with transfer or without."""

from __future__ import annotations

from dataclasses import replace

from supsup import nets
from supsup.data import Stream
from supsup.evaluation.evaluator import evaluate
from supsup.inference.methods import Inference
from supsup.model.supsup import SupSup, learn_together
from supsup.runtime import progress
from supsup.training import SPLIT_CIFAR100
from supsup_paper.environment import Environment
from supsup_paper.image_experiments import TransferSpeedExperiment
from supsup_paper.records import RowResult
from supsup_paper.runs.cifar import recipe_of
from supsup_paper.trials import PlannedTraining, Work


def transfer_speed(trial: PlannedTraining[TransferSpeedExperiment], environment: Environment) -> Work:
    """All budgets; with transfer side by side, without it the later tasks of a budget at once."""
    training, seed = trial.experiment.training, trial.seeds[0]
    stream = environment.cifar_stream(training.tasks, seed)
    first = recipe_of(SPLIT_CIFAR100, training.batch_size, training.first_epochs, training.first_steps)
    later = recipe_of(SPLIT_CIFAR100, training.batch_size, training.epochs, training.steps)
    models = [
        SupSup(
            nets.gem_resnet18(5),
            seed,
            recipe=replace(first, budget=budget),
            inference=Inference("one-shot"),
            device=environment.device,
        )
        for budget in training.budgets
    ]
    begin = environment.clock()
    with progress.bar("the first task", len(models)) as advance:
        learn_together(models, stream[0], advance)
    for model in models:
        model.recipe = replace(later, budget=model.observed_recipe.budget, transfer=training.transfer)
    _learn_the_others(models, stream[1:], environment)
    seconds = {"learning": environment.clock() - begin}
    begin = environment.clock()
    graded = {
        budget: 100
        * evaluate(model, stream, "GG", stages=[len(stream)], show_progress=False, outputs="all").average_accuracy
        for budget, model in zip(training.budgets, models)
    }
    seconds["grading"] = environment.clock() - begin
    for wanted in trial.wanted:
        yield RowResult(wanted, seed, {"accuracy %": {str(s): value for s, value in graded.items()}}, seconds=seconds)


def _learn_the_others(models: list[SupSup], stream: Stream, environment: Environment) -> None:
    if models[0].observed_recipe.transfer == "none":
        for model in models:
            model.learn_many(stream, cluster=environment.cluster)
        return
    with progress.bar("learning with transfer", len(stream) * len(models)) as advance:
        for task in stream:
            learn_together(models, task, advance)
