"""How task inference varies with the frozen network drawn and with the tasks learned.

    python -m benchmarks frozen_network --json results/frozen-network.json

FC 1024-1024 with few outputs, where One-Shot has most to lose. Every frozen network (its seed) learns every stream of
permutations of MNIST (its seed); the share of test images whose task is inferred right, each on its own, with H and G,
from the gradients of all layers and of the first alone. Two minutes a pair on 2 cores.
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path
from typing import Any

from supsup import Recipe, SupSup, data, nets
from supsup.data import Stream
from supsup.inference.methods import Inference
from supsup.runtime.devices import resolve
from supsup_paper.provenance import provenance

EVERY = 10  # of the test images, to save time


def main() -> None:
    options = parse()
    device = resolve(options.device)
    source = data.named("mnist", options.data_dir)
    rows = []
    for number in options.streams:
        stream = data.permuted(source, options.tasks, seed=number)
        for seed in options.networks:
            net = nets.fc_1024(outputs=options.outputs)
            model = SupSup(net, seed, recipe=Recipe(steps=options.steps), inference=Inference(), device=device)
            model.learn_many(stream)
            rows.append({"stream": number, "network": seed} | inferred(model, stream))
            print(rows[-1], flush=True)
    record = {"tasks": options.tasks, "outputs": options.outputs, "steps": options.steps, "rows": rows}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(record | {"made by": provenance(device)}, indent=1) + "\n")


def inferred(model: SupSup, stream: Stream) -> dict[str, Any]:
    """The share of images whose task is found, in %, by objective and layers."""
    found: dict[str, Any] = {}
    for objective, layers in product(("H", "G"), ("all", "first")):
        model.inference = Inference("one-shot", objective, layers=layers)
        shares = []
        for task in stream:
            names = model.infer_task(task.test.tensors()[0][::EVERY])
            shares.append(sum(name == task.name for name in names) / len(names))
        found[f"{objective}, {layers}, task right %"] = round(100 * sum(shares) / len(shares), 2)
    return found


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, nargs="+", default=[0, 1, 2], help="seeds of frozen networks")
    parser.add_argument("--streams", type=int, nargs="+", default=[0, 2], help="seeds of permutations")
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--outputs", type=int, default=25)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, default=Path("results/frozen-network.json"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
