"""Tasks of CIFAR-100 with and without self-labels: labels with the task given, and tasks found by trying every mask.

    python benchmarks/self_labels.py --json results/self-labels-cpu.json

A small residual network with four outputs a class learns each task both ways in the same number of steps. The task of
test images is found by the lowest objective, from single images and from four and sixteen of one task together.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from supsup import Recipe, SupSup, data, nets
from supsup.data import Part, Task
from supsup_paper.provenance import provenance

CLASSES, TOGETHER, OBJECTIVES = 5, (1, 4, 16), ("H", "G", "M")


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    stream = data.split(data.cifar100(options.data_dir), CLASSES, tasks=options.tasks)
    tasks = [
        replace(task, train=some(task.train, options.images), test=some(task.test, options.tested)) for task in stream
    ]
    plain = Recipe("adam", 0.1, options.steps, 64, schedule="cosine", score_bound=1.0)
    rows = [
        row(name, how, tasks)
        for name, how in (("plain", plain), ("rotations", replace(plain, self_labels="rotations")))
    ]
    record = {
        "network": "small_resnet",
        "tasks": [task.name for task in tasks],
        "training images of a class": options.images,
        "test images of a class": options.tested,
        "steps": options.steps,
        "rows": rows,
        "made by": provenance(torch.device("cpu")),
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(record, indent=1) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="where the figures go")
    parser.add_argument("--data-dir", type=Path, help="folder that holds cifar100 (default: $SUPSUP_DATA)")
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--images", type=int, default=500, help="training images of each class")
    parser.add_argument("--tested", type=int, default=48, help="test images of each class")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def some(part: Part, count: int) -> Part:
    """The first images of every class."""
    chosen = torch.cat([(part.labels == label).nonzero().flatten()[:count] for label in part.labels.unique()])
    rows = chosen if part.rows is None else part.rows[chosen]
    return replace(part, rows=rows, labels=part.labels[chosen])


def row(name: str, recipe: Recipe, tasks: list[Task]) -> dict[str, Any]:
    """One way of learning all tasks, and how it answers."""
    model = SupSup(nets.small_resnet(outputs=4 * CLASSES), recipe=recipe, device="cpu")
    began = time.perf_counter()
    model.learn_many(tasks)
    seconds = round(time.perf_counter() - began, 1)
    given = [
        float((model.predict(x, task=task.name).labels == y).float().mean())
        for task in tasks
        for x, y in [task.test.tensors()]
    ]
    found = {
        f"task found from {images} with {objective}, %": share(tasks_found(model, tasks, images, objective))
        for objective in OBJECTIVES
        for images in TOGETHER
    }
    replaced = {"method": name, "labels right, task given, %": share(given), **found, "seconds": seconds}
    print(replaced, flush=True)
    return replaced


def tasks_found(model: SupSup, tasks: list[Task], images: int, objective: str) -> list[float]:
    """For each task, the share of decisions, from so many of its images each, that fall on it."""
    model.inference = replace(model.inference, method="exhaustive", objective=objective)
    shares = []
    for task in tasks:
        x, _ = task.test.tensors()
        mixed = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))]
        decisions = mixed[: len(x) // images * images].unflatten(0, (-1, images))
        answers = model.infer_batches(decisions)
        shares.append(sum(answer == task.name for answer in answers) / len(answers))
    return shares


def share(values: list[float]) -> float:
    """The mean in per cent."""
    return round(100 * sum(values) / len(values), 1)


if __name__ == "__main__":
    main()
