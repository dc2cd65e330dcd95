"""SplitCIFAR100, task unknown: every inference method on a model of `supsup reproduce`.

    python -m benchmarks split_cifar100 --model results/cifar100-gg/supsup-s16-seed0.supsup --json unknown.json

"task right": the share of test images whose task was inferred right. "class right": the share whose label is right too,
which is accuracy among all classes at once (GNu). The outputs of every mask for every test image are computed once; all
that is tried exhaustively comes from them. Gradients are dearer: --single and --batches say from how many.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from supsup import SupSup, SupSupError, data, load
from supsup.data import Task
from supsup.evaluation.grading import order_of_test
from supsup.inference.objectives import LEVELS
from supsup.model.state import state_of
from supsup.runtime.devices import resolve
from supsup.runtime.progress import bar
from supsup_paper.provenance import provenance

BATCH = 128
GROUPS = (1, 4, 16, 64)  # images that decide together, where every mask is tried
SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "H": lambda outputs: LEVELS["H"](outputs, outputs.shape[-1]),
    "M": lambda outputs: LEVELS["M"](outputs, outputs.shape[-1]),
    "energy": lambda outputs: -outputs.logsumexp(-1),
}


def main() -> None:
    options = parse()
    model = load(options.model, device=resolve(options.device))
    tasks = known_tasks(model, options.data_dir)
    images, outputs, labels = everything(model, tasks)
    owner = torch.arange(len(tasks), device=model.device)[:, None].expand_as(labels)
    given = answers(outputs, owner) == labels
    rows = exhaustive(outputs, labels, owner)
    rows += by_gradient(model, images, outputs, labels, owner, options)
    for row in rows:
        print(" ".join(f"{row[key]!s:>12}" for key in ("method", "objective", "images", "task right", "class right")))
    record = {
        "model": options.model.name,
        "tasks": len(tasks),
        "test images": labels.numel(),
        "task given": percent(given),
        "rows": rows,
        "made by": provenance(model.device),
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(record, indent=1) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a model file of `supsup reproduce cifar100-gg`")
    parser.add_argument("--json", type=Path, required=True, help="where the figures go")
    parser.add_argument("--data-dir", type=Path, help="folder that holds cifar100 (default: $SUPSUP_DATA)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--single", type=int, help="images of each task that decide alone by a gradient (all; CPU: 25)")
    parser.add_argument("--batches", type=int, help=f"batches of {BATCH} of each task that decide (all; CPU: 1)")
    options = parser.parse_args()
    on_cpu = resolve(options.device).type == "cpu"
    if options.single is None:
        options.single = 25 if on_cpu else None
    if options.batches is None:
        options.batches = 1 if on_cpu else None
    return options


def known_tasks(model: SupSup, data_dir: Path | None) -> list[Task]:
    """The tasks that the model learned, in its order."""
    stream = {task.name: task for task in data.split(data.cifar100(data_dir), 5, seed=model.seed)}
    missing = [name for name in model.tasks if name not in stream]
    if missing or not model.tasks:
        raise SupSupError(
            f"the model was not made by `supsup reproduce cifar100-gg` with seed {model.seed}: {missing[:1]}"
        )
    return [stream[name] for name in model.tasks]


@torch.no_grad()
def everything(model: SupSup, tasks: list[Task]) -> tuple[Tensor, Tensor, Tensor]:
    """Test images [k, n, …] of every task in a random order, all masks' outputs [k masks, k, n, s], labels [k, n]."""
    parts = [task.test.batch(order_of_test(task), model.device) for task in tasks]
    images, labels = torch.stack([part[0] for part in parts]), torch.stack([part[1] for part in parts])
    outputs = []
    with bar("every mask on every image", len(tasks)) as advance:
        for task in tasks:
            outputs.append(state_of(model).net.run_many(images.flatten(0, 1), model.subnetwork(task.name)))
            advance(1)
    return images, torch.stack(outputs).unflatten(1, labels.shape), labels


def answers(outputs: Tensor, chosen: Tensor) -> Tensor:
    """The label of each image under the mask chosen for it: [k, n]."""
    s = outputs.shape[-1]
    return outputs.gather(0, chosen[None, ..., None].expand(1, *chosen.shape, s))[0].argmax(-1)


def graded(method: str, objective: str, images: int, chosen: Tensor, cached: tuple[Tensor, ...]) -> dict[str, Any]:
    """A row, for masks chosen for the first images of each task: [k, m] with m ≤ n."""
    m = chosen.shape[1]
    outputs, labels, owner = cached[0][:, :, :m], cached[1][:, :m], cached[2][:, :m]
    task_right = chosen == owner
    return {
        "method": method,
        "objective": objective,
        "images": images,
        "task right": percent(task_right),
        "class right": percent(task_right & (answers(outputs, chosen) == labels)),
        "of test images": chosen.numel(),
    }


def exhaustive(outputs: Tensor, labels: Tensor, owner: Tensor) -> list[dict[str, Any]]:
    """Every mask is tried; that of the lowest mean score over the images that decide together is taken."""
    rows = []
    for name, score in SCORES.items():
        values = score(outputs)  # [k masks, k, n]
        for size in GROUPS:
            pieces = [
                piece.mean(-1).argmin(0)[:, None].expand(-1, piece.shape[-1]) for piece in values.split(size, dim=-1)
            ]
            rows.append(graded("exhaustive", name, size, torch.cat(pieces, -1), (outputs, labels, owner)))
    return rows


def by_gradient(
    model: SupSup, images: Tensor, outputs: Tensor, labels: Tensor, owner: Tensor, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """One-Shot from one image, One-Shot and Binary from a batch, with H."""
    place = {name: index for index, name in enumerate(model.tasks)}
    cached = (outputs, labels, owner)
    alone = images[:, : options.single]
    with bar("one-shot, one image", len(images)) as advance:
        chosen = []
        for task in alone:
            chosen.append([place[name] for name in model.infer_task(task, method="one-shot", objective="H")])
            advance(1)
    rows = [graded("one-shot", "H", 1, torch.tensor(chosen, device=model.device), cached)]
    for method in ("one-shot", "binary"):
        with bar(f"{method}, batches of {BATCH}", len(images)) as advance:
            found = []
            for task in images:
                batches = task.split(BATCH)[: options.batches]
                names = [model.infer_task(x, per="batch", method=method, objective="H") for x in batches]
                found.append([place[name] for name, x in zip(names, batches) for _ in range(len(x))])
                advance(1)
        rows.append(graded(method, "H", BATCH, torch.tensor(found, device=model.device), cached))
    return rows


def percent(right: Tensor) -> float:
    return round(100 * float(right.float().mean()), 2)


if __name__ == "__main__":
    main()
