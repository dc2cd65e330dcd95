"""The strength λ of Online EWC on permutations of MNIST, chosen on held-back training images.

    python -m benchmarks ewc_strength --json results/ewc-strength.json

The network, optimiser, steps and grading of row `batche-inference/ewc`, but a tenth of the training images of each task
is not trained on and takes the place of the test images, which are never looked at. Row `ewc-own` has the best λ.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from supsup import data, evaluate, nets
from supsup.data import Source
from supsup.runtime.devices import resolve
from supsup_paper.baselines import OnlineEWC
from supsup_paper.catalogue import recipes
from supsup_paper.provenance import provenance


def main() -> None:
    options = parse()
    device = resolve(options.device)
    source = without_test_images(data.named("mnist", options.data_dir), options.held_back)
    stream = data.permuted(source, options.tasks, seed=options.seed)
    recipe = replace(recipes.CONSOLIDATION, steps=options.steps, batch_size=256)
    record: dict[str, Any] = {
        "tasks": options.tasks,
        "steps": options.steps,
        "seed": options.seed,
        "graded on": f"{len(source.test_images):,} training images held back",
        "rows": [],
    }
    for strength in options.strengths:
        net = nets.FullyConnected((784, 1000, 1000, 10 * options.tasks))
        model = OnlineEWC(net, options.seed, strength=strength, labels="unshared", recipe=recipe, device=device)
        model.learn_many(stream)
        graded = evaluate(model, stream, "GNu", protocol="strict", show_progress=False)
        per_task = {name: round(100 * value, 2) for name, value in graded.per_task.items()}
        row = {"λ": strength, "accuracy %": round(100 * graded.average_accuracy, 2), "per task": per_task}
        record["rows"].append(row)
        print(row["λ"], row["accuracy %"], flush=True)
        record |= {"made by": provenance(device)}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def without_test_images(source: Source, share: float) -> Source:
    """The source with a share of its training images, drawn, in the place of its test images."""
    order = torch.randperm(len(source.train_images), generator=torch.Generator().manual_seed(0))
    held, rest = order[: round(share * len(order))].sort().values, order[round(share * len(order)) :].sort().values
    images, labels = source.train_images, source.train_labels
    return replace(
        source,
        train_images=images[rest],
        train_labels=labels[rest],
        test_images=images[held],
        test_labels=labels[held],
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    strengths = [1, 2, 5, 10, 20, 50, 100, 200, 500]
    parser.add_argument("--strengths", type=float, nargs="+", default=strengths, help="values of λ")
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--steps", type=int, default=5000, help="of each task")
    parser.add_argument("--held-back", type=float, default=0.1, help="the share of the training images")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, default=Path("results/ewc-strength.json"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
