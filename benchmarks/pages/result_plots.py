"""The plots in results/core, results/bench and results/hopfield, from the JSON files beside them.

python -m benchmarks result_plots
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from supsup_paper.records import write_text
from supsup_paper.report.plots import accuracy_plot, capacity_plot, recovery_plot, search_plot, time_plot

RESULTS = Path(__file__).parents[2] / "results"


def read(path: Path) -> dict[str, Any]:
    """One result."""
    record: dict[str, Any] = json.loads(path.read_text())
    return record


def demo_plot(record: dict[str, Any]) -> str:
    """As `supsup demo` draws it."""
    curves = {
        label: {int(stage): value for stage, value in line["curve"].items()} for label, line in record["lines"].items()
    }
    settings = record["settings"]
    title = f"{settings['tasks']} tasks ({settings['stream']} {settings['data']}), {settings['net']}"
    return accuracy_plot(title, curves)


def training_plot(record: dict[str, Any]) -> str:
    """As `supsup bench train` draws it."""
    steps = record["rows"][0]["steps"]
    title = f"{record['net'].rpartition(':')[2]}, {record['outputs']} outputs, {steps} batches a task"
    return time_plot(title, record["rows"])


def growth_plot(record: dict[str, Any]) -> str:
    """As `supsup bench infer` draws it for several numbers of tasks."""
    return search_plot(record["net"], "cpu" if "CPU" in record["made by"]["device"] else "cuda", record["rows"])


def recovered_plot(record: dict[str, Any]) -> str:
    """The way to each mask of the seed whose file kept it."""
    what = {"paper": "one descent", "best-of": "best of 8 descents"}[record["row"]]
    return recovery_plot(f"Hopfield recovery, {what}, seed {record['seed']}", record["trace"]["distances on the way"])


def flipped_plot(record: dict[str, Any]) -> str:
    """Masks that come back from flipped bits, by rule and kind of mask."""
    curves: dict[str, dict[str, dict[int, float]]] = {}
    for label, rows in record["curves"].items():
        rule, _, kind = label.partition(", ")
        curves.setdefault(rule.capitalize(), {})[kind] = {row["stored"]: row["recovered"] for row in rows}
    return capacity_plot(f"Masks that come back from {record['flipped']:.0%} flipped bits", curves, record["units"])


def from_images_plot(record: dict[str, Any]) -> str:
    """Masks found from images alone, by rule and procedure."""
    curves = {
        rule.capitalize(): {way: {row["stored"]: row[way] for row in rows} for way in ("paper", "best-of")}
        for rule, rows in record["from images"].items()
    }
    return capacity_plot("Learned masks found from test images alone", curves, record["units"])


def plots() -> dict[Path, str]:
    """Every plot by its path."""
    drawn = {path.with_suffix(".svg"): demo_plot(read(path)) for path in sorted((RESULTS / "core").glob("*.json"))}
    for path in sorted((RESULTS / "bench").glob("bench-train-*.json")):
        drawn[path.with_suffix(".svg")] = training_plot(read(path))
    for path in sorted((RESULTS / "bench").glob("search-*.json")):
        drawn[path.with_suffix(".svg")] = growth_plot(read(path))
    hopfield = RESULTS / "hopfield"
    for name in ("paper", "best-of"):
        drawn[hopfield / f"recovery-{name}.svg"] = recovered_plot(read(hopfield / f"{name}-seed0.json"))
    capacity = read(hopfield / "capacity.json")
    drawn[hopfield / "capacity.svg"] = flipped_plot(capacity)
    drawn[hopfield / "capacity-from-images.svg"] = from_images_plot(capacity)
    return drawn


if __name__ == "__main__":
    for path, text in plots().items():
        write_text(path, text)
