"""What the code did where a row said nothing, at the time when results did not write it down.

Files in results/ that have no "defaults" among their settings were made with these. The table is history: it does not
change when a default does.
"""

from __future__ import annotations

from supsup_paper.catalogue.experiments import Json

_PLAIN: dict[str, Json] = {
    "optimiser": "rmsprop",
    "learning rate": 1e-4,
    "batch size": 128,
    "momentum": 0.0,
    "weight decay": 0.0,
    "schedule": "constant",
    "warm up": 0.0,
    "selection": "threshold",
    "transfer": "none",
    "first decay": 0.9,
    "second decay": 0.99,
    "epsilon": 1e-8,
}
_ADAM: dict[str, Json] = _PLAIN | {"optimiser": "adam", "second decay": 0.999}
_IMAGES: dict[str, Json] = _ADAM | {"learning rate": 1e-3, "schedule": "cosine"}
_CIFAR: dict[str, Json] = _IMAGES | {"weight decay": 1e-4}
_EDGE_POPUP: dict[str, Json] = {"selection": "edge-popup"}

_MASKS: Json = {"GPU": "bfloat16", "CPU": "float32"}
_RIVALS: Json = {"GPU": "tf32", "CPU": "float32"}

EARLIER: dict[str, dict[str, Json]] = {  # by the kind of experiment
    "supsup": {"recipe": _PLAIN, "precision": _MASKS},
    "unannounced": {
        "recipe": _PLAIN,
        "precision": _MASKS,
        "allocation": {"every": 100, "epsilon": 0.125, "floor": 5, "budget": 2500, "deviations": 7.0},
    },
    "psp": {"recipe": _PLAIN, "precision": _RIVALS},
    "bounds": {"recipe": _PLAIN, "precision": _RIVALS},
    "consolidation": {"recipe": _ADAM | {"learning rate": 1e-4}, "precision": _RIVALS},
    "batche": {
        "recipe": _ADAM | {"learning rate": 1e-2, "weight decay": 1e-4},
        "precision": _RIVALS,
        "filling": "kaiming_normal",
    },
    "hopfield": {
        "recipe": {"learning rate": 0.1, "momentum": 0.9, "weight decay": 1e-4, "batch size": 128},
        "recovery": {
            "learning rate": 500.0,
            "momentum": 0.9,
            "weight decay": 1e-4,
            "energy weight": 1.5e-3,
            "batch size": 64,
            "least steps": 30,
        },
        "precision": {"GPU": "float32", "CPU": "float32"},
    },
    "split-cifar100": {"recipe": _CIFAR | _EDGE_POPUP, "precision": _MASKS},
    "transfer-speed": {"recipe": _CIFAR | _EDGE_POPUP, "precision": _MASKS},
    "split-cifar100-rivals": {
        "recipe": _CIFAR,
        "precision": _MASKS,
        "rates": {"first": 1e-3, "later": 1e-2, "random": 0.1},
        "filling": "kaiming_uniform",
    },
    "split-imagenet": {"recipe": _IMAGES | _EDGE_POPUP | {"batch size": 256, "warm up": 0.05}, "precision": _MASKS},
}
