"""How long training takes: many tasks our way, one task the plain way, and the floor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from supsup.data import Stream
from supsup.evaluation.evaluator import learn_and_evaluate
from supsup.inference.methods import Inference
from supsup.masks.frozen import FrozenNet
from supsup.masks.scores import initial_scores
from supsup.model.state import state_of
from supsup.model.supsup import SupSup
from supsup.training import MNIST, Job, MaskTraining, Recipe
from supsup.training.executors import executors_for
from supsup_paper.bench.measurement import Machine, once, product_precision, seconds


@dataclass(frozen=True)
class TrainingMeasurement:
    """Seconds of learning some tasks, data included, and what they compare with; µs are per task and step.

    products  the matrix products of a step alone, for networks that are computed by hand
    """

    tasks: int
    steps: int
    seconds: float
    each_us: Annotated[float, "µs per task-step"]
    plain_us: Annotated[float, "plain µs per task-step"]
    products_us: Annotated[float | None, "products alone µs"]
    floor_us: Annotated[float, "floor µs"]
    faster_than_plain: Annotated[float, "faster than plain"]
    times_products: Annotated[float | None, "times the products"]
    times_floor: Annotated[float, "times the floor"]
    executor: str | None = None


@dataclass(frozen=True)
class UnannouncedMeasurement:
    """Seconds of learning a stream of which nobody says where a task begins, and what was learned."""

    tasks: int
    steps: int
    seconds: float
    step_us: Annotated[float, "µs per step"]
    floor_us: Annotated[float, "floor µs"]
    times_floor: Annotated[float, "times the floor"]
    masks: int
    accuracy: dict[int, float]


def bench_training(
    net: nn.Module,
    stream: Stream,
    counts: Sequence[int],
    recipe: Recipe,
    machine: Machine,
    device: torch.device,
    cluster: str | None = None,
) -> list[TrainingMeasurement]:
    """For each number of tasks: seconds in all (data included), µs per task and step, and what they compare with.

    cluster  who trains our way, as in `learn_many`; starting them counts too
    """
    plain = plain_step(
        state_of(SupSup(net, recipe=recipe, device=device)).net, stream, recipe
    )  # before ours changes anything
    warm = warmed_up(net, stream, recipe, device)
    products = product_step(state_of(warm).net, recipe.batch_size) if state_of(warm).net.is_fully_connected else None
    floor = machine.floor(*work_per_step(state_of(warm).net, stream, recipe))
    rows = []
    for count in counts:
        _, taken = learned(net, stream[:count], recipe, device, cluster)
        by = next(executors_for(state_of(warm).net, [Job(task, recipe) for task in stream[:count]])).name
        each = taken / (count * recipe.steps)
        rows.append(
            TrainingMeasurement(
                tasks=count,
                steps=recipe.steps,
                seconds=taken,
                each_us=1e6 * each,
                plain_us=1e6 * plain,
                products_us=None if products is None else 1e6 * products,
                floor_us=1e6 * floor,
                faster_than_plain=plain / each,
                times_products=None if products is None else each / products,
                times_floor=each / floor,
                executor=by if cluster is None else f"{by}, {cluster}",
            )
        )
    return rows


def warmed_up(net: nn.Module, stream: Stream, recipe: Recipe, device: torch.device) -> SupSup:
    """A model that has learned a little, so that all that training compiles has been compiled."""
    model = SupSup(net, recipe=replace(recipe, steps=3), inference=Inference("one-shot"), device=device)
    model.learn_many(stream[:2], show_progress=False)
    return model


def learned(
    net: nn.Module, stream: Stream, recipe: Recipe, device: torch.device, cluster: str | None = None
) -> tuple[SupSup, float]:
    """A model that has learned all tasks, and the seconds it took, data included."""
    model = SupSup(net, recipe=recipe, inference=Inference("one-shot"), device=device)
    return model, once(lambda: model.learn_many(stream, cluster=cluster), device)


def bench_unannounced(
    net: nn.Module, stream: Stream, recipe: Recipe, machine: Machine, device: torch.device, stages: Sequence[int]
) -> tuple[UnannouncedMeasurement, SupSup]:
    """Learning a stream of which nobody says where a task begins, graded at the given stages; the floor is of steps."""
    model = SupSup(net, recipe=recipe, inference=Inference("one-shot"), device=device)
    graded: list[Any] = []
    taken = once(lambda: graded.append(learn_and_evaluate(model, stream, "NNs", stages=stages)), device)
    each, floor = (
        taken / (len(stream) * recipe.steps),
        machine.floor(*work_per_step(state_of(model).net, stream, recipe)),
    )
    row = UnannouncedMeasurement(
        tasks=len(stream),
        steps=recipe.steps,
        seconds=taken,
        step_us=1e6 * each,
        floor_us=1e6 * floor,
        times_floor=each / floor,
        masks=len(model.tasks),
        accuracy=dict(zip(graded[0].stages, graded[0].curve)),
    )
    return row, model


def plain_step(net: FrozenNet, stream: Stream, recipe: Recipe, steps: int = 60) -> float:
    """Seconds of one step by eager autograd, one task, batches from memory."""
    task = stream[0]
    part = task.train.on(net.device)
    training = MaskTraining(net, initial_scores(net.seed, task.name, net.shapes, net.device), recipe)
    order = torch.randint(len(part), (steps, recipe.batch_size), device=net.device)

    def work() -> None:
        training.done = 0  # a learning rate that falls to 0 is not asked for steps beyond the last
        for positions in order:
            training.step(*part.batch(positions))

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


def work_per_step(net: FrozenNet, stream: Stream, recipe: Recipe) -> tuple[float, float]:
    """The fewest bytes moved and operations done in a step of one task, each number read or written once.

    Scores and moments are read and written (8 bytes each a weight); the masked weight is written, read forward, and
    read backward above the first layer; inputs of each layer are written, and read forward and for the gradient.
    """
    width = 2 if net.device.type == "cuda" else 4
    moments = {"rmsprop": 1, "adam": 2, "sgd": 1 if recipe.momentum else 0}[recipe.optimiser]
    inputs, operations = _counted(net, stream, recipe.batch_size)
    moved = 0.0
    for i, (name, shape) in enumerate(net.shapes.items()):
        passes = 2 if i == 0 else 3
        moved += shape.numel() * (8 * (1 + moments) + width * passes) + 3 * width * inputs[name]
    return moved, operations


def _counted(net: FrozenNet, stream: Stream, batch_size: int) -> tuple[dict[str, int], float]:
    """Of one step: how many numbers each masked layer takes in, and the operations of all products."""
    x, y = stream[0].train.on(net.device).batch(torch.arange(batch_size) % len(stream[0].train))
    taken = dict.fromkeys(net.shapes, 0)

    def count(name: str) -> Any:
        def hook(module: nn.Module, given: tuple[Any, ...]) -> None:
            taken[name] += sum(value.numel() for value in given[:1] if isinstance(value, Tensor))

        return hook

    layers = {name: net.module.get_submodule(name.rpartition(".")[0]) for name in net.shapes}
    hooks = [layer.register_forward_pre_hook(count(name)) for name, layer in layers.items()]
    training = MaskTraining(net, initial_scores(net.seed, "counted", net.shapes, net.device), MNIST)
    try:
        with FlopCounterMode(display=False) as counter:
            training.step(x, y)
    finally:
        for hook in hooks:
            hook.remove()
    return taken, float(counter.get_total_flops())
