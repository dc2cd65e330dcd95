"""How long it takes to find the task of an image among k: from bits, exactly or from few coordinates, and plainly."""

from __future__ import annotations

import statistics
from typing import Any

import torch
from torch import Tensor

from supsup.bench.machine import Machine, once, seconds
from supsup.inference import Inference, choose_layers, infer
from supsup.learner import SupSup
from supsup.objectives import entropy
from supsup.search import bytes_read

Row = dict[str, Any]
_PLAIN_MASKS = 250  # float masks that the plain way is measured with; its time grows in proportion
_ONE_BY_ONE = 2000  # images at most that a search is graded on which takes them one by one


def bench_inference(
    model: SupSup,
    images: Tensor,
    tasks: list[str],
    machine: Machine,
    settings: dict[str, Inference],
    batch: int,
    grader: SupSup | None = None,
) -> list[Row]:
    """For each setting: a lone image, batches of images, and `images` graded against the tasks they come from.

    The first setting must be an exact one: it is what the others' answers are compared with. `grader` is the same model
    on a faster device, if there is one: it gives the exact answers, while all times of a search are the model's.
    """
    plain = plain_one_shot(model, images[:1])
    few = torch.arange(len(images))[:: -(-len(images) // _ONE_BY_ONE)]
    rows: list[Row] = []
    exact: list[str] = []
    for label, how in settings.items():
        read = bytes_read(model.bank, choose_layers(model.net, how.layers), how.coordinates)
        lone = lone_image(model, images, how)
        row: Row = {
            "setting": label,
            "k": len(model.tasks),
            "lone image ms": 1e3 * lone,
            "bytes read": read,
            "floor of a lone image ms": 1e3 * read / machine.bytes_per_second,
            "plain lone image ms": 1e3 * plain,
            "faster than plain": plain / lone,
        }
        if how.coordinates is None:
            row |= in_batches(model, images[:batch], machine, how)
            chosen, judge = torch.arange(len(images)), grader or model
        else:
            chosen, judge = few, model
        answers, taken = graded(judge, images[chosen], how, batch)
        exact = exact or answers
        right = [tasks[i] for i in chosen]
        row |= {
            "graded images": len(answers),
            "graded on": judge.device.type,
            "grading seconds": taken,
            "task right": _agreement(answers, right),
            "same as exact": _agreement(answers, [exact[i] for i in chosen]),
        }
        rows.append(row)
    return rows


def in_batches(model: SupSup, images: Tensor, machine: Machine, how: Inference) -> Row:
    """Time for each of several images handed in at once."""
    weights = sum(model.net.shapes[name].numel() for name in choose_layers(model.net, how.layers))
    taken = seconds(lambda: model.infer_task(images, **vars(how)), model.device, 3)
    return {
        "batch": len(images),
        "µs per image in batches": 1e6 * taken / len(images),
        "floor in batches µs": 1e6 * 2 * weights * len(model.tasks) / machine.operations_per_second,
    }


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
        return int(infer(model.net, model.bank, x, None, 10, how))

    work(few[:1])
    return statistics.median(once(lambda x=x: work(x), model.device) for x in few.split(1))  # type: ignore[misc]


def plain_one_shot(model: SupSup, image: Tensor) -> float:
    """Autograd through the superposition of float masks; measured with 250 of them and scaled to all."""
    count = min(_PLAIN_MASKS, len(model.bank))
    masks = [model.bank.mask(i) for i in range(count)]
    floats = {name: torch.stack([mask[name].float() for mask in masks]) for name in model.net.shapes}

    def work() -> int:
        alpha = torch.full((count,), 1 / count, device=model.device, requires_grad=True)
        weights = {
            name: weight * torch.einsum("k,k...->...", alpha, floats[name])
            for name, weight in model.net.weights.items()
        }
        (g,) = torch.autograd.grad(entropy(model.net.run(image, weights), 10).sum(), alpha)
        return int(g.argmin())

    return seconds(work, model.device, 5) * len(model.bank) / count


def _agreement(answers: list[str], others: list[str]) -> float:
    return sum(a == b for a, b in zip(answers, others, strict=True)) / len(others)
