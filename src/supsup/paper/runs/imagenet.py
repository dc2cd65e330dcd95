"""SupSup on SplitImageNet with the task given, on a folder of ImageNet or anything of its shape."""

from __future__ import annotations

from dataclasses import replace

from supsup import data, nets
from supsup.evaluate import evaluate
from supsup.learner import SupSup
from supsup.paper.jobs import Job, Work
from supsup.paper.records import Finished
from supsup.paper.runs.cifar import recipe_of
from supsup.paper.runs.graded import figures_of, per_task
from supsup.paper.runs.resuming import living_in, not_learned
from supsup.paper.sizes import bytes_of
from supsup.paper.workshop import Workshop
from supsup.training import SPLIT_IMAGENET


def split_imagenet(job: Job, shop: Workshop) -> Work:
    """Every budget that rows ask for. Each model lives in a file, so that a run goes on at the task where it was."""
    training, seed = job.training, job.seeds[0]
    source = shop.imagenet(training["size"])
    groups = source.classes // training["classes per task"]
    stream = data.split(source, training["classes per task"], seed=seed, tasks=min(groups, training["tasks"]))
    for wanted in job.wanted:
        file = wanted.path(seed).with_suffix(".supsup")
        recipe = replace(recipe_of(training, SPLIT_IMAGENET), budget=wanted.own["budget"])
        fresh = SupSup(nets.resnet50(training["classes per task"]), seed, recipe=recipe, device=shop.device)
        fresh.notes = {"data": source.name, "size": training["size"]}
        with living_in(file, fresh) as model:
            begin = shop.clock()
            if waiting := not_learned(model, stream):
                model.learn_many(waiting)
            learning = shop.clock() - begin
            begin = shop.clock()
            graded = evaluate(model, stream, "GG", stages=[len(stream)], show_progress=False)
            seconds = {"learning": learning, "grading": shop.clock() - begin}
        fewer = f"made from {len(stream)} of 100 tasks; {source.name} has {source.classes} classes"
        note = "" if len(stream) == 100 else fewer
        yield Finished(wanted, seed, figures_of(wanted, graded), per_task(graded), bytes_of(file), seconds, note=note)
