"""Omniglot: 50 alphabets as 50 tasks, task unknown, compared with a nearest neighbour on pixels.

    python -m benchmarks alphabets --data-dir DATA --out results/finding-alphabets.json

28 × 28 pixels from 0 to 1, the same for all alphabets; drawers 1 to 15 to learn from, 16 to 20 to test on. "task
right": the share of test images whose alphabet is found, from 1, 4 and 16 images of it; "class right": whose
character is right too, from one image, with the task unknown. "unknown": images of the last ten alphabets among the
other forty, as in `benchmarks/task_inference/digits.py`.
"""

from __future__ import annotations

import argparse
import io
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from benchmarks.figures import write_figures
from benchmarks.task_inference.digits import WAYS, from_few, percent, refused_of
from supsup import Inference, Recipe, SupSup, nets
from supsup.data import Part, Task

LEFT_OUT = 10  # alphabets


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--steps", type=int, help="of a recipe; left out: the model chooses one for each task")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tasks = alphabets(options.data_dir)
    recipe = None if options.steps is None else Recipe("adam", 1e-3, steps=options.steps, batch_size=64)
    model = SupSup(nets.lenet_300_100(outputs=100), recipe=recipe, inference=Inference("auto"), device="cpu")
    begin = time.perf_counter()
    model.learn_many(tasks)
    seconds = time.perf_counter() - begin
    parts = [task.test.tensors() for task in tasks]
    given = torch.cat([model.predict(x, task=task.name).labels == y for task, (x, y) in zip(tasks, parts)])
    found: dict[str, Any] = {
        "tasks": len(tasks),
        "steps": options.steps,
        "seconds to learn": round(seconds),
        "class right, task given": percent(given),
        "nearest neighbour on pixels": nearest(tasks, parts),
        "ways": {name: from_few(model, tasks, parts, how) for name, how in WAYS.items() if name in options.ways},
        "unknown": left_out(model, tasks, parts),
    }
    write_figures(found, options.out)


def alphabets(folder: Path) -> list[Task]:
    """One alphabet a task."""
    drawn: dict[str, list[tuple[Tensor, str, int]]] = {}
    with zipfile.ZipFile(folder / "omniglot" / "omniglot.zip") as archive:
        for entry in sorted(archive.namelist()):
            alphabet, character, file = entry.split("/")
            picture = Image.open(io.BytesIO(archive.read(entry))).convert("L").resize((28, 28), Image.Resampling.BOX)
            pixels = 1 - torch.from_numpy(np.array(picture)).float() / 255
            drawn.setdefault(alphabet, []).append((pixels[None], character, int(file[5:7])))
    return [alphabet_task(name, drawings) for name, drawings in drawn.items()]


def alphabet_task(name: str, drawings: list[tuple[Tensor, str, int]]) -> Task:
    characters = sorted({character for _, character, _ in drawings})
    x, y = (
        torch.stack([pixels for pixels, _, _ in drawings]),
        torch.tensor([characters.index(character) for _, character, _ in drawings]),
    )
    learned = torch.tensor([drawer <= 15 for _, _, drawer in drawings])
    return Task(name, Part(x[learned], y[learned]), Part(x[~learned], y[~learned]), len(characters))


def nearest(tasks: list[Task], parts: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """The task and the class of the training image that is nearest, all of which would have to be kept."""
    learned = [task.train.tensors() for task in tasks]
    x, labels = (torch.cat(values) for values in zip(*learned))
    owner = torch.cat([torch.full((len(y),), number) for number, (_, y) in enumerate(learned)])
    alike = [torch.cdist(some.flatten(1), x.flatten(1)).argmin(1) for some, _ in parts]
    task_right = [owner[rows] == number for number, rows in enumerate(alike)]
    both = [right & (labels[rows] == y) for right, rows, (_, y) in zip(task_right, alike, parts)]
    return {"task right": percent(torch.cat(task_right)), "class right": percent(torch.cat(both))}


def left_out(model: SupSup, tasks: list[Task], parts: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
    among = [task.name for task in tasks[:-LEFT_OUT]]
    known, strange = (torch.cat([x for x, _ in some])[::4] for some in (parts[:-LEFT_OUT], parts[-LEFT_OUT:]))
    area, of_known, of_strange = refused_of(model, known, strange, among)
    return {
        "AUROC": area,
        "refused at 5 %, of known tasks": of_known,
        "refused at 5 %, of unknown ones": of_strange,
    }


if __name__ == "__main__":
    main()
