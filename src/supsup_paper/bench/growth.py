"""How the time to find the task of a lone image grows with the number of tasks: exactly and from few coordinates."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from supsup.data import Stream
from supsup.inference.gradient import Goal, query
from supsup.inference.methods import Inference, choose_layers, infer
from supsup.inference.search import Outer, bytes_read
from supsup.masks.bank import Bank
from supsup.masks.frozen import FrozenNet
from supsup.model.supsup import SupSup
from supsup_paper.bench.inferring import single_images
from supsup_paper.bench.machine import Machine, once

_TIMED, _LEAST = 200, 5  # images at most that a median is taken of, and at least
_SECONDS = 3  # for all of them, about
_TOGETHER = 256  # images whose exact answers are computed at once
_CLASSES = 10
_MADE = 2500  # masks that are made together


@dataclass(frozen=True)
class GrowthMeasurement:
    """A lone image among k tasks: the whole answer each way, and how often the short one is that of the exact one."""

    tasks: Annotated[int, "k"]
    query_ms: Annotated[float, "query ms"]
    exact_ms: Annotated[float, "exact ms"]
    exact_floor_ms: Annotated[float, "floor, exact ms"]
    short_ms: Annotated[float, "short ms"]
    short_floor_ms: Annotated[float, "floor, short ms"]
    images: int
    exact_right: Annotated[float, "exact right %"]
    short_right: Annotated[float, "short right %"]
    agreement: Annotated[float, "short as exact %"]


def bench_growth(
    model: SupSup, stream: Stream, counts: Sequence[int], images: int, machine: Machine, how: Inference
) -> list[GrowthMeasurement]:
    """Banks of more and more of a model's tasks, which are those of the stream; what it has too few of, is random."""
    index_of = {name: index for index, name in enumerate(model.tasks)}
    rows = []
    for count in counts:
        x, names = single_images(stream[: min(count, len(stream))], images)
        indices = torch.tensor([index_of[name] for name in names])
        bank = first_of(model.bank, count)
        rows.append(measure(model.net, bank, x.to(model.device), indices, machine, how))
    return rows


def measure(
    net: FrozenNet, bank: Bank, images: Tensor, tasks: Tensor, machine: Machine, how: Inference
) -> GrowthMeasurement:
    """All tasks of a bank; `how` is the short search, `images` [n, …] are of the tasks with these indices [n]."""
    exact, layers, lone = replace(how, coordinates=None), choose_layers(net, how.layers), images[:_TIMED, None]
    goal, mean = Goal(how.objective, _CLASSES), bank.mean()

    def answers(x: Tensor, way: Inference) -> Tensor:
        return infer(net, bank, x, None, _CLASSES, way)

    def asked(x: Tensor) -> Tensor:
        rows = query(net, x, mean, goal, layers)
        return torch.cat([(r.delta if isinstance(r, Outer) else r).flatten() for r in rows.values()])

    def query_alone(x: Tensor) -> Tensor:
        return bank.replays.answer("query alone", asked, x, lambda: True)

    short = torch.cat([answers(x, how) for x in images[:, None].split(1)]).cpu()
    right = torch.cat([answers(x, exact) for x in images[:, None].split(_TOGETHER)]).cpu()
    return GrowthMeasurement(
        tasks=len(bank),
        query_ms=_median(query_alone, lone),
        exact_ms=_median(lambda x: int(answers(x, exact)), lone),
        exact_floor_ms=1e3 * bytes_read(bank, layers) / machine.bytes_per_second,
        short_ms=_median(lambda x: int(answers(x, how)), lone),
        short_floor_ms=1e3 * bytes_read(bank, layers, how.coordinates) / machine.bytes_per_second,
        images=len(images),
        exact_right=100 * float((right == tasks).float().mean()),
        short_right=100 * float((short == tasks).float().mean()),
        agreement=100 * float((short == right).float().mean()),
    )


def first_of(bank: Bank, count: int) -> Bank:
    """A bank of so many tasks: the first of a bank, and where it has fewer, others as alike as learned masks are.

    Those are random in the first layer, and as one that was learned beyond it.
    """
    if count == len(bank):
        return bank
    some, chance = Bank(bank.shapes, bank.device), torch.Generator(bank.device).manual_seed(0)
    some.reserve(count)
    for block in bank.blocks():
        some.add_packed(block[:, : count - len(some)])
    learned, beyond = len(some), next(iter(bank.spans.values()))[1]
    for start in range(learned, count, _MADE):
        made = min(_MADE, count - start)
        masks = torch.randint(256, (bank.length, made), dtype=torch.uint8, device=bank.device, generator=chance)
        alike = [next(some.blocks())[beyond:, (start + i) % learned] for i in range(made)]
        masks[beyond:] = torch.stack(alike, 1)
        some.add_packed(masks)
    return some


def _median(work: Callable[[Tensor], object], images: Tensor) -> float:
    """Milliseconds of work on one image on the device, over as many images as there is time for."""
    for x in images[:2].split(1):
        work(x)
    times: list[float] = []
    for x in images.split(1):
        if len(times) < _LEAST or sum(times) < _SECONDS:
            times.append(once(lambda x=x: work(x), images.device))  # type: ignore[misc]
    return 1e3 * statistics.median(times)
