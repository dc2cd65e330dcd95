"""Full-scale check: PermutedMNIST, LeNet 300-100 with 500 outputs, thousands of tasks with the task unknown.

python benchmarks/permuted_2500.py --tasks 2500 --json results/permuted-2500.json      (SUPSUP_DATA holds mnist/)
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from supsup import Inference, SupSup, data, evaluate, nets
from supsup.cli.bench import single_images
from supsup.provenance import provenance

PUBLISHED = {
    "H, all layers": {500: 93.49, 1000: 93.47, 1500: 93.46, 2000: 93.45, 2500: 93.45},
    "G, all layers": {500: 93.49, 1000: 93.48, 1500: 93.46, 2000: 93.45, 2500: 93.45},
}
SETTINGS = {
    "H, all layers": Inference(),
    "G, all layers": Inference(objective="G"),
    "H, first layer": Inference(layers="first"),
    "G, first layer": Inference(objective="G", layers="first"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=2500)
    parser.add_argument("--stages", type=int, default=5, help="how many times to grade on the way")
    parser.add_argument("--images", type=int, default=10_000, help="single images from all tasks, each on its own")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    stream = data.permuted(data.mnist(), options.tasks)
    stages = sorted({max(1, round(options.tasks * (i + 1) / options.stages)) for i in range(options.stages)})
    model = SupSup(nets.lenet_300_100(outputs=500))
    SupSup(nets.lenet_300_100(outputs=500)).learn_many(stream[:2], show_progress=False)  # compiles the kernels
    begin = time.perf_counter()
    model.learn_many(stream)
    record: dict[str, Any] = {"tasks": options.tasks, "training seconds": time.perf_counter() - begin}
    images, names = single_images(stream, options.images)
    for label, how in SETTINGS.items():
        model.inference = how
        begin = time.perf_counter()
        right = sum(a == b for a, b in zip(model.infer_task(images), names)) / len(names)
        row: dict[str, Any] = {"single images, task right %": 100 * right, "seconds": time.perf_counter() - begin}
        graded = evaluate(model, stream, "GNu", stages=stages)
        row["paper's protocol, accuracy %"] = {n: 100 * value for n, value in zip(graded.stages, graded.curve)}
        row["paper's protocol, task right %"] = 100 * graded.task_accuracy
        row["published %"] = PUBLISHED.get(label)
        record[label] = row
        print(label, row, flush=True)
    record["task given, accuracy %"] = 100 * evaluate(model, stream, "GG", stages=[len(stream)]).average_accuracy
    record["made by"] = provenance(model.device)
    print(record)
    if options.json:
        options.json.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
