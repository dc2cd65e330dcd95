"""Permutations of MNIST with the random draws of the released scripts, made again from their seed.

The tables of permutations are of one run each, and where outputs are few what H infers depends on what was drawn: only
the same draws can give the same figures. The scripts have seed 1 and ask for torch 1.5.0, where all of this comes from
one generator on the CPU, in this order:
  for each layer its weights, of which the signs are kept, then the first scores of all 250 tasks;
  for each task, epoch after epoch, the order of the training images and then, for a test, that of the test images;
  after a task at which all are graded, the order of the test images for each task so far.
Before each order a loader of images draws one number for its workers. The last batch of an epoch is smaller. The
permutations are numpy's, from the seed plus the number of the task. Training is in float32, as theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from supsup.bank import pack_columns
from supsup.data import Source, Stream, Task
from supsup.evaluate import evaluate
from supsup.grading import Known
from supsup.inference import Inference
from supsup.learner import SupSup
from supsup.nets import FullyConnected
from supsup.paper.jobs import Job, Work
from supsup.paper.records import Finished, Wanted
from supsup.paper.runs.graded import figures_of, per_task
from supsup.paper.workshop import Workshop, net_of
from supsup.training import Recipe
from supsup.training.batched import BatchedTrainer
from supsup.training.many import Trained

SEED = 1  # of the scripts, where nobody asks for another
TASKS = 250  # for which they draw scores, however many are learned here


def released(job: Job, shop: Workshop) -> Work:
    """The scripts' run again; seed 0 is their own draw, 1 that of their seed 2, and so on."""
    training, seed = job.training, SEED + job.seeds[0]
    source, net = shop.source("mnist"), net_of(training)
    stream = permutations(source, training["tasks"], seed)
    recipe = Recipe(steps=training["steps"])
    draws = draw(seed, net, source, recipe, training["tasks"], training["stages"])
    model = SupSup(net, seed, recipe=recipe, pretrained=True, device=shop.device)
    begin = shop.clock()
    for trained in _learned(model, stream, source, draws):
        model.take_in(trained)
    learning = shop.clock() - begin
    names = [task.name for task in stream]
    answers = {stage: Known(orders=dict(zip(names, orders))) for stage, orders in draws.tests.items()}
    for wanted in job.wanted:
        begin = shop.clock()
        figures, each = _graded(wanted, model, stream, answers)
        yield Finished(
            wanted, job.seeds[0], figures, each, seconds={"learning": learning, "grading": shop.clock() - begin}
        )


@dataclass(frozen=True)
class Draws:
    """What a run of the scripts draws: [tasks, …] for each layer, and orders of images."""

    scores: list[Tensor]
    epochs: list[list[Tensor]]  # by task
    tests: dict[int, list[Tensor]]  # by the number of tasks learned, and task


def draw(seed: int, net: FullyConnected, source: Source, recipe: Recipe, tasks: int, stages: Sequence[int]) -> Draws:
    """All draws of a run in their order; the network gets its weights."""
    generator = torch.Generator().manual_seed(seed)
    train, test = len(source.train_labels), len(source.test_labels)

    def order(images: int) -> Tensor:
        torch.empty((), dtype=torch.int64).random_(generator=generator)
        return torch.randperm(images, generator=generator)

    scores = []
    for weight in net.parameters():
        bound = 1 / math.sqrt(weight.shape[1])
        drawn = torch.empty_like(weight).uniform_(-bound, bound, generator=generator)
        weight.data = drawn.sign() * math.sqrt(2 / weight.shape[1])
        scores.append(torch.empty(tasks, *weight.shape).uniform_(-bound, bound, generator=generator))
        for _ in range(TASKS - tasks):
            drawn.uniform_(generator=generator)
    epochs: list[list[Tensor]] = []
    tests: dict[int, list[Tensor]] = {}
    for count in range(1, tasks + 1):
        epochs.append([])
        for _ in range(recipe.steps // math.ceil(train / recipe.batch_size) + 1):
            epochs[-1].append(order(train).int())  # there are many
            order(test)
        if count in stages:
            tests[count] = [order(test) for _ in range(count)]
    return Draws(scores, epochs, tests)


def permutations(source: Source, tasks: int, seed: int) -> Stream:
    """The tasks of the scripts."""

    def make(index: int) -> Task:
        pixels = torch.from_numpy(np.random.RandomState(seed + index).permutation(math.prod(source.shape)))
        train = source.train_part(source.train_labels, pixels=pixels)
        return Task(f"permutation-{index}", train, source.test_part(source.test_labels, pixels=pixels), source.classes)

    return Stream("released permutations", make, range(tasks))


def _learned(model: SupSup, stream: Stream, source: Source, draws: Draws) -> Iterator[Trained]:
    """Masks of all tasks: on a GPU all at once, on a CPU one after the other."""
    net, recipe = model.net, model.recipe
    images, labels = source.train_part(source.train_labels).tensors(net.device)
    images = images.flatten(1)
    size = len(stream) if net.device.type == "cuda" else 1
    for start in range(0, len(stream), size):
        group = list(stream[start : start + size])
        trainer = BatchedTrainer(net, len(group), recipe, recipe.batch_size, torch.float32)
        first = {weight: scores[start : start + size] for weight, scores in zip(net.weights, draws.scores)}
        trainer.start(lambda weight, first=first: (first[weight],))  # type: ignore[misc]
        pixels = torch.stack([task.train.pixels for task in group if task.train.pixels is not None]).to(net.device)
        for positions in _batches(draws.epochs[start : start + size], recipe, net.device):
            if positions.shape[1] != trainer.x.shape[1]:
                trainer.resize(len(group), positions.shape[1])
            trainer.x[:, :, : pixels.shape[1]] = images[positions[:, :, None], pixels[:, None, :]]
            trainer.y.copy_(labels[positions])
            trainer.step()
        yield Trained(group, pack_columns(trainer.masks()), {})
        del trainer


def _batches(epochs: list[list[Tensor]], recipe: Recipe, device: torch.device) -> Iterator[Tensor]:
    """Positions [tasks, images] of each step's images."""
    left = recipe.steps
    for together in zip(*epochs):
        for positions in torch.stack(together).to(device).long().split(recipe.batch_size, dim=1)[:left]:
            yield positions
            left -= 1


def _graded(
    wanted: Wanted, model: SupSup, stream: Stream, answers: dict[int, Known]
) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    own = wanted.own
    model.inference = Inference("one-shot", own["objective"])
    figures: dict[str, dict[str, float]] = {}
    for stage, known in answers.items():
        graded = evaluate(model, stream, "GNu", stages=[stage], known=known)
        for figure, values in figures_of(wanted, graded).items():
            figures.setdefault(figure, {}).update(values)
    return figures, per_task(graded)
