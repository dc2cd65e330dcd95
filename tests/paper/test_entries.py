"""The catalogue says what the paper says: if a number here were wrong, every verdict on it would be."""

import json
import re

import pytest
import torch

from supsup import SupSupError, nets
from supsup.file import codec
from supsup.masks.scores import weights_kept
from supsup_paper.catalogue.entries import ENTRIES, GROUPS, entries_named, only_rows
from supsup_paper.catalogue.experiments import (
    BatchEExperiment,
    Experiment,
    SplitImagenetExperiment,
    StagedTraining,
    SupSupExperiment,
)
from supsup_paper.catalogue.rows import SCALES, Entry, Row, at_scale, repeated_rows
from supsup_paper.catalogue.settings import settings_of
from supsup_paper.catalogue.tolerances import TOLERANCES
from supsup_paper.runs.reproduction import RUNNERS

NAMES = [
    "permuted-lenet",
    "permuted-fc",
    "permuted-2500",
    "output-size",
    "rotated",
    "batche-inference",
    "abatche",
    "gamma",
    "hopfield",
    "cifar100-gg",
    "transfer-speed",
    "imagenet-gg",
    "tiny-imagenet-gg",
    "cifar100-unnamed",
    "tiny-imagenet-unnamed",
    "mask-overhead",
]


def row(entry: str, name: str) -> Row:
    (found,) = [row for row in ENTRIES[entry].rows if row.name == name]
    return found


def stages_of(experiment: Experiment) -> tuple[int, ...] | None:
    if isinstance(experiment, SupSupExperiment | BatchEExperiment):
        return experiment.own.stages
    return experiment.training.stages if isinstance(experiment.training, StagedTraining) else None


def test_every_table_and_figure_is_there() -> None:
    assert list(ENTRIES) == NAMES


@pytest.mark.parametrize(
    ("entry", "name", "place", "value"),
    [
        ("permuted-lenet", "supsup-H-s100", "250", 93.62),
        ("permuted-lenet", "psp", "100", 64.62),
        ("permuted-lenet", "lower", "10", 71.67),
        ("permuted-fc", "supsup-G-s500", "50", 96.19),
        ("permuted-fc", "supsup-H-s500", "250", 95.66),
        ("batche-inference", "supsup-H", "250", 94.91),
        ("permuted-fc", "upper", "150", 96.66),
        ("permuted-2500", "nns-H", "2500", 92.54),
        ("permuted-2500", "upper", "500", 94.71),
        ("output-size", "fc-H-s25", "250", 57.03),
        ("output-size", "lenet-G-s25", "10", 93.83),
        ("rotated", "supsup-binary-H", "", 96.13),
        ("rotated", "lower", "", 48.71),
        ("batche-inference", "batche-one-image", "200", 57.37),
        ("batche-inference", "ewc", "10", 33.88),
        ("gamma", "full-batch-H", "0.5", 96.13),
        ("hopfield", "best-of", "", 97.43),
        ("cifar100-gg", "transfer-s32", "", 91.66),
        ("cifar100-gg", "heads-random", "", 50.00),
        ("imagenet-gg", "supsup-s8", "", 88.68),
    ],
)
def test_spot_values(entry: str, name: str, place: str, value: float) -> None:
    assert row(entry, name).published["accuracy %"][place] == value


def test_tolerances() -> None:
    """What counts as reproduced, by the kind of row: a looser one would make verdicts worth less."""
    expected = {
        ("permuted-lenet", "supsup-H-s100"): 0.3,
        ("permuted-fc", "supsup-G-s500"): 0.3,
        ("permuted-2500", "nns-H-paper"): 0.3,
        ("output-size", "fc-H-s25"): 0.3,
        ("rotated", "supsup-binary-H"): 0.3,
        ("gamma", "full-batch-H"): 0.3,
        ("hopfield", "paper"): 0.3,
        ("cifar100-gg", "supsup-s8"): 0.5,
        ("cifar100-gg", "transfer-s1"): 0.5,
        ("imagenet-gg", "supsup-s4"): 0.5,
        ("permuted-fc", "psp"): 1.0,
        ("permuted-2500", "upper"): 1.0,
        ("batche-inference", "batche-one-image"): 1.0,
        ("batche-inference", "ewc"): 1.0,
        ("rotated", "psp"): 1.0,
        ("cifar100-gg", "upper"): 1.0,
        ("mask-overhead", "float32"): 0.5,
    }
    found = {key: row(*key).tolerance for key in expected}
    assert {key: tolerance and tolerance.points for key, tolerance in found.items()} == expected
    used = {line.tolerance for entry in ENTRIES.values() for line in entry.rows} - {None}
    assert used == set(TOLERANCES)
    assert all(tolerance.source for tolerance in TOLERANCES)


