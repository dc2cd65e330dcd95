"""Dataclasses of settings as results/ has them: if a key were written differently, no result there would count."""

from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path
from typing import Any

import pytest

from supsup_paper.catalogue.experiments import (
    FC,
    LENET,
    AllocationRule,
    BatchEExperiment,
    BatchEGrading,
    BatchETraining,
    BoundGrading,
    BoundsExperiment,
    Budget,
    CifarBaselineGrading,
    CifarTraining,
    ConsolidationExperiment,
    ConsolidationTraining,
    HopfieldExperiment,
    HopfieldGrading,
    HopfieldTraining,
    ImagenetBoundsExperiment,
    ImagenetTraining,
    MnistTraining,
    OverheadExperiment,
    OverheadTraining,
    PretrainedTraining,
    PretrainedUnnamedExperiment,
    PSPExperiment,
    ScratchTraining,
    ScratchUnnamedExperiment,
    SplitCifarExperiment,
    SplitImagenetExperiment,
    StagedTraining,
    SupSupExperiment,
    SupSupGrading,
    TransferSpeedExperiment,
    TransferSpeedTraining,
    UnannouncedExperiment,
    UnannouncedTraining,
    settings_json,
    stages_within,
)

SUPSUP = SupSupExperiment(MnistTraining("permuted", LENET, 100, 250), SupSupGrading(stages=(10, 250)))
CIFAR = SplitCifarExperiment(CifarTraining(transfer="none"), Budget(8))


def test_keys_have_spaces_and_tuples_are_lists() -> None:
    """And what is None by default is left out, but None stands where it is said."""
    assert settings_json(SUPSUP.own) == {
        "scenario": "GNu",
        "protocol": "paper",
        "method": "one-shot",
        "objective": "H",
        "layers": "all",
        "stages": [10, 250],
    }
    assert settings_json(CIFAR.training) == {"transfer": "none", "tasks": 20, "epochs": 250, "batch size": 128}
    quick = {"transfer": "none", "tasks": 2, "epochs": None, "steps": 4, "batch size": 32}
    assert settings_json(CIFAR.quick().training) == quick


def test_parts_that_only_some_rows_have() -> None:
    plain = UnannouncedTraining("permuted", LENET, 500, 2500, stages=(500,))
    ruled = UnannouncedTraining("permuted", LENET, 500, 2500, stages=(500,), allocation=AllocationRule(0))
    assert "allocation" not in settings_json(plain)
    assert settings_json(ruled) == settings_json(plain) | {"allocation": {"deviations": 0}}
    assert "base" not in settings_json(BatchETraining("permuted", LENET, 10, 250))
    assert settings_json(BatchETraining("permuted", LENET, 10, 250, base="trained"))["base"] == "trained"
    assert settings_json(CifarBaselineGrading()) == {}
    assert settings_json(ImagenetTraining())["classes per task"] == 10


def test_settings_that_no_file_can_hold_are_refused() -> None:
    @dataclass(frozen=True)
    class Odd:
        folder: Path

    with pytest.raises(TypeError, match="numbers, words, tuples and dataclasses"):
        settings_json(Odd(Path("x")))


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


STAGES = (10, 50, 250)
STRICT = SupSupGrading(stages=STAGES, protocol="strict")
GAMMA = SupSupGrading(stages=(36,), gammas=("1/k", 0.1, 0.9), protocol="paper-full-batch")


