"""SupSup and its bounds on SplitImageNet with the task given, on ImageNet, anything of its shape, or Tiny-ImageNet."""

from __future__ import annotations

from dataclasses import replace

from supsup import data, nets
from supsup.data import Source, Stream
from supsup.evaluation.evaluator import evaluate
from supsup.inference.methods import Inference
from supsup.model.supsup import SupSup
from supsup.training import SPLIT_IMAGENET
from supsup_paper.baselines import UpperBound
from supsup_paper.baselines.baseline import Baseline
from supsup_paper.catalogue import recipes
from supsup_paper.catalogue.experiments import ImagenetBoundsExperiment, ImagenetTraining, SplitImagenetExperiment
from supsup_paper.records import RowResult, bytes_of
from supsup_paper.runs.checkpoints import living_in, not_learned
from supsup_paper.runs.cifar import recipe_of
from supsup_paper.runs.cifar_baselines import rows_of_seeds
from supsup_paper.runs.environment import Environment
from supsup_paper.runs.figures import accuracy_figures, per_task
from supsup_paper.runs.schedule import PlannedTraining, Work

_TASKS = {None: 100, "tiny-imagenet": 10}  # of ten classes, by source


def run_imagenet(trial: PlannedTraining[SplitImagenetExperiment], environment: Environment) -> Work:
    """Every budget that rows ask for. Each model lives in a file, so that a run goes on at the task where it was."""
    training, seed = trial.experiment.training, trial.seeds[0]
    source, stream = _tasks(training, seed, environment)
    for wanted in trial.wanted:
        file = wanted.path(seed).with_suffix(".supsup")
        basic = replace(SPLIT_IMAGENET, budget=wanted.experiment.own.budget)
        recipe = recipe_of(basic, training.batch_size, training.epochs, training.steps)
        fresh = SupSup(
            nets.resnet50(training.classes_per_task),
            seed,
            recipe=recipe,
            inference=Inference("one-shot"),
            device=environment.device,
        )
        fresh.notes = {"data": source.name, "size": training.size}
        with living_in(file, fresh) as model:
            begin = environment.clock()
            if waiting := not_learned(model, stream):
                model.learn_many(waiting, cluster=environment.cluster)
            learning = environment.clock() - begin
            begin = environment.clock()
            graded = evaluate(model, stream, "GG", stages=[len(stream)], show_progress=False, outputs="all")
            seconds = {"learning": learning, "grading": environment.clock() - begin}
        whole = _TASKS[training.source]
        fewer = f"made from {len(stream)} of {whole} tasks; {source.name} has {source.classes} classes"
        note = "" if len(stream) == whole else fewer
        yield RowResult(
            wanted, seed, accuracy_figures(wanted, graded), per_task(graded), bytes_of(file), seconds, note=note
        )


def run_imagenet_bounds(trial: PlannedTraining[ImagenetBoundsExperiment], environment: Environment) -> Work:
    """Both bounds from one training of all weights."""
    training = trial.experiment.training
    recipe = recipe_of(recipes.IMAGENET_BOUNDS, training.batch_size, training.epochs, training.steps)
    filling = recipes.CIFAR_FILLING

    def make(seed: int) -> tuple[Baseline, Stream]:
        model = UpperBound(
            nets.resnet50(training.classes_per_task), seed, recipe=recipe, filling=filling, device=environment.device
        )
        return model, _tasks(training, seed, environment)[1]

    yield from rows_of_seeds(trial, make, environment)


def _tasks(training: ImagenetTraining, seed: int, environment: Environment) -> tuple[Source, Stream]:
    source = environment.imagenet(training.size) if training.source is None else environment.tiny_imagenet()
    classes = training.classes_per_task
    return source, data.split(source, classes, seed=seed, tasks=min(source.classes // classes, training.tasks))
