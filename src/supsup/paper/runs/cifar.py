"""SupSup on SplitCIFAR100 with the task given: six budgets, masks begun at random or from the earlier ones.

Without transfer the 20 tasks of a budget are trained at once; with it a task begins where the earlier ones ended, so
all budgets go side by side, task after task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from supsup import nets, progress
from supsup.data import Stream
from supsup.evaluate import evaluate
from supsup.learner import SupSup, learn_together
from supsup.paper.jobs import Job, Work
from supsup.paper.records import Finished, Wanted
from supsup.paper.runs.graded import figures_of, per_task
from supsup.paper.runs.plain_way import plain_way
from supsup.paper.sizes import bytes_of
from supsup.paper.workshop import Workshop
from supsup.training import SPLIT_CIFAR100, Recipe


def split_cifar100(job: Job, shop: Workshop) -> Work:
    """Every budget that rows ask for; the models are kept beside the rows, for their bytes."""
    stream = shop.cifar_stream(job.training, job.seeds[0])
    groups = [list(job.wanted)] if job.training["transfer"] != "none" else [[wanted] for wanted in job.wanted]
    for group in groups:
        models = [new_model(job, shop, wanted.own["budget"]) for wanted in group]
        begin = shop.clock()
        if len(models) > 1:
            with progress.bar("learning with transfer", len(stream) * len(models)) as advance:
                for task in stream:
                    learn_together(models, task, advance)
        else:
            models[0].learn_many(stream)
        seconds = {"learning": (shop.clock() - begin) / len(group)} | plain_way(models[0], stream, shop)
        for wanted, model in zip(group, models):
            yield _finished(wanted, job.seeds[0], model, stream, seconds, len(group), shop)


def recipe_of(training: Mapping[str, Any], basic: Recipe = SPLIT_CIFAR100, first: str = "") -> Recipe:
    """The recipe of a training: so many epochs or, where that is None, steps; of the `first` task where it differs."""
    batch, epochs = training["batch size"], training[f"{first}epochs"]
    if epochs is not None:
        return replace(basic, batch_size=batch, epochs=epochs)
    return replace(basic, batch_size=batch, epochs=None, steps=training[f"{first}steps"])


def new_model(job: Job, shop: Workshop, budget: float) -> SupSup:
    """A model that keeps so much, before it learns."""
    recipe = replace(recipe_of(job.training), budget=budget, transfer=job.training["transfer"])
    return SupSup(nets.gem_resnet18(5), job.seeds[0], recipe=recipe, device=shop.device)


def _finished(
    wanted: Wanted, seed: int, model: SupSup, stream: Stream, learning: dict[str, float], sharing: int, shop: Workshop
) -> Finished:
    begin = shop.clock()
    graded = evaluate(model, stream, "GG", stages=[len(stream)], show_progress=False)
    seconds = learning | {"grading": shop.clock() - begin}
    file = wanted.path(seed).with_suffix(".supsup")
    file.parent.mkdir(parents=True, exist_ok=True)
    model.save(file)
    figures, each = figures_of(wanted, graded), per_task(graded)
    return Finished(wanted, seed, figures, each, bytes_of(file), seconds, at_once=sharing)
