"""Masks on a pretrained network compared with its frozen features, task given, on tasks of CIFAR-100.

    python -m benchmarks pretrained --json results/pretrained-cpu.json

Each task has five classes and --images training images of each. "class means" and "ridge" answer from the features of
the network as it is (nearest class mean by cosine; ridge regression, its strength chosen on a fifth of the training
images); "masks" are trained from every weight kept, "half kept" from a random half, both with a head of the task's own.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from supsup import Recipe, SupSup, data, nets
from supsup.data import Part, Task
from supsup_paper.provenance import provenance

STRENGTHS = (1e1, 1e2, 1e3, 1e4, 1e5)
TESTED = 100  # images of each class


def main() -> None:
    options = parse()
    build = {"mobilenet_v2": nets.mobilenet_v2, "efficientnet_lite0": nets.efficientnet_lite0}[options.net]
    net = build(5, pretrained=True, size=options.size)
    stream = data.split(data.cifar100(options.data_dir), 5, tasks=options.tasks)
    tasks = [replace(task, train=some(task.train, options.images), test=some(task.test, TESTED)) for task in stream]
    recipe = Recipe("adam", 3e-4, options.steps, 32, schedule="cosine", score_bound=0.005)
    rows = [row for task in tasks for row in from_features(net, task)]
    models = {"masks": recipe} | ({"half kept": replace(recipe, start="random")} if options.half else {})
    for name, how in models.items():
        rows += from_masks(name, SupSup(net, recipe=how, device="cpu"), tasks)
    methods = dict.fromkeys(row["method"] for row in rows)
    means = {name: mean([row["right"] for row in rows if row["method"] == name]) for name in methods}
    print(means)
    record = {
        "network": options.net,
        "pixels": options.size,
        "tasks": [task.name for task in tasks],
        "training images of a class": options.images,
        "steps": options.steps,
        "labels right, task given, %": means,
        "rows": rows,
        "made by": provenance(torch.device("cpu")),
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(record, indent=1) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="where the figures go")
    parser.add_argument("--data-dir", type=Path, help="folder that holds cifar100 (default: $SUPSUP_DATA)")
    parser.add_argument("--net", default="mobilenet_v2", choices=["mobilenet_v2", "efficientnet_lite0"])
    parser.add_argument("--size", type=int, default=64, help="pixels along a side that the network sees")
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--images", type=int, default=50, help="training images of each class")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--half", action="store_true", help="also from a random half of the weights")
    return parser.parse_args()


def some(part: Part, count: int) -> Part:
    """The first images of every class."""
    chosen = torch.cat([(part.labels == label).nonzero().flatten()[:count] for label in part.labels.unique()])
    rows = chosen if part.rows is None else part.rows[chosen]
    return replace(part, rows=rows, labels=part.labels[chosen])


def from_features(net: nets.ImageNetwork, task: Task) -> list[dict[str, Any]]:
    """What the frozen network's features answer."""
    (x, y), (tested, truth) = (features(net, part) for part in (task.train, task.test))
    means = normalize(torch.stack([x[y == label].mean(0) for label in range(task.classes)]), dim=1)
    nearest = (normalize(tested, dim=1) @ means.T).argmax(1)
    fifth = torch.arange(len(y)) % 5 == 0
    tried = {s: right(ridge(x[~fifth], y[~fifth], s, x[fifth]), y[fifth]) for s in STRENGTHS}
    strength = max(tried, key=lambda s: tried[s])
    linear = ridge(x, y, strength, tested)
    return [
        {"task": task.name, "method": "class means", "right": right(nearest, truth)},
        {"task": task.name, "method": "ridge", "right": right(linear, truth), "strength": strength},
    ]


@torch.no_grad()
def features(net: nets.ImageNetwork, part: Part) -> tuple[Tensor, Tensor]:
    net.eval()
    found = [(net.features(net.fit_images(x)).mean((2, 3)), y) for x, y in part.batches(50)]
    return torch.cat([x for x, _ in found]), torch.cat([y for _, y in found])


def ridge(x: Tensor, y: Tensor, strength: float, asked: Tensor) -> Tensor:
    """Labels of what is asked, by linear regression on the classes."""
    middle, targets = x.mean(0), one_hot(y).float()
    centred = x - middle
    weights = torch.linalg.solve(
        centred.T @ centred + strength * torch.eye(x.shape[1]), centred.T @ (targets - targets.mean(0))
    )
    labels: Tensor = ((asked - middle) @ weights).argmax(1)
    return labels


def from_masks(method: str, model: SupSup, tasks: list[Task]) -> list[dict[str, Any]]:
    """What masks answer, what share of the weights they keep, and what a task takes in a file."""
    rows, size = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for task in tasks:
            began = time.perf_counter()
            model.learn(task)
            seconds = time.perf_counter() - began
            path = Path(folder) / "model.supsup"
            model.save(path)
            before, size = size, path.stat().st_size
            x, y = task.test.tensors()
            masks = model.mask(task.name).values()
            kept = sum(int(mask.sum()) for mask in masks) / sum(mask.numel() for mask in masks)
            answered = right(model.predict(x, task=task.name).labels, y)
            row = {"task": task.name, "method": method, "right": answered, "weights kept, %": round(100 * kept, 1)}
            rows.append(row | {"seconds": round(seconds, 1), "more bytes in the file": size - before})
            print(rows[-1], flush=True)
    return rows


def right(labels: Tensor, truth: Tensor) -> float:
    return round(100 * float((labels == truth).float().mean()), 1)


def mean(values: list[float]) -> float:
    return round(sum(values) / len(values), 1)


if __name__ == "__main__":
    main()
