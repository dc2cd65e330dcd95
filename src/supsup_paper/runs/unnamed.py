"""Natural images of tasks that nobody names: what is right with the task given, and found from 1, 4 and 16 images.

Beyond the paper, which is at chance there. No test image or label decides anything, and no image is kept.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from supsup import data, nets
from supsup.data import Stream
from supsup.evaluation.evaluator import Evaluation, evaluate
from supsup.inference.methods import Inference
from supsup.masks.frozen import FrozenNet
from supsup.model.learning import Learning
from supsup.model.state import ModelState, state_of
from supsup.model.supsup import SupSup
from supsup.runtime import progress
from supsup.training.executors import Trained
from supsup_paper.catalogue import recipes
from supsup_paper.catalogue.experiments import (
    Experiment,
    PretrainedTraining,
    PretrainedUnnamedExperiment,
    ScratchTraining,
    ScratchUnnamedExperiment,
    UnnamedTraining,
)
from supsup_paper.records import PlannedRow, RowResult, bytes_kept
from supsup_paper.runs.cifar import recipe_of
from supsup_paper.runs.environment import Environment
from supsup_paper.runs.figures import per_task
from supsup_paper.runs.schedule import PlannedTraining, Work

OTHER_SIZES = ("small", "large")  # of profiles, graded with the same masks
TOGETHER = (4, 16)  # images of one task that are asked about together
_ORDER = 0  # the seed of the order in which test images are put together


Unnamed = TypeVar("Unnamed", ScratchUnnamedExperiment, PretrainedUnnamedExperiment)


def run_unnamed(trial: PlannedTraining[Unnamed], environment: Environment) -> Work:
    """Every task learned, then asked about with and without its name."""
    seed = trial.seeds[0]
    model, stream = prepared(trial.experiment.training, seed, environment)
    for wanted in trial.wanted:
        yield _finished(wanted, seed, model, stream, environment)


def prepared(
    training: ScratchTraining | PretrainedTraining, seed: int, environment: Environment
) -> tuple[SupSup, Stream]:
    """A model that has learned nothing yet, and its tasks.

    A ResNet-18 of random weights, whose masks learn every image in four rotations; or the last
    blocks of EfficientNet-Lite0 with its published weights, all kept at first, and a head for each task.
    """
    if isinstance(training, ScratchTraining):
        outputs = 4 * training.classes_per_task  # for each class one for each rotation
        net: nn.Module = nets.ResNet(outputs, (2,) * len(training.widths), training.widths)
        basic = replace(recipes.UNNAMED_SCRATCH, budget=training.budget)
    else:
        net = nets.efficientnet_lite0(
            training.classes_per_task, pretrained=True, size=training.size, masks_from=training.masks_from
        )
        basic = recipes.UNNAMED_PRETRAINED
    recipe = recipe_of(basic, training.batch_size, training.epochs, training.steps)
    model = SupSup(net, seed, recipe=recipe, inference=Inference("auto"), device=environment.device)
    return model, stream_of(training, seed, environment, model)


def _finished(
    wanted: PlannedRow[Experiment], seed: int, model: SupSup, stream: Stream, environment: Environment
) -> RowResult:
    begin = environment.clock()
    model.learn_many(stream, cluster=environment.cluster)
    seconds = {"learning": environment.clock() - begin}
    begin = environment.clock()
    given, alone, found = _graded(model, stream)
    figures = {
        "labels right %": {"task given": 100 * given.average_accuracy, "from one image": 100 * alone.average_accuracy},
        "task right %": {"1": 100 * alone.task_accuracy} | found,
    }
    seconds["grading"] = environment.clock() - begin
    file = wanted.path(seed).with_suffix(".supsup")
    kept = _bytes(model, file)
    for size in OTHER_SIZES:
        other = with_profiles(model, stream, size)
        its_given, its_alone, _ = _graded(other, stream)
        figures["labels right %"] |= {
            f"task given, {size} profiles": 100 * its_given.average_accuracy,
            f"from one image, {size} profiles": 100 * its_alone.average_accuracy,
        }
        figures["task right %"][f"1, {size} profiles"] = 100 * its_alone.task_accuracy
        kept[f"beside masks, {size} profiles"] = _bytes(other, file.with_suffix(f".{size}"))["beside masks"]
    return RowResult(wanted, seed, figures, per_task(given), kept, seconds)


def _bytes(model: SupSup, file: Path) -> dict[str, int]:
    file.parent.mkdir(parents=True, exist_ok=True)
    model.save(file)
    return bytes_kept(file)


def _graded(model: SupSup, stream: Stream) -> tuple[Evaluation, Evaluation, dict[str, float]]:
    """With the task given; unknown; and how often it is found from several images."""
    stages = [len(stream)]
    given = evaluate(model, stream, "GG", stages=stages, show_progress=False)
    alone = evaluate(model, stream, "GNu", protocol="strict", stages=stages, show_progress=False)
    return given, alone, {str(count): 100 * _found_from(count, model, stream) for count in TOGETHER}


def with_profiles(model: SupSup, stream: Stream, size: str) -> SupSup:
    """A model with the same masks, whose tasks leave profiles of another size."""
    state = state_of(model)
    old = state.net
    net = FrozenNet(old.module, old.seed, old.device, old.pretrained, old.weights, profile_size=size)
    other = ModelState(net, state.settings)
    for task in stream:
        index = state.tasks.index(task.name)
        statistics = {name: value[None] for name, value in state.bank.statistics(index).items()}
        packed, rotated = state.bank.packed(index)[:, None], state.tasks[task.name].info.rotated
        Learning(other).add(Trained([task], packed, statistics, rotated=rotated))
    return SupSup.from_state(other)


def _found_from(count: int, model: SupSup, stream: Stream) -> float:
    """How often the task of so many test images of one task, or of all that it has, is found."""
    hits: list[bool] = []
    with progress.bar(f"finding tasks from {count} images", len(stream)) as advance:
        for task in stream:
            x, _ = task.test.tensors(model.device)
            some = min(count, len(x))
            order = torch.randperm(len(x), generator=torch.Generator().manual_seed(_ORDER))[: len(x) // some * some]
            together: Tensor = x[order.to(x.device)].unflatten(0, (-1, some))
            hits += [name == task.name for name in model.infer_batches(together)]
            advance(1)
    return sum(hits) / max(1, len(hits))


def stream_of(training: UnnamedTraining, seed: int, environment: Environment, model: SupSup) -> Stream:
    """The tasks of a seed; for a pretrained network, normalised as its weights expect."""
    source = environment.source("cifar100") if training.source == "cifar100" else environment.tiny_imagenet()
    net, classes = model.module, training.classes_per_task
    if isinstance(net, nets.ImageNetwork):
        assert net.pixels is not None
        mean, deviation = (torch.tensor(numbers) for numbers in net.pixels)
        source = replace(source, gain=1 / (255 * deviation), offset=-mean / deviation)
    return data.split(source, classes, seed=seed, tasks=min(source.classes // classes, training.tasks))
