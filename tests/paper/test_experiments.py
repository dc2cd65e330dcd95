"""Settings as results/ has them: if one key were written differently, no result there would count any more."""

import json
from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path

import pytest

from supsup.paper.entries import ENTRIES
from supsup.paper.experiments import Experiment, as_json, settings_of
from supsup.paper.image_experiments import (
    Budget,
    CifarRivalGrading,
    CifarTraining,
    ImagenetTraining,
    SplitCifarExperiment,
)
from supsup.paper.mnist_experiments import (
    LENET,
    AllocationRule,
    BatchETraining,
    ConsolidationTraining,
    MnistTraining,
    SupSupExperiment,
    SupSupGrading,
    UnannouncedTraining,
    stages_within,
)
from supsup.paper.scales import at_scale

RESULTS = Path(__file__).parents[2] / "results"


def test_every_result_still_has_the_settings_of_its_row() -> None:
    """All 346 files that were made before settings had types: none needs to be made again."""
    rows = {(entry.name, row.name): row for entry in ENTRIES.values() for row in entry.rows}
    paths = [path for entry in ENTRIES for path in sorted((RESULTS / entry).glob("*-seed*.json"))]
    changed = []
    for path in paths:
        record = json.loads(path.read_text(encoding="utf-8"))
        row = rows[path.parent.name, path.stem.rpartition("-seed")[0]]
        if settings_of(at_scale(row, record["scale"])) != record["settings"]:
            changed.append(path.name)
    assert changed == []
    assert len(paths) >= 346


SUPSUP = SupSupExperiment(MnistTraining("permuted", LENET, 100, 250), SupSupGrading(stages=(10, 250)))
CIFAR = SplitCifarExperiment(CifarTraining(transfer="none"), Budget(8))


@pytest.mark.parametrize(
    ("experiment", "settings"),
    [
        (
            SUPSUP,
            {
                "run": "supsup",
                "training": {"stream": "permuted", "net": LENET, "outputs": 100, "tasks": 250, "steps": 1000},
                "own": {
                    "scenario": "GNu",
                    "protocol": "paper",
                    "method": "one-shot",
                    "objective": "H",
                    "layers": "all",
                    "stages": [10, 250],
                },
            },
        ),
        (
            CIFAR,
            {
                "run": "split-cifar100",
                "training": {"transfer": "none", "tasks": 20, "epochs": 250, "batch size": 128},
                "own": {"budget": 8},
            },
        ),
        (
            CIFAR.quick(),
            {
                "run": "split-cifar100",
                "training": {"transfer": "none", "tasks": 2, "epochs": None, "steps": 4, "batch size": 32},
                "own": {"budget": 8},
            },
        ),
    ],
)
def test_settings_are_written_as_before_they_had_types(experiment: Experiment, settings: dict[str, object]) -> None:
    """Keys with spaces, lists for tuples, what is None by default left out, and None where it is said."""
    assert settings_of(experiment) == settings
    assert json.loads(json.dumps(settings_of(experiment))) == settings


def test_parts_that_only_some_rows_have() -> None:
    plain = UnannouncedTraining("permuted", LENET, 500, 2500, stages=(500,))
    ruled = UnannouncedTraining("permuted", LENET, 500, 2500, stages=(500,), allocation=AllocationRule(0))
    assert "allocation" not in as_json(plain)
    assert as_json(ruled) == as_json(plain) | {"allocation": {"deviations": 0}}
    assert "base" not in as_json(BatchETraining("permuted", LENET, 10, 250))
    assert as_json(BatchETraining("permuted", LENET, 10, 250, base="trained"))["base"] == "trained"
    assert as_json(CifarRivalGrading()) == {}
    assert as_json(ImagenetTraining())["classes per task"] == 10


def test_settings_that_no_file_can_hold_are_refused() -> None:
    @dataclass(frozen=True)
    class Odd:
        folder: Path

    with pytest.raises(TypeError, match="numbers, words, tuples and dataclasses"):
        as_json(Odd(Path("x")))


def test_experiments_do_not_change() -> None:
    """Rows of one training are found by it: a training that changed would be trained again for every row."""
    with pytest.raises(FrozenInstanceError):
        SUPSUP.training.tasks = 3  # type: ignore[misc]
    assert {SUPSUP.training: 1}[MnistTraining("permuted", LENET, 100, 250)] == 1
    staged = ConsolidationTraining(
        "permuted", "784-10", 20, 10, stages=(10,), batch_size=256, method="ewc", strength=5.0
    )
    assert hash(staged) == hash(staged.quick(tasks=10, steps=1000))


def test_stages_that_fewer_tasks_reach() -> None:
    assert stages_within((10, 50, 250), 60) == (10, 50, 60)
    assert stages_within((10, 50, 250), 10) == (10,)
    assert stages_within((1, 2), 10) == (1, 2)
