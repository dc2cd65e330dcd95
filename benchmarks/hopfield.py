"""HopSupSup on SplitMNIST as in the paper: 20 seeds, one epoch a task, the task unknown, masks recovered from Ψ and μ.

SUPSUP_DATA holds mnist/:
python benchmarks/hopfield.py --json results/hopfield/split-mnist.json --out results/hopfield
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from supsup import HopSupSup, Recovery, data, nets
from supsup.devices import resolve
from supsup.hop_experiment import Experiment, run
from supsup.provenance import provenance
from supsup.report.hop_plots import recovery_plot, seeds_plot

PUBLISHED = 97.43
PROCEDURES = ("paper", "best-of")


def record(experiment: Experiment, models: list[HopSupSup], seconds: float) -> dict[str, Any]:
    """All figures as plain values."""
    first = models[0]
    return {
        "seeds": experiment.seeds,
        "tasks": experiment.tasks,
        "published %": PUBLISHED,
        "masks as learned": experiment.own.summary(),
        **{name: outcome.summary() for name, outcome in experiment.recovered.items()},
        "starts of best-of": first.recovery.starts,
        "learning seconds": round(experiment.learning_seconds, 3),
        "seconds in all": round(seconds, 3),
        "bytes of Ψ and μ after each task": experiment.memory_bytes,
        "made by": provenance(first.device),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="how many seeds")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--starts", type=int, default=Recovery().starts)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--out", type=Path, help="folder for the plots")
    options = parser.parse_args()

    stream = data.split(data.mnist(options.data_dir), 2)
    how, device = Recovery(starts=options.starts), resolve(options.device)
    begin = time.perf_counter()
    models = [
        HopSupSup(nets.hop_mlp(outputs=10), options.first_seed + index, recovery=how, device=device)
        for index in range(options.seeds)
    ]
    experiment = run(models, stream, PROCEDURES)
    figures = record(experiment, models, time.perf_counter() - begin)
    for name in ("masks as learned", *PROCEDURES):
        line = figures[name]
        found = f"{line['right masks']} of {line['of']} masks right ({line['exactly right']} exactly)"
        print(f"{name:18} {line['accuracy %']:.2f} %   {found}   {line['seconds']:.1f} s")
    print(f"learning {figures['learning seconds']:.1f} s, in all {figures['seconds in all']:.1f} s")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        for name in PROCEDURES:
            title = f"Hopfield recovery on SplitMNIST, procedure {name}, seed {options.first_seed}"
            recovery_plot(options.out / f"recovery-{name}.png", title, experiment, name)
        title = "SplitMNIST, task unknown, masks recovered from Ψ and μ"
        seeds_plot(options.out / "accuracy-by-seed.png", title, experiment, PUBLISHED)


if __name__ == "__main__":
    main()
