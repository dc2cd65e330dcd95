"""RotatedMNIST, 36 rotations by 10°, task unknown: similar tasks, from 1, 4 and 16 images.

    python -m benchmarks rotations --data-dir DATA --out results/finding-rotations.json

LeNet 300-100 with 100 outputs, a short recipe, black corners as the released scripts have them. "task right": the share
of test images whose rotation is found. All rotations have the same ten labels: "class right" counts those images whose
rotation and label are right, "label right, whatever the task" those whose label is.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.figures import write_figures
from benchmarks.task_inference.digits import WAYS, from_few, percent
from supsup import Inference, Recipe, SupSup, data, nets


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--tasks", type=int, default=36)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--images", type=int, default=400, help="test images of each task")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["auto", "features", "every mask, energy"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tasks = list(data.rotated(data.named("mnist", options.data_dir), options.tasks))
    recipe = Recipe("adam", 0.1, steps=options.steps, batch_size=128, schedule="cosine", score_bound=1.0)
    model = SupSup(nets.lenet_300_100(outputs=100), recipe=recipe, inference=Inference("auto"), device="cpu")
    begin = time.perf_counter()
    model.learn_many(tasks)
    seconds = time.perf_counter() - begin
    parts = [task.test.batch(torch.arange(options.images)) for task in tasks]
    given = [model.predict(x, task=task.name).labels == y for task, (x, y) in zip(tasks, parts)]
    found: dict[str, Any] = {
        "tasks": len(tasks),
        "steps": options.steps,
        "test images of each task": options.images,
        "seconds to learn": round(seconds),
        "class right, task given": percent(torch.cat(given)),
        "ways": {name: from_few(model, tasks, parts, WAYS[name]) for name in options.ways},
    }
    write_figures(found, options.out)


if __name__ == "__main__":
    main()
