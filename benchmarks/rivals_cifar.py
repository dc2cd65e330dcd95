"""The rivals on SplitCIFAR100 (20 five-way tasks, task given), each beside its published figure: one file per row.

python benchmarks/rivals_cifar.py --what lower,upper,heads,heads-random,batche-random --json results/rivals
                                                                                  (SUPSUP_DATA holds cifar100/)
A row that is finished is skipped. "batche-random-rank-one" and "upper" differ from the paper's text where the released
scripts do; docs/rivals.md says how.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rows import Job, Published, Work, run_jobs

from supsup import Recipe, SupSupError, data, evaluate, nets
from supsup.baselines import BatchE, SeparateHeads, UpperBound
from supsup.baselines.rival import Method
from supsup.data import Stream
from supsup.devices import resolve

PUBLISHED = {
    "batche": 79.75,
    "batche-random": 74.96,
    "batche-random-rank-one": 74.96,
    "heads": 70.60,
    "heads-random": 50.00,
    "upper": 91.62,
    "lower": 24.5,
}
BYTES = {
    "batche": 4_640_800,
    "batche-random": 400_240,
    "heads": 4_544_560,
    "heads-random": 184_000,
    "upper": 89_675_200,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", default="lower,upper,heads,heads-random,batche-random", help=",".join(PUBLISHED))
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=250)
    parser.add_argument("--seeds", default="0", help="one after the other, for example 0,1,2")
    parser.add_argument("--data-dir", type=Path, help="the folder with CIFAR-100")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, default=Path("results/rivals"), help="the folder for the rows")
    options = parser.parse_args()
    what = options.what.split(",")
    if not set(what) <= set(PUBLISHED):
        raise SupSupError(f"unknown rows in {options.what!r}; known: {', '.join(PUBLISHED)}")
    torch.backends.cudnn.benchmark = True
    device = resolve(options.device)
    source = data.cifar100(options.data_dir)
    options.json.mkdir(parents=True, exist_ok=True)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    settings = {"net": "gem_resnet18", "tasks": options.tasks, "epochs": options.epochs, "seeds": seeds}
    streams = [data.split(source, 5, seed=seed, tasks=options.tasks) for seed in seeds]
    bounds = [row for row in ("lower", "upper") if row in what]
    jobs = []
    for row in [row for row in what if row not in bounds] + bounds[:1]:
        rows = bounds if row in bounds else [row]  # both bounds come from one training
        paths = {name: options.json / f"cifar-{name}-{options.tasks}.json" for name in rows}
        published: dict[str, Published] = {name: {"accuracy": {20: PUBLISHED[name]}} for name in rows}

        def work(rows: Sequence[str] = rows) -> Work:
            return train(rows, streams, seeds, options.epochs, device)

        jobs.append(Job(paths, settings, published, options.tasks * len(seeds), work))
    sys.exit(1 if run_jobs(jobs, device, 1) else 0)


def train(
    rows: Sequence[str], streams: Sequence[Stream], seeds: Sequence[int], epochs: int, device: torch.device
) -> Work:
    """Accuracy in % and bytes of a row, or of both bounds."""
    found: dict[str, list[float]] = {row: [] for row in rows}
    size: dict[str, int] = {}
    for stream, seed in zip(streams, seeds):
        model = model_of(rows[0], seed, epochs, device)
        if isinstance(model, UpperBound):
            for task in stream:
                model.learn(task)
                yield
        else:
            model.learn_many(stream)
            yield
        for row in rows:
            graded = model.lower_bound() if isinstance(model, UpperBound) and row == "lower" else model
            found[row].append(100 * evaluate(graded, stream, "GG", show_progress=False).average_accuracy)
            size[row] = graded.bytes
            check_bytes(row, size[row], len(stream))
    return {row: ({"accuracy": {len(streams[0]): found[row]}}, size[row]) for row in rows}


def model_of(row: str, seed: int, epochs: int, device: torch.device) -> Method:
    """The rival of a row, with the paper's recipe."""
    slow = Recipe("adam", 1e-3, epochs=epochs, schedule="cosine", weight_decay=1e-4)
    common: dict[str, Any] = {"net": nets.gem_resnet18(outputs=5), "seed": seed, "device": device}
    kinds: dict[str, Callable[[], Method]] = {
        "batche": lambda: BatchE(last="head", recipe=replace(slow, learning_rate=1e-2), first=slow, **common),
        "batche-random": lambda: BatchE(base="random", last="head", recipe=replace(slow, learning_rate=0.1), **common),
        "batche-random-rank-one": lambda: BatchE(base="random", recipe=replace(slow, learning_rate=0.1), **common),
        "heads": lambda: SeparateHeads(recipe=replace(slow, learning_rate=1e-2), first=slow, **common),
        "heads-random": lambda: SeparateHeads(trunk="random", recipe=replace(slow, learning_rate=1e-2), **common),
    }
    return kinds[row]() if row in kinds else UpperBound(recipe=slow, **common)


def check_bytes(name: str, size: int, tasks: int) -> None:
    """An error if the bytes of the full experiment are not the published ones."""
    if tasks == 20 and name in BYTES and size != BYTES[name]:
        raise SupSupError(f"{name} takes {size:,} bytes, but {BYTES[name]:,} are published")


if __name__ == "__main__":
    main()
