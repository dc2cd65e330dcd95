"""Images a second when training ResNet-50's masks from JPEG files, and the hours for `imagenet-gg`.

    PYTHONPATH=src python -m benchmarks imagenet_rate [--size 224] [--batch 256] [--out FILE]

Pictures are made up: smooth colours with noise, as large as ImageNet's are on average. They are read, decoded, cropped
and learned as `supsup reproduce imagenet-gg` does it; beside that, files that are only decoded, and the same training
with pictures that are in memory already.
"""

from __future__ import annotations

import json
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from PIL import Image

from supsup import SupSup, data, nets
from supsup.data import Task
from supsup.data.decode import decode_image
from supsup.data.folder import StreamedPart
from supsup.inference.methods import Inference
from supsup.runtime.devices import resolve
from supsup.training import SPLIT_IMAGENET
from supsup_paper.bench.measurement import once
from supsup_paper.provenance import provenance

ROOT = Path(__file__).resolve().parents[2]
CLASSES = 10  # of a task
IMAGES = 1_281_167 * 100  # of ImageNet in 100 epochs


def picture(path: Path, width: int = 500, height: int = 375) -> None:
    """Write a picture whose bytes are about those of a photograph."""
    chance = np.random.default_rng(int(path.stem))
    coarse = Image.fromarray(chance.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float32)
    noisy = smooth + chance.normal(0, 12, smooth.shape)
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=90)


def write_pictures(folder: Path, count: int) -> float:
    """Training pictures of ten classes and a test picture of each; their mean size in bytes."""
    paths = []
    for label in range(CLASSES):
        for half, many in (("train", count // CLASSES), ("val", 1)):
            place = folder / half / f"n{label}"
            place.mkdir(parents=True)
            paths += [place / f"{label * count + number}.JPEG" for number in range(many)]
    with ProcessPoolExecutor() as pool:
        list(pool.map(picture, paths, chunksize=16))
    return sum(path.stat().st_size for path in paths) / len(paths)


def learning_rate(task: Task, batch: int, steps: int, device: torch.device) -> float:
    """Images a second: what the later of so many steps take, so that starting counts for nothing."""

    def learn(count: int) -> None:
        recipe = replace(SPLIT_IMAGENET, epochs=None, steps=count, batch_size=batch)
        model = SupSup(nets.resnet50(CLASSES), recipe=recipe, inference=Inference("one-shot"), device=device)
        model.learn_many([task], show_progress=False)

    learn(2)
    few, many = (once(partial(learn, count), device) for count in (steps // 4, steps))
    if many <= few:
        raise SystemExit("this machine is too busy to tell steps from their start; give more --steps")
    return batch * (steps - steps // 4) / (many - few)


def decoding_rate(task: Task, batch: int, steps: int, device: torch.device) -> float:
    """Images a second that are read, decoded and cropped for training, and nothing else."""
    part = task.train
    order = torch.randint(len(part), (steps + 2, batch))
    batches = iter(part.on(device).training_batches(order, 0, task.name))
    next(batches), next(batches)

    def rest() -> None:
        for _ in batches:
            pass

    return batch * steps / once(rest, device)


def one_core(task: Task, count: int) -> float:
    """Images a second that one core decodes and crops when nothing else is to be done: what all of them could reach."""
    part = task.train
    assert isinstance(part, StreamedPart)
    assert part.files.crop is not None
    boxes = part.files.crop.boxes(0, task.name, 0, part.files.sizes[:count]).tolist()
    images = list(zip(part.files.paths, boxes))
    decode_image(images[0][0], part.files.size)

    def each() -> None:
        for path, (left, top, width, height, mirrored) in images:
            decode_image(path, part.files.size, (left, top, width, height, mirrored))

    return len(images) / once(each, torch.device("cpu"))


def main(
    size: Annotated[int, typer.Option(help="Side of the images that are learned.", min=32)] = 224,
    batch: Annotated[int, typer.Option(help="Images in a batch.", min=1)] = 256,
    count: Annotated[int, typer.Option(help="Pictures to write.", min=20)] = 2000,
    steps: Annotated[int, typer.Option(help="Batches to learn.", min=4)] = 40,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[Path, typer.Option(help="Where the figures go.")] = ROOT / "results/bench/imagenet-rate-h200.json",
) -> None:
    chosen = resolve(device)
    with tempfile.TemporaryDirectory() as folder:
        mean = write_pictures(Path(folder), count)
        read = {}
        for streamed in (True, False):
            source = data.image_folder(folder, size=size, normalisation="imagenet", stream=streamed)
            read[streamed] = data.split(source, CLASSES)[0]
        parts = {
            "from files": partial(learning_rate, read[True]),
            "files only decoded": partial(decoding_rate, read[True]),
            "from memory": partial(learning_rate, read[False]),
        }
        rates: dict[str, float] = {}
        hours: dict[str, float] = {}
        record = {
            "images": f"{count} JPEG files of {mean / 1000:.0f} kB, 500×375",
            "size": size,
            "batch": batch,
            "cores": len(os.sched_getaffinity(0)),
            "images per second that one core decodes": one_core(read[True], 400),
            "images per second": rates,
            "hours for one budget of imagenet-gg": hours,
            "made by": provenance(chosen),
        }
        out.parent.mkdir(parents=True, exist_ok=True)
        for name, measure in parts.items():
            rates[name] = measure(batch, steps, chosen)
            hours[name] = IMAGES / rates[name] / 3600
            out.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
            print(
                f"{name}: {rates[name]:,.0f} images/s, {hours[name]:,.1f} hours for one budget of imagenet-gg",
                flush=True,
            )


if __name__ == "__main__":
    typer.run(main)
