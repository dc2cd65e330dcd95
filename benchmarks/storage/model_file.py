"""A model file of 2,500 LeNet 300-100 tasks: its size, and the time until it answers.

    python -m benchmarks model_file [TASKS]

Random masks of density one half, which is what threshold masks have; writes results/model-file.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import supsup
from supsup import Inference, SupSup, nets
from supsup.file.modelfile import ModelFile
from supsup.file.task_record import LearnedTask
from supsup.model.state import state_of
from supsup_paper.provenance import provenance

AT_ONCE = 256


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    tasks = int(sys.argv[1]) if len(sys.argv) > 1 else 2500
    model = SupSup(nets.lenet_300_100(outputs=500), inference=Inference(), device="cpu")
    chance = torch.Generator().manual_seed(0)
    length = len(
        state_of(model).bank.pack({name: torch.zeros(shape) for name, shape in state_of(model).net.shapes.items()})
    )
    for start in range(0, tasks, AT_ONCE):
        names = [f"permutation-{number}" for number in range(start, min(start + AT_ONCE, tasks))]
        packed = torch.randint(256, (length, len(names)), dtype=torch.uint8, generator=chance)
        state_of(model).add([LearnedTask(name, 10) for name in names], packed, {}, (1, 28, 28))
    images = torch.randn(8, 1, 28, 28, generator=chance)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.supsup"
        seconds = {"save": timed(lambda: model.save(path))}
        seconds["read and check every mask, no bank"] = timed(lambda: read(path))
        begin = time.perf_counter()
        again = supsup.load(path, device="cpu")
        seconds["load"] = time.perf_counter() - begin
        again.infer_task(images[:1])
        seconds["load and first answer"] = time.perf_counter() - begin
        size = path.stat().st_size
    assert again.tasks == model.tasks
    assert torch.equal(state_of(again).bank.packed(tasks - 1), state_of(model).bank.packed(tasks - 1))
    bits = tasks * length
    record = {
        "network": "lenet_300_100(outputs=500)",
        "tasks": tasks,
        "file_bytes": size,
        "mask_bytes": bits,
        "file_over_masks": round(size / bits, 5),
        "bank_bytes": state_of(again).bank.memory,
        "bank_over_masks": round(state_of(again).bank.memory / bits, 4),
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
        "made by": provenance(torch.device("cpu")),
    }
    results = Path(__file__).parents[2] / "results"
    results.mkdir(exist_ok=True)
    (results / "model-file.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


def read(path: Path) -> None:
    with ModelFile(path) as file:
        for _ in map(file.decoded, file.records()):
            pass


def timed(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
