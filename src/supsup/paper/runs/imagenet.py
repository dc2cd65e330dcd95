"""SupSup on SplitImageNet with the task given, on a folder of ImageNet or anything of its shape."""

from __future__ import annotations

from dataclasses import replace

from supsup import data, nets
from supsup.evaluate import evaluate
from supsup.inference import Inference
from supsup.learner import SupSup
from supsup.paper.environment import Environment
from supsup.paper.image_experiments import SplitImagenetExperiment
from supsup.paper.records import Finished
from supsup.paper.runs.cifar import recipe_of
from supsup.paper.runs.graded import figures_of, per_task
from supsup.paper.runs.resuming import living_in, not_learned
from supsup.paper.sizes import bytes_of
from supsup.paper.trials import Trial, Work
from supsup.training import SPLIT_IMAGENET


def split_imagenet(trial: Trial[SplitImagenetExperiment], environment: Environment) -> Work:
    """Every budget that rows ask for. Each model lives in a file, so that a run goes on at the task where it was."""
    training, seed = trial.experiment.training, trial.seeds[0]
    source, classes = environment.imagenet(training.size), training.classes_per_task
    stream = data.split(source, classes, seed=seed, tasks=min(source.classes // classes, training.tasks))
    for wanted in trial.wanted:
        file = wanted.path(seed).with_suffix(".supsup")
        basic = replace(SPLIT_IMAGENET, budget=wanted.experiment.own.budget)
        recipe = recipe_of(basic, training.batch_size, training.epochs, training.steps)
        fresh = SupSup(
            nets.resnet50(classes), seed, recipe=recipe, inference=Inference("one-shot"), device=environment.device
        )
        fresh.notes = {"data": source.name, "size": training.size}
        with living_in(file, fresh) as model:
            begin = environment.clock()
            if waiting := not_learned(model, stream):
                model.learn_many(waiting)
            learning = environment.clock() - begin
            begin = environment.clock()
            graded = evaluate(model, stream, "GG", stages=[len(stream)], show_progress=False, outputs="all")
            seconds = {"learning": learning, "grading": environment.clock() - begin}
        fewer = f"made from {len(stream)} of 100 tasks; {source.name} has {source.classes} classes"
        note = "" if len(stream) == 100 else fewer
        yield Finished(wanted, seed, figures_of(wanted, graded), per_task(graded), bytes_of(file), seconds, note=note)
