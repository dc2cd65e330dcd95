"""A result belongs to settings and to the defaults of its time: a changed default must not pass for the old one."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from supsup import nets
from supsup.hopfield.units import Recovery
from supsup.inference.new_task import NewTaskRule
from supsup.masks.frozen import FrozenNet
from supsup.training import Recipe
from supsup.training.fast.batched import BatchedTrainer
from supsup_paper.catalogue import recipes, settings
from supsup_paper.catalogue.entries import ENTRIES
from supsup_paper.catalogue.rows import at_scale
from supsup_paper.catalogue.settings import settings_of
from supsup_paper.records import PlannedRow
from supsup_paper.runs.reproduction import RUNNERS

RESULTS = Path(__file__).parents[2] / "results"
ROWS = {f"{entry.name}/{row.name}": row for entry in ENTRIES.values() for row in entry.rows}


def defaults(name: str) -> dict[str, Any]:
    """What a row's settings say about defaults."""
    found = ROWS[name].settings["defaults"]
    assert isinstance(found, dict)
    return found


def test_every_result_belongs_to_its_row() -> None:
    """With the settings and defaults of today, so that none has to be run again."""
    paths = [path for entry in ENTRIES for path in sorted((RESULTS / entry).glob("*-seed*.json"))]
    changed = []
    for path in paths:
        record = json.loads(path.read_text(encoding="utf-8"))
        row = ROWS[f"{path.parent.name}/{path.stem.rpartition('-seed')[0]}"]
        if record["settings"] != settings_of(at_scale(row, record["scale"])):
            changed.append(path.name)
    assert changed == []
    assert len(paths) >= 346


def test_settings_say_what_the_row_does_not() -> None:
    assert defaults("permuted-lenet/supsup-H-s100") == {
        "recipe": {
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
        },
        "precision": {"GPU": "bfloat16", "CPU": "float32"},
    }
    for name, row in ROWS.items():
        assert ("defaults" in row.settings) == (row.experiment.kind != "mask-overhead"), name
        assert json.loads(json.dumps(row.settings)) == row.settings


def test_the_rule_for_new_masks_is_part_of_the_settings() -> None:
    """Ours by default; a row that changes a part of it says that part itself."""
    assert defaults("permuted-2500/nns-H")["allocation"]["deviations"] == 7.0
    assert sorted(defaults("permuted-2500/nns-H-paper")["allocation"]) == ["budget", "epsilon", "every", "floor"]


Patch = Callable[[object, str, object], None]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("permuted-lenet/supsup-H-s100", lambda patch: patch(recipes, "MNIST", Recipe(learning_rate=1e-3))),
        ("permuted-lenet/supsup-H-s100", lambda patch: patch(settings, "MASKS", {"GPU": "float32", "CPU": "float32"})),
        ("permuted-lenet/psp", lambda patch: patch(recipes, "MNIST", Recipe(second_decay=0.9))),
        ("permuted-lenet/batche", lambda patch: patch(recipes, "BATCHE_FILLING", "kaiming_uniform")),
        ("permuted-2500/nns-H", lambda patch: patch(settings, "NewTaskRule", lambda: NewTaskRule(deviations=5))),
        ("hopfield/paper", lambda patch: patch(settings, "Recovery", lambda: replace(Recovery(), energy_weight=1e-3))),
        ("cifar100-gg/heads", lambda patch: patch(recipes, "CIFAR_LATER", recipes.CIFAR_BASELINES)),
    ],
)
def test_a_changed_default_makes_old_results_stale(
    name: str, change: Callable[[Patch], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They are run again."""
    row = ROWS[name]
    wanted = PlannedRow("e", "r", "", "full", row.experiment, tmp_path)
    wanted.path(0).parent.mkdir(exist_ok=True)
    wanted.path(0).write_text(json.dumps({"scale": "full", "settings": row.settings}))
    assert wanted.finished(0)
    change(monkeypatch.setattr)
    assert not wanted.finished(0)


def test_a_default_that_the_row_says_itself_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = ROWS["permuted-2500/nns-H-paper"].settings
    monkeypatch.setattr(settings, "NewTaskRule", lambda: NewTaskRule(deviations=5))
    assert ROWS["permuted-2500/nns-H-paper"].settings == before


def test_every_rotated_row_says_how_its_corners_are() -> None:
    """Grey corners tell the angle, black ones do not: results with one are no results with the other."""
    rotated = [row for row in ROWS.values() if row.settings["training"].get("stream") == "rotated"]  # type: ignore[union-attr]
    assert len(rotated) >= 8
    assert all(row.settings["training"]["corners"] == "black" for row in rotated)  # type: ignore[index, call-overload]


def test_precisions_are_those_that_are_taken() -> None:
    """The default precision of training on a CPU, and the baselines whose products may be TensorFloat-32 on a GPU."""
    net = FrozenNet(nets.FullyConnected([784, 16, 10]), 0, torch.device("cpu"))
    assert BatchedTrainer(net, 1, Recipe()).precision == torch.float32
    assert settings.MASKS == {"GPU": "bfloat16", "CPU": "float32"}
    allowed = {kind for kind, run in RUNNERS.items() if run.tf32} - {"split-cifar100-rivals"}  # those are in bfloat16
    said = {row.experiment.kind: row.settings.get("defaults", {}) for row in ROWS.values()}
    assert {kind for kind, known in said.items() if known.get("precision") == settings.BASELINES} == allowed  # type: ignore[union-attr]
