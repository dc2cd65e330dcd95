"""One-Shot over BatchE's rank-one matrices: effect of weight decay and of the initial weights.

    python -m benchmarks batche_inference --json results/batche-inference-sensitivity.json

A few permutations of MNIST, FC 1024-1024 with 500 outputs, W random, 1,000 batches of 128 a task: two minutes a variant
on a core. "task given" hardly moves; "one image" does.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from supsup import data, evaluate, nets
from supsup.data import Stream
from supsup.evaluation.grading import GradingProtocol
from supsup.runtime.devices import resolve
from supsup.training import Recipe
from supsup_paper.baselines import BatchE, TaskInference
from supsup_paper.provenance import provenance

VARIANTS = (
    ("kaiming_normal", 1e-5),
    ("kaiming_normal", 1e-4),  # as published
    ("kaiming_normal", 1e-3),
    ("kaiming_uniform", 1e-4),
)
PROTOCOLS: dict[str, GradingProtocol] = {"one image": "paper", "full batch": "paper-full-batch"}


def main() -> None:
    options = parse()
    device = resolve(options.device)
    stream = data.permuted(data.named("mnist", options.data_dir), options.tasks, seed=0)
    rows = []
    for filling, decay in VARIANTS:
        rows.append(measured(stream, filling, decay, options.steps, device))
        print(rows[-1], flush=True)
    record = {"tasks": options.tasks, "steps": options.steps, "rows": rows, "made by": provenance(device)}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(record, indent=1) + "\n")


def measured(stream: Stream, filling: str, decay: float, steps: int, device: torch.device) -> dict[str, Any]:
    """Accuracy with the task given, and how often the task is inferred right, in %."""
    recipe = Recipe("adam", 1e-2, steps=steps, weight_decay=decay)
    model = BatchE(
        nets.fc_1024(outputs=500),
        base="random",
        filling=filling,
        inference=TaskInference("one-shot", "H"),
        recipe=recipe,
        device=device,
    )
    model.learn_many(stream)
    row: dict[str, Any] = {"filling": filling, "weight decay": decay}
    row["task given, accuracy %"] = percent(evaluate(model, stream, "GG").average_accuracy)
    for name, protocol in PROTOCOLS.items():
        graded = evaluate(model, stream, "GNu", protocol=protocol, stages=[len(stream)])
        row[f"{name}, task right %"] = percent(graded.task_accuracy)
    return row


def percent(share: float) -> float:
    return round(100 * share, 2)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, default=Path("results/batche-inference-sensitivity.json"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