@pytest.mark.parametrize(
    ("experiment", "training", "own"),
    [
        (SUPSUP, {"tasks": 10, "steps": 200}, {"stages": (10,), "gammas": None}),
        (
            SupSupExperiment(MnistTraining("permuted", FC, 500, 250), STRICT),
            {"tasks": 10, "steps": 40},
            {"stages": (2,)},
        ),
        (
            SupSupExperiment(MnistTraining("permuted", LENET, 9, 3, 7), STRICT),
            {"tasks": 3, "steps": 7},
            {"stages": (2,)},
        ),
        (
            SupSupExperiment(MnistTraining("rotated", FC, 200, 36), GAMMA),
            {"tasks": 3, "steps": 100},
            {"stages": (3,), "gammas": ("1/k", 0.5)},
        ),
        (
            UnannouncedExperiment(UnannouncedTraining("permuted", LENET, 500, 2500, stages=(1, 500, 2500))),
            {"tasks": 5, "steps": 300, "stages": (1, 5)},
            {},
        ),
        (
            PSPExperiment(StagedTraining("permuted", LENET, 10, 250, stages=STAGES)),
            {"tasks": 10, "steps": 200, "stages": (10,)},
            {},
        ),
        (
            BoundsExperiment(StagedTraining("permuted", FC, 10, 250, stages=STAGES), BoundGrading("upper")),
            {"tasks": 10, "steps": 40, "stages": (10,)},
            {"keep": "upper"},
        ),
        (
            ConsolidationExperiment(
                ConsolidationTraining(
                    "permuted", "784-9", 100, 10, 5000, stages=(5, 10), batch_size=256, method="si", strength=0.1
                )
            ),
            {"tasks": 10, "steps": 100, "stages": (5, 10), "batch_size": 256},
            {},
        ),
        (
            BatchEExperiment(BatchETraining("permuted", LENET, 10, 250), BatchEGrading(stages=STAGES)),
            {"tasks": 10, "steps": 200},
            {"stages": (10,)},
        ),
        (HopfieldExperiment(HopfieldTraining(), HopfieldGrading("own")), {"units": 512, "tasks": 5, "epochs": 1}, {}),
        (HopfieldExperiment(HopfieldTraining(units=9), HopfieldGrading("own")), {"units": 9, "starts": 8}, {}),
        (CIFAR, {"tasks": 2, "epochs": None, "steps": 4, "batch_size": 32}, {"budget": 8}),
        (
            SplitCifarExperiment(CifarTraining(transfer="none", tasks=1, steps=3, batch_size=5), Budget(8)),
            {"tasks": 1, "epochs": None, "steps": 3, "batch_size": 5},
            {},
        ),
        (
            TransferSpeedExperiment(TransferSpeedTraining(transfer="masks", budgets=(1, 2), epochs=50)),
            {"tasks": 2, "first_epochs": None, "first_steps": 8, "steps": 4, "budgets": (8,), "batch_size": 32},
            {},
        ),
        (
            SplitImagenetExperiment(ImagenetTraining(), Budget(4)),
            {"tasks": 2, "epochs": None, "steps": 2, "batch_size": 8, "size": 64, "classes_per_task": 10},
            {},
        ),
        (
            ImagenetBoundsExperiment(ImagenetTraining(size=32), CifarBaselineGrading("lower")),
            {"steps": 2, "batch_size": 8, "size": 32},
            {"keep": "lower"},
        ),
        (
            ScratchUnnamedExperiment(ScratchTraining(source="cifar100", classes_per_task=5, widths=(64, 128))),
            {"tasks": 2, "epochs": None, "steps": 4, "batch_size": 32, "widths": (16, 32), "budget": 24},
            {},
        ),
        (
            PretrainedUnnamedExperiment(PretrainedTraining(source="cifar100", classes_per_task=5)),
            {"tasks": 2, "epochs": None, "steps": 2, "batch_size": 16, "size": 64},
            {},
        ),
        (OverheadExperiment(OverheadTraining(precision="float32")), {"image": (3, 64, 64), "tasks": 8, "batch": 1}, {}),
    ],
    ids=lambda value: value.kind if hasattr(value, "kind") else "",
)
def test_a_quick_run_is_as_small_as_said(experiment: Any, training: dict[str, Any], own: dict[str, Any]) -> None:
    """A minute, not hours; and no smaller, or nothing is left of what a row shows."""
    quick = experiment.quick()
    assert {name: getattr(quick.training, name) for name in training} == training
    assert {name: getattr(quick.own, name) for name in own} == own


def test_trainings_are_as_published_where_rows_do_not_say() -> None:
    """Entries leave these out."""
    mnist = MnistTraining("permuted", LENET, 100, 250)
    assert (mnist.steps, mnist.corners) == (1000, None)
    images = ImagenetTraining()
    assert (images.tasks, images.epochs, images.steps, images.batch_size) == (100, 100, None, 256)
    assert (images.classes_per_task, images.size) == (10, 224)
    cifar = TransferSpeedTraining(transfer="masks", budgets=(8,))
    assert (cifar.tasks, cifar.epochs, cifar.batch_size, cifar.first_epochs, cifar.first_steps) == (
        20,
        250,
        128,
        250,
        None,
    )
    scratch = ScratchTraining(source="cifar100", classes_per_task=5, widths=(64,))
    assert (scratch.tasks, scratch.epochs, scratch.batch_size, scratch.budget) == (20, 50, 128, 24)
    pretrained = PretrainedTraining(source="cifar100", classes_per_task=5)
    assert (pretrained.tasks, pretrained.epochs, pretrained.batch_size, pretrained.size) == (20, 12, 125, 224)
    assert pretrained.masks_from == 15
    overhead = OverheadTraining(precision="float32")
    assert (overhead.image, overhead.batch, overhead.tasks) == ((3, 224, 224), 1, 8)
    hopfield = HopfieldTraining()
    assert (hopfield.units, hopfield.epochs, hopfield.starts, hopfield.tasks) == (2048, 1, 8, 5)
