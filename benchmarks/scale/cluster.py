"""Cost and gain of a cluster: tasks learned without one, by one worker and by two.

    OMP_NUM_THREADS=1 python -m benchmarks cluster [--tasks 200] [--steps 60] [--turns 2] [--ray]

LeNet 300-100 on permutations of 5,000 real digits, found by One-Shot: what the default way finds tasks by is made while
the next tasks are trained, so that one process alone keeps two cores busy. `--ray` adds a Ray cluster on this machine.
Each figure is the fastest of its turns. Writes results/bench/cluster-2-cores.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch

from supsup import Inference, Recipe, SupSup, data, nets
from supsup.data import Stream
from supsup_paper.provenance import provenance

OUT = Path(__file__).parents[2] / "results" / "bench" / "cluster-2-cores.json"
WORKERS = (1, 2)


def one_thread() -> None:
    """A worker's own setting."""
    torch.set_num_threads(1)


def warm(seconds: float) -> int:
    """Keep a worker busy until the others are up too."""
    time.sleep(seconds)
    return os.getpid()


def pool_of(workers: int) -> ProcessPoolExecutor:
    """So many processes, all of them up."""
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), one_thread)
    pids: set[int] = set()
    while len(pids) < workers:
        pids |= set(pool.map(warm, [1.0] * workers))
    return pool


def learned(stream: Stream, steps: int, cluster: str | ProcessPoolExecutor | None) -> tuple[float, SupSup]:
    """Seconds for a whole stream, and the model."""
    net, how = nets.lenet_300_100(outputs=100), Inference("one-shot")
    model = SupSup(net, seed=0, recipe=Recipe(steps=steps), inference=how, device="cpu")
    begin = time.perf_counter()
    model.learn_many(stream, cluster=cluster, show_progress=False)
    return time.perf_counter() - begin, model


def fastest(ways: dict[str, Callable[[], tuple[float, SupSup]]], turns: int) -> dict[str, float]:
    """Seconds of each way, the best of its turns; all give the same masks."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    first: SupSup | None = None
    for _ in range(turns):
        for name, way in ways.items():
            taken, model = way()
            first = first or model
            seconds[name].append(taken)
            assert sorted(model.tasks) == sorted(first.tasks)
            assert all(torch.equal(first.mask(t)[w], bits) for t in model.tasks for w, bits in model.mask(t).items())
            print(f"{name}: {taken:.1f} s", flush=True)
    return {name: min(taken) for name, taken in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    stream = data.permuted(data.digits(), tasks=asked.tasks, seed=0)
    learned(stream[:2], asked.steps, None)  # compiles
    pools = {count: pool_of(count) for count in WORKERS}
    ways: dict[str, Callable[[], tuple[float, SupSup]]] = {"alone": partial(learned, stream, asked.steps, None)}
    for count, pool in pools.items():
        learned(stream[: 8 * count], asked.steps, pool)
        ways[f"{count} in processes"] = partial(learned, stream, asked.steps, pool)
    seconds = fastest(ways, asked.turns)
    for pool in pools.values():
        pool.shutdown()
    if asked.ray:
        seconds |= _on_ray(stream, asked.steps, asked.turns)
    rows = {
        "tasks": asked.tasks,
        "steps": asked.steps,
        "seconds": {name: round(taken, 2) for name, taken in seconds.items()},
        "overhead of one worker %": round(100 * (seconds["1 in processes"] / seconds["alone"] - 1), 1),
        "two workers over one": round(seconds["1 in processes"] / seconds["2 in processes"], 2),
    }
    if asked.ray:
        rows["overhead of one worker on Ray %"] = round(100 * (seconds["1 on Ray"] / seconds["alone"] - 1), 1)
        rows["two workers over one on Ray"] = round(seconds["1 on Ray"] / seconds["2 on Ray"], 2)
    print(json.dumps(rows, indent=1))
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(rows | {"made by": provenance(torch.device("cpu"))}, indent=1) + "\n")


def _on_ray(stream: Stream, steps: int, turns: int) -> dict[str, float]:
    """The same on a Ray cluster of one node with one core, then with two."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    seconds: dict[str, float] = {}
    for count in WORKERS:
        ray.init(num_cpus=count, num_gpus=0, include_dashboard=False, log_to_driver=False)
        learned(stream[: 8 * count], steps, "auto")
        seconds |= fastest({f"{count} on Ray": partial(learned, stream, steps, "auto")}, turns)
        ray.shutdown()
    return seconds


if __name__ == "__main__":
    main()
