"""Permutations of MNIST with every random draw of the released scripts, repeated from their seed.

    python -m benchmarks released_draws --json results/released-draws.json

What H infers depends on what was drawn where outputs are few, so only the same draws could give the same figures. How
many runs Tables 4 and 9 are of is not said: a notebook beside the scripts speaks of seeds 0 to 4, while the scripts
have seed 1 and change it nowhere. They ask for torch 1.5.0, where all of this comes from one generator on the CPU, in
this order:
  for each layer its weights, of which the signs are kept, then the first scores of all 250 tasks;
  for each task, epoch after epoch, the order of the training images and then, for a test, that of the test images;
  after a task at which all are graded, the order of the test images for each task so far.
Before each order a loader of images draws one number for its workers. The last batch of an epoch is smaller. The
permutations are numpy's, from the seed plus the number of the task. Training is in float32, as theirs.
On an H200 25 s for each number of outputs; on 2 cores use --tasks 10, 3 minutes.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from supsup import Inference, Recipe, SupSup, data, evaluate, nets
from supsup.data import Source, Stream, Task
from supsup.evaluation.grading import GradingCache
from supsup.file.task_record import LearnedTask
from supsup.masks.bank import pack_columns
from supsup.model.state import state_of
from supsup.nets import FullyConnected
from supsup.runtime.devices import resolve
from supsup.training import Trained
from supsup.training.fast.batched import BatchedTrainer
from supsup_paper.provenance import provenance

SEED = 1  # of the scripts, where nobody asks for another
TASKS = 250  # for which they draw scores, however many are learned here
STAGES = (10, 50, 100, 150, 200, 250)  # at which they grade


def main() -> None:
    options = parse()
    device = resolve(options.device)
    source = data.named("mnist", options.data_dir)
    rows: list[dict[str, Any]] = []
    for outputs in options.outputs:
        for row in run(source, outputs, options.tasks, options.seed, device):
            rows.append(row)
            print(row, flush=True)
    record = {"tasks": options.tasks, "seed": options.seed, "rows": rows, "made by": provenance(device)}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(record, indent=1) + "\n")


def run(source: Source, outputs: int, tasks: int, seed: int, device: torch.device) -> Iterator[dict[str, Any]]:
    """The scripts' run with so many outputs: accuracy in % by tasks learned, one image of a batch deciding."""
    net, recipe = nets.fc_1024(outputs=outputs), Recipe(steps=1000)
    stream = permutations(source, tasks, seed)
    draws = draw(seed, net, source, recipe, tasks, STAGES)
    model = SupSup(net, seed, recipe=recipe, pretrained=True, own_head=False, inference=Inference(), device=device)
    for trained in learned(model, stream, source, draws):
        take_in(model, trained)
    names = [task.name for task in stream]
    known = {stage: GradingCache(orders=dict(zip(names, orders))) for stage, orders in draws.tests.items()}
    for objective in ("H", "G"):
        model.inference = Inference("one-shot", objective)
        graded = {stage: evaluate(model, stream, "GNu", stages=[stage], cache=known[stage]) for stage in known}
        yield {
            "outputs": outputs,
            "objective": objective,
            "accuracy %": {stage: round(100 * each.average_accuracy, 2) for stage, each in graded.items()},
            "task right %": {stage: round(100 * each.task_accuracy, 2) for stage, each in graded.items()},
        }


def take_in(model: SupSup, trained: Trained) -> None:
    """Tasks that were trained here, added to the model."""
    learned = [LearnedTask(task.name, task.classes) for task in trained.tasks]
    state_of(model).add(learned, trained.packed, trained.statistics, trained.tasks[0].train.shape)


@dataclass(frozen=True)
class Draws:
    """What a run of the scripts draws: first scores [tasks, …] of each layer, and orders of images."""

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
        if count in stages or count == tasks:
            tests[count] = [order(test) for _ in range(count)]
    return Draws(scores, epochs, tests)


def permutations(source: Source, tasks: int, seed: int) -> Stream:
    """The tasks of the scripts."""

    def make(index: int) -> Task:
        pixels = torch.from_numpy(np.random.RandomState(seed + index).permutation(math.prod(source.shape)))
        train = source.part("train", source.train_labels, pixels=pixels)
        return Task(
            f"permutation-{index}", train, source.part("test", source.test_labels, pixels=pixels), source.classes
        )

    return Stream("released permutations", make, range(tasks))


def learned(model: SupSup, stream: Stream, source: Source, draws: Draws) -> Iterator[Trained]:
    """Masks of all tasks: on a GPU all at once, on a CPU one after the other."""
    net, recipe = state_of(model).net, model.recipe.stepwise
    images, labels = source.part("train", source.train_labels).tensors(net.device)
    images = images.flatten(1)
    size = len(stream) if net.device.type == "cuda" else 1
    for start in range(0, len(stream), size):
        group = list(stream[start : start + size])
        trainer = BatchedTrainer(net, len(group), recipe, torch.float32)
        first = {weight: scores[start : start + size] for weight, scores in zip(net.weights, draws.scores)}
        trainer.start(lambda weight, first=first: (first[weight],))  # type: ignore[misc]
        pixels = torch.stack([task.train.pixels for task in group if task.train.pixels is not None]).to(net.device)
        for positions in batches(draws.epochs[start : start + size], recipe, net.device):
            if positions.shape[1] != trainer.x.shape[1]:
                trainer.resize(positions.shape[1])
            trainer.x[:, :, : pixels.shape[1]] = images[positions[:, :, None], pixels[:, None, :]]
            trainer.y.copy_(labels[positions])
            trainer.step()
        yield Trained(group, pack_columns(trainer.masks()), {})


def batches(epochs: list[list[Tensor]], recipe: Recipe, device: torch.device) -> Iterator[Tensor]:
    """Positions [tasks, images] of each step's images."""
    left = recipe.steps
    for together in zip(*epochs):
        for positions in torch.stack(together).to(device).long().split(recipe.batch_size, dim=1)[:left]:
            yield positions
            left -= 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outputs", type=int, nargs="+", default=[25, 100, 200, 500], help="sizes of the last layer")
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--seed", type=int, default=SEED, help="of the scripts")
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, default=Path("results/released-draws.json"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
