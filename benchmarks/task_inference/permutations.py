"""Hundreds of permutations of one data set, task unknown, one image at a time: accuracy lost to inference.

    python -m benchmarks permutations [--data fashion-mnist] [--tasks 1000] [--steps 1000] [--images 500] --out FILE

LeNet 300-100 with 100 outputs and the paper's recipe. Photographs (`--data cifar100`) are ten of its classes in grey,
the middle 28 × 28 pixels. Labels right with the task given and with the task found by the default way, by features
alone and by One-Shot with G from the first layer; task right; seconds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.task_inference.digits import percent
from supsup import Inference, Recipe, SupSup, data, nets
from supsup.data import Part, Source, Stream
from supsup_paper.provenance import provenance

WAYS = {
    "auto": Inference("auto"),
    "features": Inference("features"),
    "one-shot, G, first layer": Inference("one-shot", objective="G", layers="first"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--images", type=int, default=500, help="test images of each task")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    stream = data.permuted(small_and_grey(data.named(asked.data, asked.data_dir)), asked.tasks, seed=0)
    model = SupSup(nets.lenet_300_100(outputs=100), recipe=Recipe(steps=asked.steps), device=asked.device)
    begin = time.perf_counter()
    model.learn_many(stream)
    found: dict[str, object] = {
        "data": asked.data,
        "tasks": asked.tasks,
        "steps": asked.steps,
        "test images of each": asked.images,
        "seconds to learn": round(time.perf_counter() - begin, 1),
        "label right, task given %": labels_right(model, stream, asked.images),
        "ways": {name: by_way(model, stream, asked.images, how) for name, how in WAYS.items()},
    }
    text = json.dumps({"figures": found, "made by": provenance(model.device)}, indent=1)
    if asked.out is not None:
        asked.out.write_text(text + "\n")
    print(text)


def small_and_grey(source: Source, side: int = 28, classes: int = 10) -> Source:
    """The source as it is or, where its images are larger or in colour, the middle of some classes in grey."""
    if source.shape == (1, side, side):
        return source

    def half(images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        images, edge = images[labels < classes].float().mean(1, keepdim=True), (images.shape[-1] - side) // 2
        return images[..., edge : edge + side, edge : edge + side].round().byte(), labels[labels < classes]

    train, test = half(source.train_images, source.train_labels), half(source.test_images, source.test_labels)
    pixels = train[0].float()
    gain, offset = 1 / pixels.std(), -pixels.mean() / pixels.std()
    return Source(f"{source.name} in grey", *train, *test, gain.reshape(1), offset.reshape(1), classes)


def labels_right(model: SupSup, stream: Stream, images: int) -> float:
    right = [model.predict(x, task=name).labels == y for name, x, y in shown(model, stream, images)]
    return percent(torch.cat(right))


def by_way(model: SupSup, stream: Stream, images: int, how: Inference) -> dict[str, float]:
    begin, tasks, labels = time.perf_counter(), [], []
    for name, x, y in shown(model, stream, images):
        answer = model.predict(x, inference=how)
        tasks.append(torch.tensor([found == name for found in answer.tasks]))
        labels.append((answer.labels == y).cpu())  # permutations share their labels
    seconds = time.perf_counter() - begin
    return {
        "task right %": percent(torch.cat(tasks)),
        "label right %": percent(torch.cat(labels)),
        "microseconds an image": round(1e6 * seconds / (len(stream) * images), 1),
    }


def shown(model: SupSup, stream: Stream, images: int) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """The name, test images and labels of each task."""
    for task in stream:
        part = some(task.test, images)
        yield task.name, *part.tensors(model.device)


def some(part: Part, images: int) -> Part:
    rows = torch.arange(min(images, len(part))) if part.rows is None else part.rows[:images]
    return replace(part, rows=rows, labels=part.labels[: len(rows)])


if __name__ == "__main__":
    main()
