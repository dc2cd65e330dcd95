"""Dataclasses of settings as results/ has them: if a key were written differently, no result there would count."""

from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path

import pytest

from supsup.paper.experiments import as_json
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

SUPSUP = SupSupExperiment(MnistTraining("permuted", LENET, 100, 250), SupSupGrading(stages=(10, 250)))
CIFAR = SplitCifarExperiment(CifarTraining(transfer="none"), Budget(8))


def test_keys_have_spaces_and_tuples_are_lists() -> None:
    """And what is None by default is left out, but None stands where it is said."""
    assert as_json(SUPSUP.own) == {
        "scenario": "GNu",
        "protocol": "paper",
        "method": "one-shot",
        "objective": "H",
        "layers": "all",
        "stages": [10, 250],
    }
    assert as_json(CIFAR.training) == {"transfer": "none", "tasks": 20, "epochs": 250, "batch size": 128}
    quick = {"transfer": "none", "tasks": 2, "epochs": None, "steps": 4, "batch size": 32}
    assert as_json(CIFAR.quick().training) == quick


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
