"""SplitCIFAR100 with the task given, as in the paper: 20 tasks of 5 classes, 250 epochs each, six budgets, two starts.

    python benchmarks/split_cifar100.py --out results/cifar100            # twelve rows on one GPU
    python benchmarks/split_cifar100.py --out results/cifar100 --bytes    # adds the bytes of the models it saved

Every row is written as soon as it is finished and is not run again. Rows without transfer are trained one after the
other, 20 tasks at once; with transfer a task begins where the earlier ones ended, so the six budgets go side by side.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from supsup import SupSup, codec, data, evaluate, nets
from supsup.bank import pack_columns
from supsup.data import Stream, Task
from supsup.devices import resolve
from supsup.modelfile import ModelFile
from supsup.progress import bar
from supsup.provenance import provenance
from supsup.training import SPLIT_CIFAR100, Trained
from supsup.training.recipe import Recipe

PUBLISHED = {
    "none": {1: 77.56, 2: 83.62, 4: 86.45, 8: 88.09, 16: 89.06, 32: 89.57},
    "masks": {1: 79.53, 2: 85.33, 4: 88.52, 8: 90.12, 16: 91.31, 32: 91.66},
}
PUBLISHED_BYTES = {1: 408_432, 2: 508_432, 4: 695_592, 8: 1_035_792, 16: 1_630_032, 32: 2_487_472}


def main() -> None:
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.bytes:
        add_bytes(options.out)
        return
    device = resolve(options.device)
    stream = data.split(data.cifar100(options.data_dir), 5, seed=options.seed, tasks=options.tasks)
    recipe = replace(SPLIT_CIFAR100, epochs=options.epochs)
    for transfer in options.transfer.split(","):
        budgets = [s for s in map(int, options.budgets.split(",")) if not path_of(options, s, transfer).exists()]
        if transfer == "none":
            for budget in budgets:
                model = SupSup(nets.gem_resnet18(5), options.seed, recipe=replace(recipe, budget=budget), device=device)
                begin = time.perf_counter()
                model.learn_many(stream)
                write(options, budget, transfer, model, stream, time.perf_counter() - begin, 1)
        elif budgets:
            side_by_side(options, budgets, transfer, recipe, stream, device)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for rows (JSON) and models")
    parser.add_argument("--data-dir", type=Path, help="folder that holds cifar100 (default: $SUPSUP_DATA)")
    parser.add_argument("--budgets", default="1,2,4,8,16,32", help="the paper's s, separated by commas")
    parser.add_argument("--transfer", default="none,masks", help="none, masks and scores, separated by commas")
    parser.add_argument("--epochs", type=int, default=250)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the weights and of the partition into tasks")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--bytes", action="store_true", help="measure the models saved in OUT")
    return parser.parse_args()


def path_of(options: argparse.Namespace, budget: int, transfer: str) -> Path:
    folder: Path = options.out
    return folder / f"s{budget}-{'random' if transfer == 'none' else transfer}-seed{options.seed}.json"


def side_by_side(
    options: argparse.Namespace, budgets: list[int], transfer: str, recipe: Recipe, stream: Stream, device: torch.device
) -> None:
    """One model for each budget; task after task, all of them at once."""
    models = [
        SupSup(
            nets.gem_resnet18(5),
            options.seed,
            recipe=replace(recipe, budget=budget, transfer=transfer),  # type: ignore[arg-type]
            device=device,
        )
        for budget in budgets
    ]
    begin = time.perf_counter()
    with bar(f"transfer of {transfer}", len(stream) * len(models)) as advance:
        for task in stream:
            learn_together(models, task, advance)
    seconds = time.perf_counter() - begin
    for budget, model in zip(budgets, models):
        write(options, budget, transfer, model, stream, seconds, len(models))


def learn_together(models: list[SupSup], task: Task, advance: Any) -> None:
    """One task in several models that differ in the weights kept; on a GPU in one go."""
    if models[0].device.type != "cuda":
        for model in models:
            model.learn(task)
        return
    from supsup.training import residual

    jobs = [residual.Job(task, model.recipe, model.first_scores(task.name)) for model in models]
    trainer = residual.train_together(models[0].net, jobs, advance)
    masks, statistics, scores = trainer.masks(), trainer.statistics(), trainer.final_scores()
    for i, model in enumerate(models):
        rows = [{name: value[i : i + 1] for name, value in found.items()} for found in (masks, statistics, scores)]
        model.take_in(Trained([task], pack_columns(rows[0]), rows[1], rows[2]))


def write(
    options: argparse.Namespace,
    budget: int,
    transfer: str,
    model: SupSup,
    stream: Stream,
    seconds: float,
    together: int,
) -> None:
    graded = evaluate(model, stream, "GG")
    path = path_of(options, budget, transfer)
    model.save(path.with_suffix(".supsup"))
    row = {
        "budget": budget,
        "transfer": transfer,
        "seed": options.seed,
        "accuracy": round(100 * graded.average_accuracy, 3),
        "published": PUBLISHED["none" if transfer == "none" else "masks"].get(budget),
        "per_task": {name: round(100 * value, 2) for name, value in graded.per_task.items()},
        "tasks": len(stream),
        "recipe": asdict(model.recipe),
        "learning seconds": round(seconds, 2),
        "rows learned side by side in them": together,
        "published bytes": PUBLISHED_BYTES.get(budget),
        "made by": provenance(model.device),
    }
    path.write_text(json.dumps(row, indent=1) + "\n")
    print(
        f"s = {budget:2}, {transfer}: {row['accuracy']:.2f} (published {row['published']}), {seconds:.1f} s", flush=True
    )


def add_bytes(folder: Path) -> None:
    """The bytes of masks and statistics of the saved models, ours and by the paper's count, into their rows."""
    for path in sorted(folder.glob("s*-seed*.json")):
        if not path.with_suffix(".supsup").exists():
            continue
        with ModelFile(path.with_suffix(".supsup"), write=True) as model:
            model.compact()
        with ModelFile(path.with_suffix(".supsup")) as model:
            header, masks, paper = model.header, 0, 0.0
            rows = list(model.rows())
            for row in rows:
                packed = row.decoded(header, model.reference).packed
                masks += len(codec.encode(packed, header.sizes)[1])
                kept = codec.kept(packed, header.sizes)
                paper += codec.paper_bytes(kept, list(header.shapes.values()), channels(header))
        record = json.loads(path.read_text())
        record["bytes"] = {
            "masks": masks,
            "statistics": len(rows) * 8 * channels(header),
            "file": path.with_suffix(".supsup").stat().st_size,
            "paper's count": round(paper),
        }
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(path.name, record["bytes"])


def channels(header: Any) -> int:
    """Normalised channels: every convolution's outputs."""
    return sum(shape[0] for shape in header.shapes.values() if len(shape) == 4)


if __name__ == "__main__":
    main()
