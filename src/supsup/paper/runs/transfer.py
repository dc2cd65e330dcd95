"""How much faster transfer learns: task 0 for 250 epochs, the others for fewer, with transfer or without."""

from __future__ import annotations

from dataclasses import replace

from supsup import nets, progress
from supsup.data import Stream
from supsup.evaluate import evaluate
from supsup.learner import SupSup, learn_together
from supsup.paper.jobs import Job, Work
from supsup.paper.records import Finished
from supsup.paper.runs.cifar import recipe_of
from supsup.paper.workshop import Workshop


def transfer_speed(job: Job, shop: Workshop) -> Work:
    """All budgets; with transfer side by side, without it the later tasks of a budget at once."""
    training, seed = job.training, job.seeds[0]
    stream = shop.cifar_stream(training, seed)
    first = recipe_of(training, first="first ")
    models = [
        SupSup(nets.gem_resnet18(5), seed, recipe=replace(first, budget=budget), device=shop.device)
        for budget in training["budgets"]
    ]
    begin = shop.clock()
    with progress.bar("the first task", len(models)) as advance:
        learn_together(models, stream[0], advance)
    for model in models:
        later = replace(recipe_of(training), budget=model.recipe.budget, transfer=training["transfer"])
        model.recipe = later
    _learn_the_others(models, stream[1:])
    seconds = {"learning": shop.clock() - begin}
    begin = shop.clock()
    graded = {
        budget: 100 * evaluate(model, stream, "GG", stages=[len(stream)], show_progress=False).average_accuracy
        for budget, model in zip(training["budgets"], models)
    }
    seconds["grading"] = shop.clock() - begin
    for wanted in job.wanted:
        yield Finished(wanted, seed, {"accuracy %": {str(s): value for s, value in graded.items()}}, seconds=seconds)


def _learn_the_others(models: list[SupSup], stream: Stream) -> None:
    if models[0].recipe.transfer == "none":
        for model in models:
            model.learn_many(stream)
        return
    with progress.bar("learning with transfer", len(stream) * len(models)) as advance:
        for task in stream:
            learn_together(models, task, advance)
