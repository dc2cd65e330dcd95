"""The rivals on SplitCIFAR100 with the task given, each with the paper's recipe and checked against its bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from supsup import nets
from supsup.baselines import BatchE, SeparateHeads, UpperBound
from supsup.baselines.rival import Rival
from supsup.evaluate import evaluate
from supsup.paper.jobs import Job, Work
from supsup.paper.records import Finished
from supsup.paper.runs.cifar import recipe_of
from supsup.paper.runs.graded import figures_of, per_task
from supsup.paper.workshop import Workshop
from supsup.training import Recipe

_BASIC = Recipe("adam", 1e-3, schedule="cosine", weight_decay=1e-4)


def split_cifar100_rivals(job: Job, shop: Workshop) -> Work:
    """One rival, or both bounds from one training."""
    seed = job.seeds[0]
    stream = shop.cifar_stream(job.training, seed)
    torch.backends.cudnn.benchmark = True
    model = model_of(job.training, seed, shop.device)
    begin = shop.clock()
    yield from model.learning(stream)
    learning = shop.clock() - begin
    for wanted in job.wanted:
        graded_model = model.lower_bound() if isinstance(model, UpperBound) and wanted.own["keep"] == "lower" else model
        begin = shop.clock()
        graded = evaluate(graded_model, stream, "GG", stages=[len(stream)], show_progress=False)
        seconds = {"learning": learning, "grading": shop.clock() - begin}
        figures, each = figures_of(wanted, graded), per_task(graded)
        yield Finished(wanted, seed, figures, each, _sizes(graded_model), seconds)


def _sizes(model: Rival) -> dict[str, int]:
    """The paper counts a head for each task, also where the released script trains a rank-one last layer."""
    if isinstance(model, BatchE) and model.last == "rank-one":
        return {"paper's count": model.bytes_with("head"), "vectors": model.bytes}
    return {"paper's count": model.bytes}


def model_of(training: Mapping[str, Any], seed: int, device: torch.device) -> Rival:
    """The rival of a training."""
    slow = recipe_of(training, _BASIC)
    fast, fastest = replace(slow, learning_rate=1e-2), replace(slow, learning_rate=0.1)
    common: dict[str, Any] = {"net": nets.gem_resnet18(outputs=5), "seed": seed, "device": device}
    common["filling"] = "kaiming_uniform"  # as in the released configurations
    kinds: dict[str, Callable[[], Rival]] = {
        "batche": lambda: BatchE(last="head", recipe=fast, first=slow, **common),
        "batche-random-rank-one": lambda: BatchE(base="random", recipe=fastest, **common),
        "batche-random-heads": lambda: BatchE(base="random", last="head", recipe=fastest, **common),
        "heads": lambda: SeparateHeads(recipe=fast, first=slow, **common),
        "heads-random": lambda: SeparateHeads(trunk="random", recipe=fast, **common),
        "bounds": lambda: UpperBound(recipe=slow, **common),
    }
    return kinds[training["method"]]()
