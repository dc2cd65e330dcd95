"""One row of a comparison as one JSON file: figures beside the published ones, and where they come from."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from supsup.provenance import provenance

Curves = dict[str, dict[int, list[float]]]  # by label and number of tasks learned, % for each seed
Published = dict[str, dict[int, float]]


def finished(path: Path, settings: dict[str, Any]) -> bool:
    """Whether a row with these settings has been written."""
    if not path.exists() or json.loads(path.read_text())["settings"] != json.loads(json.dumps(settings)):
        return False
    print(f"{path.name}: there already", flush=True)
    return True


def write_row(
    path: Path,
    settings: dict[str, Any],
    curves: Curves,
    published: Published | None,
    size: int,
    seconds: float,
    device: torch.device,
) -> None:
    """Write a finished row, whole or not at all."""
    record = {
        "settings": settings,
        "accuracy %": {
            label: {n: round(mean(values), 3) for n, values in curve.items()} for label, curve in curves.items()
        },
        "deviation over seeds": {
            label: {n: round(stdev(values), 3) for n, values in curve.items() if len(values) > 1}
            for label, curve in curves.items()
        },
        "published %": published or {},
        "bytes": size,
        "seconds": round(seconds, 1),
        "made by": provenance(device),
    }
    waiting = path.with_suffix(".part")
    waiting.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    waiting.replace(path)
    print(path.name, record["accuracy %"], "published", record["published %"], f"{seconds:.0f} s", flush=True)
