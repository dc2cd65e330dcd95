"""Predicting and learning on an idle machine and beside busy processes.

    python -m benchmarks busy_answers [--busy 8] [--data-dir DATA] [--out results/bench/answers-busy-2-cores.json]

LeNet 300-100 and permutations of MNIST, torch's own number of threads: milliseconds of the clock for 200 images with
the task given and by the default way, and for learning a task of 100 steps with what it is found by, alone and as one
of 24 in `learn_many`. "as OpenMP has it": threads spin for 300,000 turns, which is what libgomp does unless somebody
says otherwise. Each half begins after a minute, when the load average is what it should be.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import torch
import typer

from supsup_paper.provenance import provenance

ROOT = Path(__file__).parents[2]
WAYS = {
    "tuned, then torch imported": ("import supsup; supsup.tune_process()", {}),
    "tuned after torch was imported": ("import supsup, torch; supsup.tune_process()", {}),
    "as OpenMP has it": ("import torch", {"GOMP_SPINCOUNT": "300000"}),
}
PROGRAM = """
import json, statistics, sys, time
from dataclasses import replace
import torch
from supsup import Recipe, SupSup, data, nets
tasks = list(data.permuted(data.named("mnist", sys.argv[1] or None), 32))
model = SupSup(nets.lenet_300_100(outputs=100), recipe=Recipe(steps=100), device="cpu")

def clock(work):
    begin = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - begin)

model.learn_many(tasks[:4])
learning = [clock(lambda: model.learn(task)) for task in tasks[4:8]]
each_of_many = clock(lambda: model.learn_many(tasks[8:], show_progress=False)) / len(tasks[8:])
images = replace(tasks[0].test, rows=torch.arange(200), labels=tasks[0].test.labels[:200]).tensors()[0]
found = {}
for name, task in (("200 images, task given", tasks[0].name), ("200 images, the default way", None)):
    times = [clock(lambda: model.predict(images, task=task)) for _ in range(11)]
    found[name] = round(statistics.median(times[1:]), 1)
learned = {"learning a task": statistics.median(learning), "learning a task, one of 24": each_of_many}
print(json.dumps(found | {name: round(value, 1) for name, value in learned.items()}))
"""


def main(
    busy: Annotated[int, typer.Option(help="Processes that do nothing but compute.", min=1)] = 8,
    data_dir: Annotated[str, typer.Option(help="Where MNIST is.")] = "",
    out: Annotated[Path, typer.Option(help="Where the figures go.")] = ROOT / "results/bench/answers-busy-2-cores.json",
) -> None:
    rows = {}
    for beside in (0, busy):
        burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(beside)]
        time.sleep(60)
        try:
            for name, (first, settings) in WAYS.items():
                title = f"{name}, beside {beside} busy processes" if beside else f"{name}, alone"
                rows[title] = measured(f"{first}\n{PROGRAM}", settings, data_dir)
                print(title, rows[title], flush=True)
        finally:
            for burner in burners:
                burner.kill()
                burner.wait()
    record = {"milliseconds": rows, "made by": provenance(torch.device("cpu"))}
    out.write_text(json.dumps(record, indent=1) + "\n")


def measured(program: str, settings: dict[str, str], data_dir: str) -> dict[str, float]:
    """Milliseconds by what is done, in a process of its own."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    command = [sys.executable, "-c", program, data_dir]
    done = subprocess.run(command, check=True, env=inherited | settings, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    typer.run(main)
