"""How many masks a Hopfield memory holds: Hebb and Storkey, random and learned masks.

At each number of stored masks: do they come back when 20 % of their bits are flipped, and, with --recover, is the
right one found from test images alone? Tasks are pairs of digits, each pair under a permutation of its own.

python -m benchmarks capacity --recover --json results/hopfield/capacity.json

`python -m benchmarks result_plots` draws it.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from supsup import HopSupSup, UnitRecipe, data, nets
from supsup.data import Part, Task
from supsup.hopfield.learner import learn_in_parallel
from supsup.hopfield.memory import RULES, overfull, overlap, running_mean, settle
from supsup.masks import philox
from supsup.runtime import progress
from supsup.runtime.devices import resolve
from supsup_paper.provenance import provenance
from supsup_paper.runs.hopfield import RIGHT

FLIPPED = 0.2
ASKED = 40  # stored masks that are looked at, the oldest and the newest among them
IMAGES = 12_000  # of a task, at most: as many as a task of SplitMNIST has


def pair_of(task: Task, number: int) -> Task:
    """Two digits of a permuted task, labelled 0 and 1."""
    pair = torch.tensor([2 * number % 10, 2 * number % 10 + 1])

    def half(part: Part) -> Part:
        rows = torch.isin(part.labels, pair).nonzero()[:IMAGES, 0]
        return replace(part, labels=part.labels[rows] - pair[0], rows=rows)

    return Task(f"{task.name}-digits-{pair[0]}-{pair[1]}", half(task.train), half(task.test), 2)


def some(count: int) -> Tensor:
    """At most ASKED places among so many, evenly spread."""
    return torch.linspace(0, count - 1, min(count, ASKED)).round().long()


def stages_up_to(most: int) -> list[int]:
    """Numbers of masks at which to look, each about 1.26 times the last."""
    return sorted({min(most, round(10 ** (step / 10))) for step in range(60)} - {1})


def curve(rule: str, masks: Tensor) -> list[dict[str, Any]]:
    """Store masks [count, d] of ±1 one by one; at each stage, what is stable and what comes back from flipped bits."""
    psi = torch.zeros(masks.shape[1], masks.shape[1], device=masks.device)
    mean = torch.zeros(masks.shape[1], device=masks.device)
    wanted, rows, warned = stages_up_to(len(masks)), [], 0
    for count, z in enumerate(masks, 1):
        psi = RULES[rule](psi, z)
        mean = running_mean(mean, z, count)
        if not warned and overfull(rule, psi, mean, z, count):
            warned = count
        if count in wanted:
            asked = masks[some(count).to(masks.device)]
            noise = philox.uniform(count, [f"flips/{i}" for i in range(len(asked))], masks.shape[1], 1.0, masks.device)
            found = settle(psi, torch.where(noise < 2 * FLIPPED - 1, -asked, asked))
            recovered = ((found != asked).float().mean(-1) < RIGHT).float().mean().item()
            stable = (settle(psi, asked, 1) == asked).all(-1).float().mean().item()
            rows.append({"stored": count, "recovered": recovered, "fixed points": stable, "warned at": warned})
            if recovered < 0.1:
                break
    return rows


def holds(rows: list[dict[str, Any]], key: str = "recovered") -> int:
    """The last stage up to which at least 95 % were recovered at every stage."""
    best = 0
    for row in rows:
        if row[key] < 0.95:
            break
        best = row["stored"]
    return best


def learn(tasks: list[Task], width: int, recipe: UnitRecipe, device: torch.device) -> list[list[Tensor]]:
    """The masks of all tasks on one network, [1, width] for each layer."""
    model = HopSupSup(network(tasks, width), recipe=recipe, device=device)
    masks = []
    with progress.bar("learning", len(tasks)) as advance, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # filling it up is the point
        for task in tasks:
            masks.append(learn_in_parallel([model], task))
            advance(1)
    return masks


def network(tasks: list[Task], width: int) -> nets.HopMLP:
    return nets.HopMLP((tasks[0].train.images[0].numel(), width, width, 2 * len(tasks)))


def recovery_curve(
    rule: str, tasks: list[Task], masks: list[list[Tensor]], width: int, device: torch.device, most: int
) -> list[dict[str, Any]]:
    """At each stage, how often the right mask is found from test images alone."""
    model = HopSupSup(network(tasks, width), rule=rule, device=device)
    rows: list[dict[str, Any]] = []
    stages = [stage for stage in stages_up_to(len(tasks)) if stage % 5 == 0 or stage > 10]
    for count, (task, units) in enumerate(zip(tasks, masks), 1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.store(task.name, task.classes, [unit[0] for unit in units], task.train.shape)
        if count in stages:
            asked = some(count)[:: -(-min(count, ASKED) // most)].tolist()
            row: dict[str, Any] = {"stored": count, "asked": len(asked)}
            for name in ("paper", "best-of"):
                right = 0
                for index in asked:
                    found = model.recover(tasks[index].test.tensors(device)[0], procedure=name)
                    true = torch.cat([unit[0] for unit in masks[index]])
                    right += bool((torch.cat([unit[0] for unit in found.units]) != true).float().mean() < RIGHT)
                row[name] = right / len(asked)
            print(rule, row, flush=True)
            rows.append(row)
            if row["best-of"] < 0.5:
                break
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=2048, help="width of the hidden layers")
    parser.add_argument("--random", type=int, default=800, help="random masks to store, at most")
    parser.add_argument("--learned", type=int, default=300, help="tasks to learn")
    parser.add_argument("--recover", action="store_true", help="also recover masks from images")
    parser.add_argument("--recover-asked", type=int, default=10, help="tasks to recover at each stage")
    parser.add_argument("--recipe-batch", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--data", default="mnist", choices=list(data.SOURCES))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    device, begin = resolve(options.device), time.perf_counter()
    recipe = UnitRecipe(batch_size=options.recipe_batch, epochs=options.epochs)
    stream = data.permuted(data.named(options.data, options.data_dir), options.learned)
    tasks = [pair_of(task, number) for number, task in enumerate(stream)]
    masks = learn(tasks, options.units, recipe, device)
    learning = time.perf_counter() - begin
    sets = {
        f"random masks, density {density}": _random(density, options.random, options.units, device)
        for density in (0.5, 0.35, 0.25)
    }
    for layer in range(2):
        sets[f"learned masks, layer {layer + 1}"] = torch.cat([units[layer] for units in masks]).float() * 2 - 1
    curves = {f"{rule}, {what}": curve(rule, z) for rule in RULES for what, z in sets.items()}
    record: dict[str, Any] = {
        "units": options.units,
        "flipped": FLIPPED,
        "holds": {label: holds(rows) for label, rows in curves.items()},
        "warned at": {label: rows[-1]["warned at"] for label, rows in curves.items()},
        "kept units": {what: (z > 0).float().mean().item() for what, z in sets.items()},
        "overlap": {what: overlap(z.mean(0), len(z)) for what, z in sets.items()},
        "curves": curves,
        "learning seconds": round(learning, 2),
    }
    for label, count in record["holds"].items():
        warned = f"warned at {record['warned at'][label]}" if record["warned at"][label] else "no warning"
        print(f"{label:36} {count:5d} masks, {count / options.units:.3f} a unit, {warned}")
    if options.recover:
        found = {
            rule: recovery_curve(rule, tasks, masks, options.units, device, options.recover_asked) for rule in RULES
        }
        record["from images"] = found
        record["holds from images"] = {rule: holds(rows, "best-of") for rule, rows in found.items()}
    record["seconds in all"] = round(time.perf_counter() - begin, 2)
    record["made by"] = provenance(device)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def _random(density: float, count: int, units: int, device: torch.device) -> Tensor:
    labels = [f"random mask/{number}" for number in range(count)]
    return torch.where(philox.uniform(0, labels, units, 1.0, device) < 2 * density - 1, 1.0, -1.0)


if __name__ == "__main__":
    main()
