"""Training without task boundaries: how reliably new tasks are detected, and what a mistake costs.

    python -m benchmarks unannounced_rule --json results/unannounced-rule.json

LeNet 300-100 with 500 outputs learns permutations of MNIST. Then −∂H/∂α of batches of 128 images: from tasks that are
new, from tasks whose masks are finished, and from a task that is being learned, among 5 to 300 masks. For each k · max
ν, which the paper's rule compares with 1 + 2⁻³, and how many standard deviations the largest lies above the mean of the
others. At last one mask learns further tasks, one after the other, as if it had been taken for theirs. A quarter of an
hour on 2 cores.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from supsup import Inference, Recipe, SupSup, data, nets
from supsup.data import Stream, Task
from supsup.inference.gradient import Goal, alpha_gradient
from supsup.inference.new_task import deviations_above
from supsup.masks.bank import Bank
from supsup.masks.scores import initial_scores, scores_of
from supsup.model.state import state_of
from supsup.runtime import progress
from supsup.runtime.devices import resolve
from supsup.training.executors import many_positions
from supsup.training.stepwise import step_trainer
from supsup_paper.provenance import provenance

BATCH, EVERY, STEPS = 128, 100, 1000
NEW, KNOWN, LEARNED, SHARED, WATCHED = 100, 60, 4, 6, 20  # tasks of each kind
MASKS = (5, 20, 60, 150, 300)


def main() -> None:
    options = parse()
    device, most = resolve(options.device), options.tasks
    stream = data.permuted(data.named("mnist", options.data_dir), most + NEW, seed=options.seed)
    model = SupSup(
        nets.lenet_300_100(outputs=500), options.seed, recipe=Recipe(steps=STEPS), inference=Inference(), device=device
    )
    model.learn_many(stream[:most])
    masks = [k for k in MASKS if k < most] + [most]
    rows = []
    with progress.bar("numbers of masks", len(masks)) as advance:
        for k in masks:
            rows.append({"masks": k} | told_apart(model, stream, k))
            print(rows[-1], flush=True)
            advance(1)
    shared = shared_mask(model, stream, most // 2)
    print(shared)
    known = [*stream[: most // 2], *stream[most // 2 + 1 : most]][:KNOWN]
    with_it = right(model, known)
    model.forget(stream[most // 2].name)
    record: dict[str, Any] = {"steps": STEPS, "images": BATCH, "rows": rows, "one mask, several tasks": shared}
    record["task right % with that mask, and without"] = [with_it, right(model, known)]
    print(record["task right % with that mask, and without"])
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(record | {"made by": provenance(device)}, indent=1) + "\n")


def told_apart(model: SupSup, stream: Stream, k: int) -> dict[str, Any]:
    """The two figures, with the first k masks, for new, known and half-learned tasks."""
    bank, known = state_of(model).bank.subset(range(k)), range(0, k, -(-k // KNOWN))
    return {
        "new": spread(margin(gradient(model, bank, task)) for task in stream[-NEW:]),
        "known": spread(margin(gradient(model, bank, stream[i]), i) for i in known),
        "being learned, 100 batches": spread(half_learned(model, task, k, EVERY) for task in stream[-LEARNED:]),
        "being learned, 1000 batches": spread(half_learned(model, task, k, STEPS) for task in stream[-LEARNED:]),
    }


def half_learned(model: SupSup, task: Task, k: int, batches: int) -> tuple[float, float]:
    """A mask after so many batches, beside the first k."""
    bank, trainer = (
        state_of(model).bank.subset(range(k)),
        step_trainer(state_of(model).net, model.recipe.stepwise),
    )
    trainer.start(initial_scores(model.seed, task.name, state_of(model).net.shapes, model.device))
    trainer.run(task.train, order(model, task)[:batches])
    bank.add(trainer.mask())
    return margin(gradient(model, bank, task), k)


def shared_mask(model: SupSup, stream: Stream, index: int) -> list[dict[str, Any]]:
    """A mask goes on with tasks that are not its own; what other new tasks then make of it."""
    bank, trainer, rows = state_of(model).bank, step_trainer(state_of(model).net, model.recipe.stepwise), []
    trainer.start(scores_of(bank.mask(index)))
    watched = stream[-NEW:][-WATCHED:]
    for tasks in range(1, SHARED + 2):
        values = [gradient(model, bank, task) for task in watched]
        found = spread(margin(value, index) for value in values)
        drawn = sum(int(value.argmax()) == index for value in values)
        rows.append({"tasks in it": tasks, "largest for other tasks": f"{drawn} of {WATCHED}"} | found)
        if tasks <= SHARED:
            other = stream[-NEW:][tasks]
            trainer.run(other.train, order(model, other))
            bank.prepare_replace(index, trainer.mask())()
    return rows


def right(model: SupSup, tasks: Sequence[Task]) -> float:
    """How often the task of a batch is inferred right, in %."""
    names = [model.infer_task(task.test.batch(torch.arange(BATCH), model.device)[0], per="batch") for task in tasks]
    return round(100 * sum(name == task.name for name, task in zip(names, tasks)) / len(tasks), 2)


def order(model: SupSup, task: Task) -> Tensor:
    """Positions of the task's batches."""
    return many_positions(model.seed, [task.name], len(task.train), STEPS * BATCH, model.device)[0].view(STEPS, BATCH)


def gradient(model: SupSup, bank: Bank, task: Task) -> Tensor:
    """−∂H/∂α for one batch of a task, the first that is drawn of a shuffled epoch nobody has learned from: [k]."""
    positions = many_positions(model.seed + 1, [task.name], len(task.train), BATCH, model.device)[0]
    images = task.train.on(model.device).batch(positions)[0]
    return alpha_gradient(
        state_of(model).net, bank, images[None], None, Goal("H", 0), list(state_of(model).net.weights)
    )[0]


def margin(values: Tensor, index: int | None = None) -> tuple[float, float]:
    """k · ν of one mask, or of the largest, and its distance from the mean of the others in their deviations."""
    index = int(values.argmax()) if index is None else index
    return float(len(values) * values.softmax(0)[index]), deviations_above(values, index)


def spread(found: Iterable[tuple[float, float]]) -> dict[str, list[float]]:
    """Smallest, mean and largest of both figures."""
    ratios, deviations = (torch.tensor(column) for column in zip(*found))
    return {
        name: [round(float(value), 3) for value in (column.min(), column.mean(), column.max())]
        for name, column in {"k·ν": ratios, "deviations": deviations}.items()
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=300, help="masks at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, default=Path("results/unannounced-rule.json"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
