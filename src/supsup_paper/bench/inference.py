"""Time to infer the task of one image: exact search, short search (few coordinates) and plain autograd.

Also how that time grows with the number of tasks.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from supsup.data import Stream
from supsup.inference.gradient import Goal, choose_layers, query
from supsup.inference.methods import Inference
from supsup.inference.objectives import entropy
from supsup.inference.search import Outer
from supsup.masks.bank import Bank
from supsup.masks.frozen import FrozenNet
from supsup.model.state import state_of
from supsup.model.supsup import SupSup
from supsup_paper.bench.bare_masks import bytes_read, infer_indices
from supsup_paper.bench.measurement import Machine, once, seconds

_PLAIN_MASKS = 250  # float masks that the plain way is measured with; its time grows in proportion
_ONE_BY_ONE = 2000  # images at most that a search is graded on which takes them one by one


@dataclass(frozen=True)
class InferenceMeasurement:
    """Times and answers of one setting; batches are measured for exact settings alone, learning where there was any."""

    setting: str
    tasks: Annotated[int, "k"]
    lone_ms: Annotated[float, "lone image ms"]
    bytes_read: Annotated[int, "bytes read"]
    lone_floor_ms: Annotated[float, "floor of a lone image ms"]
    plain_lone_ms: Annotated[float, "plain lone image ms"]
    faster_than_plain: Annotated[float, "faster than plain"]
    batch: int | None
    batch_us: Annotated[float | None, "µs per image in batches"]
    batch_floor_us: Annotated[float | None, "floor in batches µs"]
    graded_images: Annotated[int, "graded images"]
    graded_on: Annotated[str, "graded on"]
    grading_seconds: Annotated[float, "grading seconds"]
    task_right: Annotated[float, "task right"]
    same_as_exact: Annotated[float, "same as exact"]
    learning_seconds: Annotated[float | None, "learning seconds"] = None
    learning_and_grading_seconds: Annotated[float | None, "learning and grading seconds"] = None

    def after_learning(self, taken: float) -> InferenceMeasurement:
        """The same with the seconds that learning the masks took."""
        return replace(self, learning_seconds=taken, learning_and_grading_seconds=taken + self.grading_seconds)


def bench_inference(
    model: SupSup,
    images: Tensor,
    tasks: list[str],
    machine: Machine,
    settings: dict[str, Inference],
    batch: int,
    grader: SupSup | None = None,
) -> list[InferenceMeasurement]:
    """For each setting: a lone image, batches of images, and `images` graded against the tasks they come from.

    The first setting must be an exact one: it is what the others' answers are compared with. `grader` is the same model
    on a faster device, if there is one: it gives the exact answers, while all times of a search are the model's.
    """
    plain = plain_one_shot_seconds(model, images[:1])
    few = torch.arange(len(images))[:: -(-len(images) // _ONE_BY_ONE)]
    measurements: list[InferenceMeasurement] = []
    exact: list[str] = []
    for label, how in settings.items():
        layers, is_exact = choose_layers(state_of(model).net, how.layers), how.coordinates is None
        read = bytes_read(state_of(model).bank, layers, how.coordinates)
        lone = lone_image(model, images, how)
        together = in_batches(model, images[:batch], how) if is_exact else None
        chosen, judge = (torch.arange(len(images)), grader or model) if is_exact else (few, model)
        answers, taken = graded(judge, images[chosen], how, batch)
        exact = exact or answers
        measurements.append(
            InferenceMeasurement(
                setting=label,
                tasks=len(model.tasks),
                lone_ms=1e3 * lone,
                bytes_read=read,
                lone_floor_ms=1e3 * read / machine.bytes_per_second,
                plain_lone_ms=1e3 * plain,
                faster_than_plain=plain / lone,
                batch=len(images[:batch]) if is_exact else None,
                batch_us=None if together is None else 1e6 * together,
                batch_floor_us=1e6 * batch_floor(model, layers, machine) if is_exact else None,
                graded_images=len(answers),
                graded_on=judge.device.type,
                grading_seconds=taken,
                task_right=_agreement(answers, [tasks[i] for i in chosen]),
                same_as_exact=_agreement(answers, [exact[i] for i in chosen]),
            )
        )
    return measurements


def single_images(stream: Stream, count: int) -> tuple[Tensor, list[str]]:
    """Test images spread evenly over the tasks, with the names of their tasks."""
    tasks = [stream[i * len(stream) // count] for i in range(count)]
    x = torch.cat([task.test.batch(torch.tensor([i % len(task.test)]))[0] for i, task in enumerate(tasks)])
    return x, [task.name for task in tasks]


def in_batches(model: SupSup, images: Tensor, how: Inference) -> float:
    """Seconds for each of several images handed in at once."""
    return seconds(lambda: model.infer_task(images, **vars(how)), model.device, 3) / len(images)


def batch_floor(model: SupSup, layers: list[str], machine: Machine) -> float:
    """The least seconds for an image in a batch: a multiplication and an addition for each weight and task."""
    weights = sum(state_of(model).net.shapes[name].numel() for name in layers)
    return 2 * weights * len(model.tasks) / machine.operations_per_second


def graded(model: SupSup, images: Tensor, how: Inference, batch: int) -> tuple[list[str], float]:
    """The task of every image, each on its own, and the seconds that all of them took."""
    answers: list[str] = []

    def work() -> None:
        for piece in images.to(model.device).split(batch):
            answers.extend(model.infer_task(piece, **vars(how)))

    return answers, once(work, model.device)


def lone_image(model: SupSup, images: Tensor, how: Inference, repeats: int = 50) -> float:
    """The median time from one image on the device to the index of its task."""
    few = images[:repeats, None]

    def work(x: Tensor) -> int:
        return int(infer_indices(state_of(model).net, state_of(model).bank, x, None, 10, how))

    work(few[:1])
    return statistics.median(once(lambda x=x: work(x), model.device) for x in few.split(1))  # type: ignore[misc]


def plain_one_shot_seconds(model: SupSup, image: Tensor) -> float:
    """Autograd through the superposition of float masks; measured with 250 of them and scaled to all."""
    count = min(_PLAIN_MASKS, len(state_of(model).bank))
    masks = [state_of(model).bank.mask(i) for i in range(count)]
    floats = {name: torch.stack([mask[name].float() for mask in masks]) for name in state_of(model).net.shapes}

    def work() -> int:
        alpha = torch.full((count,), 1 / count, device=model.device, requires_grad=True)
        weights = {
            name: weight * torch.einsum("k,k...->...", alpha, floats[name])
            for name, weight in state_of(model).net.weights.items()
        }
        (g,) = torch.autograd.grad(entropy(state_of(model).net.run(image, weights), 10).sum(), alpha)
        return int(g.argmin())

    return seconds(work, model.device, 5) * len(state_of(model).bank) / count


def _agreement(answers: list[str], others: list[str]) -> float:
    return sum(a == b for a, b in zip(answers, others, strict=True)) / len(others)


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
        bank = first_of(state_of(model).bank, count)
        rows.append(measure(state_of(model).net, bank, x.to(model.device), indices, machine, how))
    return rows


def measure(
    net: FrozenNet, bank: Bank, images: Tensor, tasks: Tensor, machine: Machine, how: Inference
) -> GrowthMeasurement:
    """All tasks of a bank; `how` is the short search, `images` [n, …] are of the tasks with these indices [n]."""
    exact, layers, lone = replace(how, coordinates=None), choose_layers(net, how.layers), images[:_TIMED, None]
    goal, mean = Goal(how.objective, _CLASSES), bank.mean()

    def answers(x: Tensor, way: Inference) -> Tensor:
        return infer_indices(net, bank, x, None, _CLASSES, way)

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
