"""How long training takes: many tasks our way, one task the plain way, and the floor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from supsup.bench.machine import Machine, once, product_precision, seconds
from supsup.data import Stream
from supsup.evaluate import follow
from supsup.frozen import FrozenNet
from supsup.learner import SupSup
from supsup.scores import initial_scores
from supsup.training import MaskTraining, Recipe

Row = dict[str, Any]


def bench_training(
    net: nn.Module, stream: Stream, counts: Sequence[int], recipe: Recipe, machine: Machine, device: torch.device
) -> list[Row]:
    """For each number of tasks: seconds in all (data included), µs per task and step, and what they compare with."""
    warm = warmed_up(net, stream, recipe, device)
    plain = plain_step(warm.net, stream, recipe)
    products = product_step(warm.net, recipe.batch_size)
    moved, operations = work_per_step(warm.net, recipe.batch_size)
    floor = machine.floor(moved, operations)
    rows = []
    for count in counts:
        _, taken = learned(net, stream[:count], recipe, device)
        each = taken / (count * recipe.steps)
        rows.append(
            {
                "tasks": count,
                "steps": recipe.steps,
                "seconds": taken,
                "µs per task-step": 1e6 * each,
                "plain µs per task-step": 1e6 * plain,
                "products alone µs": 1e6 * products,
                "floor µs": 1e6 * floor,
                "faster than plain": plain / each,
                "times the products": each / products,
                "times the floor": each / floor,
            }
        )
    return rows


def warmed_up(net: nn.Module, stream: Stream, recipe: Recipe, device: torch.device) -> SupSup:
    """A model that has learned a little, so that all that training compiles has been compiled."""
    model = SupSup(net, recipe=Recipe(steps=3, batch_size=recipe.batch_size), device=device)
    model.learn_many(stream[:2], show_progress=False)
    return model


def learned(net: nn.Module, stream: Stream, recipe: Recipe, device: torch.device) -> tuple[SupSup, float]:
    """A model that has learned all tasks, and the seconds it took, data included."""
    model = SupSup(net, recipe=recipe, device=device)
    return model, once(lambda: model.learn_many(stream), device)


def bench_unannounced(
    net: nn.Module, stream: Stream, recipe: Recipe, machine: Machine, device: torch.device, stages: Sequence[int]
) -> tuple[Row, SupSup]:
    """Learning a stream of which nobody says where a task begins, graded at the given stages; the floor is of steps."""
    model = SupSup(net, recipe=recipe, device=device)
    graded: list[Any] = []
    taken = once(lambda: graded.append(follow(model, stream, "NNs", stages=stages)), device)
    each, floor = taken / (len(stream) * recipe.steps), machine.floor(*work_per_step(model.net, recipe.batch_size))
    row = {
        "tasks": len(stream),
        "steps": recipe.steps,
        "seconds": taken,
        "µs per step": 1e6 * each,
        "floor µs": 1e6 * floor,
        "times the floor": each / floor,
        "masks": len(model.tasks),
        "accuracy": dict(zip(graded[0].stages, graded[0].curve)),
    }
    return row, model


def plain_step(net: FrozenNet, stream: Stream, recipe: Recipe, steps: int = 60) -> float:
    """Seconds of one step by eager autograd, one task, batches from memory."""
    task = stream[0]
    part = task.train.on(net.device)
    trainer = MaskTraining(net, initial_scores(net.seed, task.name, net.shapes, net.device), recipe)
    order = torch.randint(len(part), (steps, recipe.batch_size), device=net.device)

    def work() -> None:
        for positions in order:
            trainer.step(*part.batch(positions))

    return seconds(work, net.device, repeats=3) / steps


def product_step(net: FrozenNet, batch: int) -> float:
    """Seconds of the matrix products of one step alone: forward, to the inputs, to the weights.

    On a GPU for many tasks at once, as training takes them, so that they fill it.
    """
    tasks = 256 if net.device.type == "cuda" else 1
    precision = product_precision(net.device)

    def random(*shape: int) -> Tensor:
        return torch.randn(tasks, *shape, device=net.device).to(precision)

    layers = [(random(*shape), random(batch, shape[1]), random(batch, shape[0])) for shape in net.shapes.values()]

    def work() -> None:
        for i, (weight, inputs, delta) in enumerate(layers):
            torch.bmm(inputs, weight.transpose(1, 2))
            torch.bmm(delta.transpose(1, 2), inputs)
            if i:
                torch.bmm(delta, weight)

    return seconds(work, net.device, repeats=15) / tasks


def work_per_step(net: FrozenNet, batch: int) -> tuple[float, float]:
    """The fewest bytes moved and operations done in a step of one task with RMSprop, each number read or written once.

    Scores and second moments are read and written (16 bytes a weight); the masked weight is written, read forward, and
    read backward above the first layer; inputs of each layer are written, and read forward and for the gradient.
    """
    width = 2 if net.device.type == "cuda" else 4
    moved = operations = 0.0
    for i, shape in enumerate(net.shapes.values()):
        passes = 2 if i == 0 else 3
        moved += shape.numel() * (16 + width * passes) + 3 * width * batch * shape[1]
        operations += 2 * batch * shape.numel() * passes
    return moved, operations
