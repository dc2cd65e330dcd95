"""How much Online EWC depends on its strength λ, class-incremental on permutations of MNIST.

    python benchmarks/ewc_strength.py --json results/ewc-strength.json

The network, optimiser and grading of row `batche-inference/ewc`, with a fifth of its steps; one seed. The published
figure is of the best λ that its authors found by trying many, on their own network. 7 minutes for each λ on 2 cores.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from supsup import Recipe, data, evaluate, nets
from supsup.baselines import OnlineEWC
from supsup.devices import resolve
from supsup.provenance import provenance


def main() -> None:
    options = parse()
    device = resolve(options.device)
    stream = data.permuted(data.named("mnist", options.data_dir), options.tasks, seed=options.seed)
    recipe = Recipe("adam", 1e-4, steps=options.steps, batch_size=256)
    rows: list[dict[str, Any]] = []
    for strength in options.strengths:
        net = nets.FullyConnected((784, 1000, 1000, 10 * options.tasks))
        model = OnlineEWC(net, options.seed, strength=strength, labels="unshared", recipe=recipe, device=device)
        model.learn_many(stream)
        graded = evaluate(model, stream, "GNu", protocol="strict")
        per_task = {name: round(100 * value, 2) for name, value in graded.per_task.items()}
        rows.append({"λ": strength, "accuracy %": round(100 * graded.average_accuracy, 2), "per task": per_task})
        print(rows[-1], flush=True)
    record = {"tasks": options.tasks, "steps": options.steps, "rows": rows, "made by": provenance(device)}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strengths", type=float, nargs="+", default=[5, 50, 500], help="values of λ")
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--steps", type=int, default=1000, help="of each task; the row has 5,000")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, default=Path("results/ewc-strength.json"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
