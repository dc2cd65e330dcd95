"""Natural images of tasks that a model has not learned: how many it takes for none of its own.

    python -m benchmarks.left_out cifar100-unnamed/scratch --seed 0 --results results --data-dir DATA --out FILE

The models are those that `supsup reproduce cifar100-unnamed` and `tiny-imagenet-unnamed` keep beside their results. The
second half of the tasks is left out of the candidates; the area under the curve is from the shares of known and of
strange test images that are refused at 19 thresholds.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

import supsup
from benchmarks.finding import refused_of
from supsup import SupSup
from supsup.data import Stream
from supsup.nets import ImageNetwork
from supsup.paper.entries import ENTRIES
from supsup.paper.environment import Environment
from supsup.paper.image_experiments import PretrainedUnnamedExperiment, ScratchUnnamedExperiment
from supsup.paper.runs.unnamed import stream_of
from supsup.provenance import provenance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", help="ENTRY/ROW")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--images", type=int, default=200, help="test images of each task; each is looked at 19 times")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    entry, _, name = asked.row.partition("/")
    (row,) = (row for row in ENTRIES[entry].rows if row.name == name)
    assert isinstance(row.experiment, ScratchUnnamedExperiment | PretrainedUnnamedExperiment)
    model = supsup.load(asked.results / entry / f"{name}-seed{asked.seed}.supsup")
    net = model.net.module if isinstance(model.net.module, ImageNetwork) else None
    stream = stream_of(row.experiment.training, asked.seed, Environment(model.device, asked.data_dir), net)
    record = {
        "row": asked.row,
        "seed": asked.seed,
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
