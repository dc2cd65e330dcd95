"""How often each method finds the task of a single image: split digits and permutations of MNIST.

    python -m benchmarks digits --data-dir DATA --out results/finding.json

LeNet 300-100 with 100 outputs, recipes chosen by the model. "task right": the share of test images whose task is found;
"class right": whose label is right too; "refused": the share of test images of known tasks that `unknown=True` refuses;
"AUROC": the area under the shares refused of a task left out against those of the others, at 19 thresholds, in %.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.figures import write_figures
from supsup import Inference, SupSup, data, nets
from supsup.data import Task

WAYS = {
    "auto": Inference("auto"),
    "features": Inference("features"),
    "every mask, energy": Inference("exhaustive", objective="energy"),
    "every mask, mixture": Inference("exhaustive", objective="mixture"),
    "every mask, H": Inference("exhaustive"),
    "one-shot, H": Inference("one-shot"),
}
SHARES = [number / 20 for number in range(1, 20)]
TOGETHER = (4, 16)  # images of one task that are asked about together


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--images", type=int, default=1000, help="test images of each task")
    parser.add_argument("--permutations", type=int, default=10)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    source = data.named("mnist", options.data_dir)
    streams = {"split digits": data.split(source, 2)}
    if options.permutations:
        streams["permutations"] = data.permuted(source, options.permutations)
    found: dict[str, Any] = {}
    for name, stream in streams.items():
        tasks = list(stream)
        model = SupSup(nets.lenet_300_100(outputs=100), device="cpu")
        model.learn_many(tasks)
        found[name] = {"tasks": len(tasks), "ways": by_ways(model, tasks, options.images)}
        if name == "split digits":
            found[name] |= {"unknown": left_out(model, tasks, options.images)}
    write_figures(found, options.out)


def by_ways(model: SupSup, tasks: list[Task], images: int) -> dict[str, dict[str, float]]:
    parts = [task.test.batch(torch.arange(min(images, len(task.test)))) for task in tasks]
    x, y = (torch.cat(values) for values in zip(*parts))
    names = [task.name for task, (some, _) in zip(tasks, parts) for _ in range(len(some))]
    rows = {}
    for way, how in WAYS.items():
        begin = time.perf_counter()
        answer = model.predict(x, inference=how)
        seconds = time.perf_counter() - begin
        right = torch.tensor([one == other for one, other in zip(answer.tasks, names)])
        rows[way] = {
            "task right": percent(right),
            "class right": percent(right & (answer.labels == y)),
            "microseconds an image": round(1e6 * seconds / len(x)),
        }
    refused = model.predict(x, unknown=True).unknown
    assert refused is not None
    return rows | {"refused": {"of 5 %": percent(refused)}}


def from_few(
    model: SupSup, tasks: Sequence[Task], parts: Sequence[tuple[Tensor, Tensor]], how: Inference
) -> dict[str, float]:
    """From one image of each part, and the task from several of its images."""
    begin = time.perf_counter()
    answers = [model.predict(x, inference=how) for x, _ in parts]
    images = sum(len(x) for x, _ in parts)
    row = {"microseconds an image": round(1e6 * (time.perf_counter() - begin) / images)}
    right = [
        torch.tensor([found == task.name for found in answer.tasks])
        for task, answer in zip(tasks, answers, strict=True)
    ]
    labels = [answer.labels == y for answer, (_, y) in zip(answers, parts, strict=True)]
    both = [one & other for one, other in zip(right, labels, strict=True)]
    figures = {name: percent(torch.cat(each)) for name, each in (("task right", right), ("class right", both))}
    figures["label right, whatever the task"] = percent(torch.cat(labels))
    model.inference = how
    for count in TOGETHER:
        hits = []
        for task, (x, _) in zip(tasks, parts, strict=True):
            order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[: len(x) // count * count]
            hits += [name == task.name for name in model.infer_batches(x[order].unflatten(0, (-1, count)))]
        figures[f"task right from {count}"] = percent(torch.tensor(hits))
    return figures | row


def left_out(model: SupSup, tasks: list[Task], images: int) -> dict[str, dict[str, float]]:
    """Images of one task among the others: a share is refused of theirs and of its own, at each threshold."""
    rows = {}
    for out in tasks:
        others = [task for task in tasks if task is not out]
        known = torch.cat([task.test.batch(torch.arange(images // len(others)))[0] for task in others])
        strange = out.test.batch(torch.arange(min(images, len(out.test))))[0]
        area, _, refused = refused_of(model, known, strange, [task.name for task in others])
        rows[out.name] = {"AUROC": area, "refused at 5 %": refused}
    return rows


def refused_of(model: SupSup, known: Tensor, strange: Tensor, among: list[str]) -> tuple[float, float, float]:
    """In %: the area under the curve, and how many known and strange images are refused at 5 %."""
    levels = [refused_from(model, x, among) for x in (known, strange)]
    pairs = [[float((level <= position).float().mean()) for level in levels] for position in range(len(SHARES))]
    points = torch.tensor([[0.0, 0.0], *pairs, [1.0, 1.0]])
    area = float(torch.trapezoid(points[:, 1], points[:, 0]))
    of_known, of_strange = pairs[0]
    return round(100 * area, 1), round(100 * of_known, 1), round(100 * of_strange, 1)


def refused_from(model: SupSup, x: Tensor, among: list[str]) -> Tensor:
    """The position of the first of `SHARES` at which each image is refused, or their number where none refuses it.

    Who is refused at one share is refused at all larger ones, so that few have to be asked about.
    """
    low, high = torch.zeros(len(x), dtype=torch.long), torch.full((len(x),), len(SHARES))
    how = Inference("features")
    while (open_ := low < high).any():
        middle = (low + high) // 2
        for position in middle[open_].unique().tolist():
            rows = (open_ & (middle == position)).nonzero().flatten()
            asked = x[rows.to(x.device)]
            unknown = model.predict(asked, among=among, inference=how, unknown=SHARES[position]).unknown
            assert unknown is not None
            refused = unknown.cpu()
            high[rows[refused]] = position
            low[rows[~refused]] = position + 1
    return low


def percent(right: Tensor) -> float:
    return round(100 * float(right.float().mean()), 2)


if __name__ == "__main__":
    main()
