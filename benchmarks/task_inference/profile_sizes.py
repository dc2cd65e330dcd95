"""Small, default and large profiles: bytes of a task beside its mask, and how often tasks are found with them.

    python -m benchmarks profile_sizes --data-dir DATA --out results/profile-sizes-2-cores.json

LeNet 300-100 with 100 outputs, 300 steps for each task, nobody names the task. DATA holds mnist/ and omniglot/. "file":
the bytes of the whole model file, in bytes of its masks as bits.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

from benchmarks.figures import write_figures
from benchmarks.task_inference.alphabets import alphabets
from benchmarks.task_inference.digits import percent
from supsup import Recipe, SupSup, data, nets
from supsup.data import Task

RECIPE = Recipe("adam", 1e-3, steps=300, batch_size=64)
IMAGES = 400  # test images of each task at most


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    source = data.named("mnist", options.data_dir)
    streams = {
        "6 permutations": list(data.permuted(source, 6)),
        "5 pairs of digits": list(data.split(source, 2)),
        "50 alphabets": alphabets(options.data_dir),
    }
    found = {
        name: {size: measured(tasks, size) for size in ("small", "default", "large")} for name, tasks in streams.items()
    }
    write_figures(found, options.out)


def measured(tasks: list[Task], size: str) -> dict[str, float]:
    """What one size costs and gives."""
    net = nets.lenet_300_100(outputs=100)
    model = SupSup(net, recipe=RECIPE, profile_size=size, device="cpu")  # type: ignore[arg-type]
    model.learn_many(tasks, show_progress=False)
    bits = len(tasks) * sum(weight.numel() for weight in net.parameters() if weight.ndim > 1) / 8
    given, labels, names = [], [], []
    for task in tasks:
        x, y = task.test.batch(torch.arange(min(IMAGES, len(task.test))))
        answer = model.predict(x)
        names.append(torch.tensor([name == task.name for name in answer.tasks]))
        labels.append(names[-1] & (answer.labels == y))
        given.append(model.predict(x, task=task.name).labels == y)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "tasks.supsup")
        file = (Path(folder) / "tasks.supsup").stat().st_size
    return {
        "file, in bytes of masks": round(file / bits, 2),
        "task right": percent(torch.cat(names)),
        "task and class right": percent(torch.cat(labels)),
        "class right, task given": percent(torch.cat(given)),
    }


if __name__ == "__main__":
    main()
