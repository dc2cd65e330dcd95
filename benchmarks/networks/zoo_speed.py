"""Training speed on the zoo's networks: ours, the plain loop and the floor, in one run.

    python -m benchmarks zoo_speed --json results/bench/zoo-speed-h200.json
    python -m benchmarks zoo_speed cnn-batchnorm --device cpu --json results/bench/zoo-speed-2-cores.json
    python -m benchmarks zoo_speed --table    only the table in docs/speed.md

Inputs are drawn, in the shape and number of the zoo's: what a step takes does not depend on what they show. Each row is
measured in a process of its own, the plain way first: what ours sets up would speed it up too. Threads of torch wait as
they do by default, which on idle cores suits the plain way best.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import traceback
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.networks.zoo import ROWS
from supsup.data import Part, Stream, Task
from supsup.runtime.devices import resolve
from supsup.training.auto_recipe import first_round
from supsup_paper.bench import bench_training, measure_machine
from supsup_paper.bench.measurement import as_record
from supsup_paper.provenance import provenance

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "results" / "bench", ROOT / "docs" / "speed.md"
FILES = {"H200": "zoo-speed-h200", "2 cores": "zoo-speed-2-cores"}


@dataclass(frozen=True)
class Inputs:
    """What the tasks of a row of the zoo look like.

    shared  whether all tasks are about the same images, as parts of one data set are
    """

    shape: tuple[int, ...]
    images: int
    classes: int
    shared: bool = True


INPUTS = {
    "lenet-mnist": Inputs((1, 28, 28), 60_000, 10),
    "cnn-batchnorm": Inputs((1, 28, 28), 2_250, 5),
    "cnn-groupnorm": Inputs((1, 28, 28), 2_250, 5),
    "cnn-omniglot": Inputs((1, 28, 28), 600, 40, shared=False),
    "resnet-cifar": Inputs((3, 32, 32), 2_250, 5),
    "transformer-digits": Inputs((1, 28, 28), 2_250, 5),
    "mlp-digits": Inputs((64,), 600, 5),
}
NETWORKS_OF_IMAGES = [name for name, inputs in INPUTS.items() if len(inputs.shape) == 3]


def drawn(inputs: Inputs, tasks: int) -> Stream:
    """Tasks of random inputs and labels."""
    chance = torch.Generator().manual_seed(0)

    def images() -> torch.Tensor:
        return torch.randint(256, (inputs.images, *inputs.shape), dtype=torch.uint8, generator=chance)

    together = images()

    def make(number: int) -> Task:
        labels = torch.randint(inputs.classes, (inputs.images,), generator=chance)
        own = together if inputs.shared else images()
        part = Part(own, labels, torch.tensor(1 / 128), torch.tensor(-1.0))
        return Task(f"drawn-{number}", part, part, inputs.classes)

    made = [make(number) for number in range(tasks)]
    return Stream("drawn", made.__getitem__, range(tasks))


def measured(name: str, tasks: int, steps: int, machine: Any, device: torch.device, cluster: str | None) -> Any:
    """The figures of a network, with the optimiser and the batches that a task of its size is given by default."""
    inputs = INPUTS[name]
    stream = drawn(inputs, tasks)
    torch.manual_seed(0)
    net, recipe = ROWS[name].net(stream), replace(first_round(inputs.images), steps=steps)
    (row,) = bench_training(net, stream, [tasks], recipe, machine, device, cluster)
    size = {"network": ROWS[name].network, "inputs": "×".join(map(str, inputs.shape)), "batch": recipe.batch_size}
    return size | as_record(row)


def line(row: dict[str, Any]) -> str:
    """A network in the table of the page."""
    cells = [
        *(row["network"], row["inputs"], str(row["batch"]), f"{row['plain µs per task-step']:,.0f}"),
        *(f"{row['µs per task-step']:,.0f}", f"{row['faster than plain']:.1f}", f"{row['floor µs']:,.1f}"),
        *(f"{row['tasks']} × {row['steps']}", row["executor"]),
    ]
    return f"| {' | '.join(cells)} |"


def table(records: dict[str, dict[str, Any]]) -> str:
    """All files as the page has them."""
    lines = [
        "| device | network | inputs | batch | plain, µs | ours, µs | times faster | floor, µs | tasks × steps | by |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    lines += [f"| {device} {line(row)}" for device, record in records.items() for row in record["rows"].values()]
    return "\n".join(lines)


def with_table(page: str, records: dict[str, dict[str, Any]]) -> str:
    """The page with the table between its marks."""
    marks = r"(<!-- zoo-speed -->\n).*?(\n<!-- /zoo-speed -->)"
    return re.sub(marks, lambda found: found[1] + table(records) + found[2], page, flags=re.DOTALL)


def committed() -> dict[str, dict[str, Any]]:
    """What was measured, by device."""
    found = {device: RESULTS / f"{name}.json" for device, name in FILES.items()}
    return {device: json.loads(path.read_text(encoding="utf-8")) for device, path in found.items() if path.exists()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", choices=[[], *INPUTS], metavar="ROW", help=", ".join(INPUTS))
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--cluster", help="who trains our way, as in learn_many: local:2")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, help="rows are put into this file as they are measured")
    parser.add_argument("--table", action="store_true", help="only put the table into the page")
    asked = parser.parse_args(arguments)
    device = resolve(asked.device)
    os.environ.pop("OMP_WAIT_POLICY", None)  # as supsup sets it for machines that others use too
    record: dict[str, Any] = {"rows": {}}
    if asked.json is not None and asked.json.exists():
        record = json.loads(asked.json.read_text(encoding="utf-8"))
    machine = None if asked.table else measure_machine(device)
    for name in [] if asked.table else asked.rows or NETWORKS_OF_IMAGES:
        try:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
                row = fresh.submit(measured, name, asked.tasks, asked.steps, machine, device, asked.cluster).result()
        except Exception:  # the others are measured all the same
            traceback.print_exc()
            continue
        record["rows"][name] = row | {"made by": provenance(device)}
        print(f"{name}: {line(row)}", flush=True)
        if asked.json is not None:
            asked.json.parent.mkdir(parents=True, exist_ok=True)
            asked.json.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if asked.table:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), committed()), encoding="utf-8")
    else:
        print(table({device.type: record}))


if __name__ == "__main__":
    main()
