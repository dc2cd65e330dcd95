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

Row = dict[str, Any]
_PLAIN_MASKS = 250  # float masks that the plain way is measured with; its time grows in proportion


def bench_inference(
    model: SupSup, images: Tensor, tasks: list[str], machine: Machine, settings: dict[str, Inference], batch: int
) -> list[Row]:
    """For each setting: a lone image and batches of images, all `images` graded against the tasks they come from."""
    plain = plain_one_shot(model, images[:1])
    rows = []
    for label, how in settings.items():
        layers = choose_layers(model.net, how.layers)
        weights = sum(model.net.shapes[name].numel() for name in layers)
        read = model.bank.bytes_read(layers, how.coordinates)
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
            taken = seconds(lambda how=how: model.infer_task(images[:batch], **vars(how)), model.device, 3)  # type: ignore[misc]
            row |= {
                "batch": batch,
                "µs per image in batches": 1e6 * taken / min(batch, len(images)),
                "floor in batches µs": 1e6 * 2 * weights * len(model.tasks) / machine.operations_per_second,
            }
        answers = [name for piece in images.split(batch) for name in model.infer_task(piece, **vars(how))]
        row["task right"] = sum(a == b for a, b in zip(answers, tasks)) / len(tasks)
        row["answers"] = answers
        rows.append(row)
    for row in rows:
        row["same as exact"] = sum(a == b for a, b in zip(row["answers"], rows[0]["answers"])) / len(tasks)
    for row in rows:
        del row["answers"]
    return rows


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
