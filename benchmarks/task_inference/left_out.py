"""`unknown=True` on natural images of tasks that the model has not learned: how many are rejected.

    python -m benchmarks left_out cifar100-unnamed/scratch --seed 0 --results results --data-dir DATA --out FILE
    python -m benchmarks left_out cifar100-unnamed/pretrained --learn --size 96 --steps 80 --data-dir DATA --out FILE

The models are those that `supsup reproduce cifar100-unnamed` and `tiny-imagenet-unnamed` keep beside their results, or,
with `--learn`, one that learns the known tasks here, with fewer steps and smaller images if it is told so. The second
half of the tasks is left out of the candidates; the area under the curve is from the shares of known and of strange
test images that are refused at 19 thresholds.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, replace
from pathlib import Path

import torch

import supsup
from benchmarks.task_inference.digits import refused_of
from supsup import SupSup
from supsup.data import Stream
from supsup.runtime.devices import resolve
from supsup_paper.catalogue.entries import ENTRIES
from supsup_paper.catalogue.experiments import PretrainedTraining, PretrainedUnnamedExperiment, ScratchUnnamedExperiment
from supsup_paper.provenance import provenance
from supsup_paper.runs.environment import Environment
from supsup_paper.runs.unnamed import prepared, stream_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", help="ENTRY/ROW")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--learn", action="store_true", help="the known tasks, here, instead of loading a model")
    parser.add_argument("--steps", type=int, help="of each task that is learned here; the row's epochs if not given")
    parser.add_argument("--size", type=int, help="of the images of a pretrained network that learns here")
    parser.add_argument("--images", type=int, default=200, help="test images of each task; each is looked at 5 times")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    entry, _, name = asked.row.partition("/")
    (row,) = (row for row in ENTRIES[entry].rows if row.name == name)
    assert isinstance(row.experiment, ScratchUnnamedExperiment | PretrainedUnnamedExperiment)
    training, begin = row.experiment.training, time.perf_counter()
    if not asked.learn and (asked.steps, asked.size) != (None, None):
        parser.error("--steps and --size are of a model that learns here: give --learn too")
    if asked.steps is not None:
        training = replace(training, epochs=None, steps=asked.steps)
    if asked.size is not None:
        if not isinstance(training, PretrainedTraining):
            parser.error(f"{asked.row} takes images as they are: --size is for a pretrained network")
        training = replace(training, size=asked.size)
    environment = Environment(resolve(), asked.data_dir)
    if asked.learn:
        model, stream = prepared(training, asked.seed, environment)
        model.learn_many(stream[: len(stream) // 2])
    else:
        model = supsup.load(asked.results / entry / f"{name}-seed{asked.seed}.supsup")
        stream = stream_of(training, asked.seed, environment, model)
    seconds = {"seconds of learning": round(time.perf_counter() - begin)} if asked.learn else {}
    record = {
        "row": asked.row,
        "seed": asked.seed,
        "training": asdict(training),
        **seconds,
        **left_out(model, stream, asked.images),
        "made by": provenance(model.device),
    }
    text = json.dumps(record, indent=1)
    if asked.out is not None:
        asked.out.write_text(text + "\n")
    print(text)


def left_out(model: SupSup, stream: Stream, images: int) -> dict[str, float]:
    """In %: the area under the curve, and what is refused where 5 % of a task's own images are."""
    half = len(stream) // 2
    known, strange = (
        torch.cat([task.test.tensors(model.device)[0][:images] for task in part])
        for part in (stream[:half], stream[half:])
    )
    among = [task.name for task in stream[:half]]
    area, of_known, of_strange = refused_of(model, known, strange, among)
    return {
        "tasks known": half,
        "tasks left out": len(stream) - half,
        "test images of each": images,
        "AUROC %": area,
        "refused at 5 %, of known tasks %": of_known,
        "refused at 5 %, of tasks left out %": of_strange,
    }


if __name__ == "__main__":
    main()