def test_methods_of_ours_are_beyond_the_paper() -> None:
    """Each with the figure of the paper's own method beside it, and without a verdict."""
    for entry, name in (("permuted-2500", "nns-H"), ("hopfield", "best-of")):
        assert row(entry, name).beyond
        assert row(entry, name).published
        assert row(entry, name).tolerance is None
        assert row(entry, name).remark.startswith("Ours")


def test_what_is_printed_as_a_percentage_has_a_verdict() -> None:
    for entry in ENTRIES.values():
        for line in entry.rows:
            percentages = any("%" in figure for figure in line.published)
            assert (line.tolerance is not None) == (percentages and not line.beyond), f"{entry.name}/{line.name}"


def test_rows_that_repeat_others() -> None:
    """Seven that the paper's tables print again, two of ours, and γ = 1/2, which is Binary."""
    assert repeated_rows(ENTRIES) == {
        "output-size/lenet-H-s100": "permuted-lenet/supsup-H-s100",
        "output-size/lenet-G-s100": "permuted-lenet/supsup-G-s100",
        "output-size/lenet-lower": "permuted-lenet/lower",
        "output-size/lenet-upper": "permuted-lenet/upper",
        "output-size/fc-lower": "permuted-fc/lower",
        "output-size/fc-upper": "permuted-fc/upper",
        "output-size/fc-H-s500": "permuted-fc/supsup-H-s500",
        "output-size/fc-G-s500": "permuted-fc/supsup-G-s500",
        "batche-inference/upper": "permuted-fc/upper",
        "gamma/full-batch-H": "rotated/supsup-binary-H",
    }


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.name)
def test_an_entry_can_be_run(entry: Entry) -> None:
    names = [row.name for row in entry.rows]
    assert len(set(names)) == len(names)
    for line in entry.rows:
        assert re.fullmatch(r"[A-Za-z0-9.-]+", line.name), line.name
        assert line.beyond <= (line.tolerance is None)
        assert line.tolerance is None or line.published
        for scale in SCALES:
            experiment = at_scale(line, scale)
            assert experiment.kind in RUNNERS
            assert type(experiment) is type(line.experiment)
            assert json.loads(json.dumps(settings_of(experiment))) == settings_of(experiment)
            stages = stages_of(experiment)
            assert stages is None or stages[-1] <= experiment.training.tasks
        stages = stages_of(line.experiment)
        if entry.axis == "tasks learned":
            assert stages is not None
            assert set(line.published.get("accuracy %", {})) <= set(map(str, stages))


def test_quick_is_smaller() -> None:
    line = row("permuted-2500", "supsup-H")
    quick = at_scale(line, "quick")
    assert isinstance(quick, SupSupExperiment)
    assert quick.training.tasks == 10
    assert quick.own.stages == (10,)
    assert at_scale(line, "full") == line.experiment
    assert line.experiment.training.tasks == 2500
    with pytest.raises(SupSupError, match="quick or full"):
        at_scale(line, "huge")


def test_bytes_of_split_imagenet_give_its_budgets() -> None:
    """The paper prints bytes and no s; by its own count they belong together."""
    net = nets.resnet50(10)
    layers = [m for m in net.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)]
    channels = sum(m.num_features for m in net.modules() if isinstance(m, torch.nn.BatchNorm2d))
    shapes = [layer.weight.shape for layer in layers]
    for line in ENTRIES["imagenet-gg"].rows:
        assert isinstance(line.experiment, SplitImagenetExperiment)
        kept = [weights_kept(shape, line.experiment.own.budget, None) for shape in shapes]
        counted = 100 * codec.paper_bytes(kept, shapes, channels)
        assert counted == pytest.approx(line.published["bytes"][""], rel=3e-4)


def test_names_that_are_not_there_are_told_from_those_that_are() -> None:
    with pytest.raises(SupSupError, match="no 'permuted-lent'; it has permuted-lenet, permuted-fc"):
        entries_named(["permuted-fc", "permuted-lent"])
    assert [entry.name for entry in entries_named(["gamma", "all-mnist", "gamma"])][:2] == ["gamma", "permuted-lenet"]
    assert set(GROUPS["all"]) == set(ENTRIES)


def test_some_rows_only() -> None:
    entries = entries_named(["permuted-lenet", "gamma", "rotated"])
    chosen = only_rows(entries, ["psp", "upper"])
    assert [(entry.name, [row.name for row in entry.rows]) for entry in chosen] == [
        ("permuted-lenet", ["psp", "upper"]),
        ("rotated", ["psp", "upper"]),
    ]
    with pytest.raises(SupSupError, match="no row 'psq'; the rows are supsup-H-s100"):
        only_rows(entries, ["psq"])
