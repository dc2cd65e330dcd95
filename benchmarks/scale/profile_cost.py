"""Milliseconds to fit a task's profile, compared with one training step.

    python -m benchmarks profile_cost --data-dir DATA --name here --out results/bench/leaving-2-cores.json

LeNet 300-100 with 100 outputs. Each stream is learned by two models, with `Inference("auto")` and with
`Inference("one-shot")`, which leaves nothing, in turns; the difference of the medians is the cost. "permutations": of
pictures, which filters look at. "permutations, flat": of rows of pixels, which the frozen network looks at. "split
digits": pairs of digits. The first 40 tasks are not timed, so that each has its 32 rivals. Rows under other names stay
in the file.
"""

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from supsup import Inference, Recipe, SupSup, data, nets
from supsup.data import Part, Task
from supsup.runtime.devices import resolve
from supsup_paper.provenance import provenance

BEFORE = 40  # tasks that are not timed
RECIPE = Recipe("adam", 0.1, steps=1, batch_size=128, score_bound=1.0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tasks", type=int, default=12, help="that are timed")
    parser.add_argument("--at-once", type=int, default=1, help="tasks that are learned together; on a GPU all of them")
    parser.add_argument("--name", default="here")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device, source = resolve(options.device), data.named("mnist", options.data_dir)
    count = BEFORE + options.tasks
    permutations = list(data.permuted(source, count))
    pairs = list(data.split(source, 2))
    streams = {
        "permutations": permutations,
        "permutations, flat": [replace(task, train=flat(task.train), test=flat(task.test)) for task in permutations],
        "split digits": [replace(pairs[i % len(pairs)], name=f"{i}") for i in range(count)],
    }
    found = {name: cost(tasks, options.at_once, device) for name, tasks in streams.items()}
    measured: dict[str, Any] = {}
    if options.out is not None and options.out.is_file():
        measured = json.loads(options.out.read_text())
    measured[options.name] = {"milliseconds a task": found, "made by": provenance(device)}
    text = json.dumps(measured, indent=1, default=str)
    if options.out is not None:
        options.out.write_text(text + "\n")
    print(text)


def flat(part: Part) -> Part:
    """Images as rows of pixels."""
    return replace(part, images=part.images.flatten(1))


def cost(tasks: list[Task], at_once: int, device: torch.device) -> float:
    """Milliseconds that a task takes longer where it leaves something."""
    models = [
        SupSup(nets.lenet_300_100(outputs=100), recipe=RECIPE, inference=Inference(method), device=device)
        for method in ("auto", "one-shot")
    ]
    for model in models:
        model.learn_many(tasks[:BEFORE])
    times: list[list[float]] = [[], []]
    for start in range(BEFORE, len(tasks), at_once):
        some = tasks[start : start + at_once]
        for model, own in zip(models, times):
            begin = time.perf_counter()
            model.learn_many(some)
            own.append(1e3 * (time.perf_counter() - begin) / len(some))
    leaving, nothing = (statistics.median(own) for own in times)
    return round(leaving - nothing, 1)


if __name__ == "__main__":
    main()
