"""How large an experiment is run: "full" as the paper has it, "quick" with fewer tasks and steps on 2 cores."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from supsup.errors import SupSupError
from supsup.paper.catalogue import Row

SCALES = ("quick", "full")
_SEEDS = {"full": {"hopfield": 20}, "quick": {"hopfield": 2}}  # where nobody says how many; else 1
_BRIEF_IMAGES = {"tasks": 2, "epochs": None, "steps": 4, "batch size": 32}
_QUICK: dict[str, dict[str, Any]] = {
    "supsup": {"tasks": 10, "steps": 200},
    "unannounced": {"tasks": 5, "steps": 300},  # a new task is looked for every 100 batches
    "psp": {"tasks": 10, "steps": 200},
    "bounds": {"tasks": 10, "steps": 200},
    "batche": {"tasks": 10, "steps": 200},
    "consolidation": {"steps": 100},
    "hopfield": {"units": 512},
    "split-cifar100": _BRIEF_IMAGES,
    "split-cifar100-rivals": _BRIEF_IMAGES,
    "transfer-speed": _BRIEF_IMAGES | {"first epochs": None, "first steps": 8, "budgets": [8]},
    "split-imagenet": _BRIEF_IMAGES | {"batch size": 8, "size": 64, "steps": 2},
    "mask-overhead": {"image": [3, 64, 64]},
}
_QUICK_STRICT = 2  # tasks: every one of their images is asked for on its own
_QUICK_ROTATED = {"tasks": 3, "steps": 100}  # whole batches decide, round after round
_QUICK_GAMMAS = ["1/k", 0.5]
_QUICK_FC = {"tasks": 10, "steps": 40}  # a step of FC 1024-1024 takes several times longer


def seeds_of(entry: str, scale: str, asked: int | None) -> int:
    """How many seeds an entry is run with."""
    if asked is not None and asked < 1:
        raise SupSupError(f"--seeds is {asked}; give 1 or more")
    return asked or _SEEDS[scale].get(entry, 1)


def at_scale(row: Row, scale: str) -> dict[str, Any]:
    """A row's settings at this scale."""
    if scale not in SCALES:
        raise SupSupError(f"unknown scale {scale!r}; use {' or '.join(SCALES)}")
    settings: dict[str, Any] = copy.deepcopy(dict(row.settings))
    if scale == "full":
        return settings
    training, own = settings["training"], settings["own"]
    smaller = _QUICK[settings["run"]]
    if training.get("net") == "fc_1024":
        smaller = smaller | _QUICK_FC
    if training.get("stream") == "rotated":
        smaller = smaller | _QUICK_ROTATED
    training |= {key: _smaller(training, key, value) for key, value in smaller.items()}
    if "gammas" in own:
        own["gammas"] = _QUICK_GAMMAS
    if own.get("protocol") == "strict":
        own["stages"] = [_QUICK_STRICT]
    for part in (training, own):
        if "stages" in part:
            last = min(training["tasks"], part["stages"][-1])
            part["stages"] = sorted({n for n in part["stages"] if n < last} | {last})
    return settings


def _smaller(training: Mapping[str, Any], key: str, value: Any) -> Any:
    known = training.get(key)
    return min(known, value) if isinstance(known, int) and isinstance(value, int) else value
