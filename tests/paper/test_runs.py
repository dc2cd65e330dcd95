"""Every experiment of the paper runs from end to end, small: each would otherwise fail only after hours on a GPU."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch

import supsup
from supsup import SupSup, SupSupError, data, nets
from supsup.model.state import state_of
from supsup.training.recipe import Transfer
from supsup_paper.baselines.baseline import Baseline
from supsup_paper.catalogue.entries import ENTRIES
from supsup_paper.catalogue.experiments import (
    BatchEExperiment,
    BatchEGrading,
    BatchETraining,
    BoundGrading,
    BoundsExperiment,
    Budget,
    CifarBaseline,
    CifarBaselineGrading,
    CifarBaselineTraining,
    CifarTraining,
    ConsolidationExperiment,
    ConsolidationTraining,
    Experiment,
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
    SplitCifarBaselineExperiment,
    SplitCifarExperiment,
    SplitImagenetExperiment,
    StagedTraining,
    SupSupExperiment,
    SupSupGrading,
    TransferSpeedExperiment,
    TransferSpeedTraining,
    UnannouncedExperiment,
    UnannouncedTraining,
)
from supsup_paper.catalogue.rows import Entry, Row
from supsup_paper.records import PlannedRow, add_bytes
from supsup_paper.runs import cifar
from supsup_paper.runs import cifar_baselines as cifar_baselines
from supsup_paper.runs import hopfield as hop
from supsup_paper.runs import mnist as masks
from supsup_paper.runs import mnist_baselines as baselines
from supsup_paper.runs.cifar_baselines import model_of
from supsup_paper.runs.environment import Environment
from supsup_paper.runs.hopfield import Recall
from supsup_paper.runs.reproduction import RUNNERS, reproduce_entries

STAGED = StagedTraining("permuted", "784-24", 20, 2, 4, stages=(1, 2))


def baseline_training(method: CifarBaseline) -> CifarBaselineTraining:
    return CifarBaselineTraining(method=method, tasks=2, epochs=None, steps=2, batch_size=4)


def each_alone(models: Sequence[Baseline], tasks: Sequence[data.Task]) -> None:
    """`learn_side_by_side` without kernels."""
    for model, task in zip(models, tasks):
        model.learn(task)


def made(
    folder: Path, environment: Environment, *experiments: Experiment, axis: str = "x", seeds: int = 1
) -> list[dict[str, Any]]:
    """The records of rows of these experiments."""
    rows = tuple(Row(f"row{i}", "", experiment) for i, experiment in enumerate(experiments))
    said: list[str] = []
    done = reproduce_entries([Entry("tiny", "", "", rows, axis)], folder, "full", seeds, environment, said.append)
    assert done.failed == 0, "\n".join(said)
    return [
        json.loads((folder / "tiny" / f"{row.name}-seed{seed}.json").read_text())
        for row in rows
        for seed in range(seeds)
    ]


def test_every_kind_is_used_by_the_catalogue() -> None:
    assert {row.experiment.kind for entry in ENTRIES.values() for row in entry.rows} == set(RUNNERS)


def test_gamma_goes_from_one_shot_to_binary(tmp_path: Path, environment: Environment) -> None:
    training = MnistTraining("rotated", "784-24", 20, 4, 30)
    one_shot = SupSupGrading(protocol="paper-full-batch", stages=(4,))
    binary = replace(one_shot, method="binary")
    gamma = replace(one_shot, method="gamma", gammas=("1/k", 0.25, 0.5))
    ways = [SupSupExperiment(training, grading) for grading in (gamma, one_shot, binary)]
    curve, first, last = (row["figures"]["accuracy %"] for row in made(tmp_path, environment, *ways))
    assert list(curve) == ["0.25", "0.5"]
    assert curve == {"0.25": first["4"], "0.5": last["4"]}


def test_a_cluster_gives_the_same_rows(
    tmp_path: Path, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masks to the bit, and so every figure, at each stage."""
    training = MnistTraining("permuted", "784-24", 20, 5, 30)
    grading = SupSupGrading(protocol="strict", stages=(3, 5))
    banks: list[dict[str, torch.Tensor]] = []
    learn_many = SupSup.learn_many

    def watched(model: SupSup, stream: Sequence[data.Task], **how: Any) -> list[str]:
        learned = learn_many(model, stream, **how)
        banks.append(
            {name: state_of(model).bank.packed(state_of(model).tasks.index(name)) for name in sorted(model.tasks)}
        )
        return learned

    monkeypatch.setattr(SupSup, "learn_many", watched)
    alone, spread = (
        made(tmp_path / str(cluster), replace(environment, cluster=cluster), SupSupExperiment(training, grading))
        for cluster in (None, "local:2")
    )
    assert [row["figures"] for row in alone] == [row["figures"] for row in spread]
    assert [row["per task"] for row in alone] == [row["per task"] for row in spread]
    assert list(banks[0]) == list(banks[1])
    assert len(banks[0]) == 5
    assert all(torch.equal(banks[0][name], banks[1][name]) for name in banks[0])


@pytest.mark.parametrize(
    ("entry", "row", "cluster"),
    [
        ("permuted-lenet", "given", "somewhere"),
        ("cifar100-gg", "supsup-s8", "somewhere"),
        ("cifar100-gg", "transfer-s8", None),
        ("transfer-speed", "random-100", "somewhere"),
        ("transfer-speed", "transfer-50", None),
        ("tiny-imagenet-gg", "supsup-s8", "somewhere"),
        ("imagenet-gg", "supsup-s8", None),
        ("cifar100-unnamed", "scratch", "somewhere"),
        ("permuted-lenet", "psp", None),
    ],
)
def test_who_trains_on_a_cluster(
    entry: str, row: str, cluster: str | None, witness: Any, built: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs whose tasks neither need each other nor stay in files; the others go on without it."""
    source = witness.environment.source("cifar100")
    monkeypatch.setattr(Environment, "imagenet", lambda environment, size: source)
    monkeypatch.setattr(Environment, "tiny_imagenet", lambda environment: source)
    witness.environment = replace(witness.environment, cluster="somewhere")
    (experiment,) = (each.experiment for each in ENTRIES[entry].rows if each.name == row)
    witness.start(experiment, calls=2 if entry == "transfer-speed" else 1)
    assert witness.clusters[-1] == cluster


def test_unannounced(tmp_path: Path, environment: Environment) -> None:
    training = UnannouncedTraining("permuted", "784-24", 20, 2, 4, stages=(1, 2))
    (row,) = made(tmp_path, environment, UnannouncedExperiment(training))
    assert list(row["figures"]["accuracy %"]) == ["1", "2"]
    opened = row.get("trace", {}).get("tasks that opened not one mask but", {})
    assert row["figures"]["masks opened"]["2"] == sum(opened.get(f"permutation-{i}", 1) for i in range(2))


def test_psp_with_seeds_in_step(tmp_path: Path, environment: Environment) -> None:
    """Each seed's figures are its own: alone it gives the same."""
    rows = made(tmp_path / "both", environment, PSPExperiment(STAGED), seeds=2)
    (alone,) = made(tmp_path / "alone", environment, PSPExperiment(STAGED))
    assert [row["seed"] for row in rows] == [0, 1]
    assert rows[0]["figures"] == alone["figures"]
    assert rows[0]["figures"] != rows[1]["figures"]
    assert rows[0]["bytes"] == {"paper's count": 4 * (784 * 24 + 24 * 20)}


def test_bounds_come_from_one_training(tmp_path: Path, environment: Environment) -> None:
    both = (BoundsExperiment(STAGED, BoundGrading("lower")), BoundsExperiment(STAGED, BoundGrading("upper")))
    lower, upper = made(tmp_path, environment, *both)
    assert lower["figures"]["accuracy %"]["1"] == upper["figures"]["accuracy %"]["1"]
    assert lower["bytes"]["paper's count"] < upper["bytes"]["paper's count"]


@pytest.mark.parametrize("method", ["ewc", "si"])
def test_consolidation(tmp_path: Path, environment: Environment, method: Literal["ewc", "si"]) -> None:
    training = ConsolidationTraining(
        "permuted", "784-24", 20, 2, 4, stages=(1, 2), batch_size=16, method=method, strength=1.0
    )
    (row,) = made(tmp_path, environment, ConsolidationExperiment(training))
    assert list(row["figures"]["accuracy %"]) == ["1", "2"]


def test_batche_given_inferred_and_augmented(tmp_path: Path, environment: Environment) -> None:
    training = BatchETraining("permuted", "784-24", 20, 2, 4, base="random")
    given = BatchEGrading(scenario="GG", stages=(1, 2))
    one_shot = BatchEGrading(protocol="paper-full-batch", method="one-shot", objective="H", stages=(2,))
    abatche = replace(one_shot, method="abatche", objective="M", images=4)
    rows = made(tmp_path, environment, *(BatchEExperiment(training, how) for how in (given, one_shot, abatche)))
    assert ["task right %" in row["figures"] for row in rows] == [False, True, True]
    for row in rows[1:]:
        assert row["figures"]["accuracy %"]["2"] <= rows[0]["figures"]["accuracy %"]["2"]


def test_hopfield_has_a_file_for_each_seed_and_the_way_of_the_first(tmp_path: Path, environment: Environment) -> None:
    training = HopfieldTraining(units=48, starts=2, tasks=2)
    gradings = (HopfieldGrading("paper"), HopfieldGrading("best-of"), HopfieldGrading("own"))
    experiments = [HopfieldExperiment(training, grading) for grading in gradings]
    rows = made(tmp_path, environment, *experiments, axis="", seeds=2)
    assert [row["seed"] for row in rows] == [0, 1] * 3
    way = rows[0]["trace"]["distances on the way"]
    assert list(way) == ["classes-0-1", "classes-2-3"]
    assert len(way["classes-0-1"]) == 30
    assert "distances on the way" not in rows[1]["trace"]
    assert all(0 <= row["figures"]["accuracy %"][""] <= 100 for row in rows)
    assert "right masks %" not in rows[-1]["figures"]


@pytest.mark.parametrize("transfer", ["none", "masks"])
def test_split_cifar100_counts_the_bytes_of_the_models_it_keeps(
    tmp_path: Path, environment: Environment, transfer: Transfer
) -> None:
    training = CifarTraining(transfer=transfer, tasks=2, epochs=None, steps=2, batch_size=4)
    rows = made(tmp_path, environment, *(SplitCifarExperiment(training, Budget(s)) for s in (1, 8)), axis="")
    small, large = (row["bytes"] for row in rows)
    assert small["paper's count"] == 2 * 408_430 // 20  # of 20 tasks, as the paper counts
    assert small["masks"] < large["masks"] < large["paper's count"]
    path = tmp_path / "tiny" / "row0-seed0.json"
    assert path.with_suffix(".supsup").exists()
    path.write_text(json.dumps(rows[0] | {"bytes": {}}))
    assert path in add_bytes(tmp_path, "tiny")
    assert json.loads(path.read_text()) == rows[0]


def test_split_cifar100_baselines_have_their_learning_rates(environment: Environment) -> None:
    """They decide the baselines' accuracy by many points."""
    methods: tuple[CifarBaseline, ...] = (
        "batche",
        "batche-random-rank-one",
        "batche-random-heads",
        "heads",
        "heads-random",
        "bounds",
    )
    models = [model_of(baseline_training(method), 0, environment.device) for method in methods]
    assert [model.recipe.learning_rate for model in models] == [1e-2, 0.1, 0.1, 1e-2, 1e-2, 1e-3]
    assert [models[i].first.learning_rate for i in (0, 3)] == [1e-3, 1e-3]
    assert all(model.recipe.schedule == "cosine" and model.recipe.steps == 2 for model in models)


def test_split_cifar100_baselines(tmp_path: Path, environment: Environment) -> None:
    training = baseline_training("bounds")
    both = [SplitCifarBaselineExperiment(training, CifarBaselineGrading(keep)) for keep in ("lower", "upper")]
    lower, upper = made(tmp_path, environment, *both, axis="")
    assert list(lower["figures"]["accuracy %"]) == [""]
    assert lower["bytes"]["paper's count"] < upper["bytes"]["paper's count"]


@pytest.mark.usefixtures("built")
def test_seeds_of_the_bounds_go_in_step_where_the_device_takes_several(
    tmp_path: Path, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the figures of seeds that go alone; baselines whose tasks are independent go seed after seed."""
    bounds = [
        SplitCifarBaselineExperiment(baseline_training("bounds"), CifarBaselineGrading(keep))
        for keep in ("lower", "upper")
    ]
    alone = made(tmp_path / "alone", environment, *bounds, axis="", seeds=3)
    together: list[int] = []

    def learn(models: Sequence[Baseline], tasks: Sequence[data.Task]) -> None:
        together.append(len(models))
        each_alone(models, tasks)

    monkeypatch.setattr(cifar_baselines, "most_at_once", lambda *given: 2)
    monkeypatch.setattr(cifar_baselines, "learn_side_by_side", learn)
    in_step = made(tmp_path / "in step", environment, *bounds, axis="", seeds=3)
    assert together == [2, 2], "two tasks of two seeds; the third seed goes alone"
    assert [row["trainings at once"] for row in alone] == [1] * 6
    assert [row["trainings at once"] for row in in_step] == [2, 2, 1] * 2
    for name in ("figures", "per task", "bytes", "settings", "seed"):
        assert [row[name] for row in in_step] == [row[name] for row in alone]
    whole = environment.cifar_stream(2, 0)
    part = whole[1].train
    fewer = replace(part, rows=part.rows[:-1] if part.rows is not None else None, labels=part.labels[:-1])
    models = [model_of(baseline_training("bounds"), seed, environment.device) for seed in (0, 1)]
    unequal = [whole, [whole[0], replace(whole[1], train=fewer)]]
    assert list(cifar_baselines._learning(models, unequal)) == [2, 2]  # type: ignore[arg-type]
    assert together[2:] == [2], "tasks that are not equally large go one by one"
    assert all(len(model.tasks) == 2 for model in models)
    heads = SplitCifarBaselineExperiment(baseline_training("heads-random"))
    assert [row["trainings at once"] for row in made(tmp_path, environment, heads, axis="", seeds=2)] == [1, 1]


def test_batche_with_random_weights_counts_a_head_where_the_paper_does(
    tmp_path: Path, environment: Environment
) -> None:
    training = baseline_training("batche-random-rank-one")
    (row,) = made(tmp_path, environment, SplitCifarBaselineExperiment(training), axis="")
    tasks = training.tasks
    assert row["bytes"] == {"paper's count": tasks * 400_240 // 20, "vectors": tasks * 4 * (2_703 + 165 + 1_500)}


@pytest.mark.parametrize("transfer", ["none", "masks"])
def test_transfer_speed(tmp_path: Path, environment: Environment, transfer: Transfer) -> None:
    training = TransferSpeedTraining(
        transfer=transfer,
        tasks=2,
        epochs=None,
        steps=2,
        batch_size=4,
        first_epochs=None,
        first_steps=3,
        budgets=(1, 4),
    )
    (row,) = made(tmp_path, environment, TransferSpeedExperiment(training))
    assert list(row["figures"]["accuracy %"]) == ["1", "4"]


def test_split_imagenet_on_a_folder_of_its_shape(tmp_path: Path) -> None:
    """Nobody can download ImageNet here; what the command does with it must hold for a few small images."""
    image = pytest.importorskip("PIL.Image")
    for half in ("train", "val"):
        for number in range(2):
            folder = tmp_path / "imagenet" / half / f"n{number}"
            folder.mkdir(parents=True)
            for copy in range(2):
                image.new("RGB", (40, 36), (60 * number, 90, 50 * copy)).save(folder / f"{copy}.png")
    training = ImagenetTraining(classes_per_task=2, epochs=None, steps=1, batch_size=2, size=32)
    environment = Environment(torch.device("cpu"), tmp_path)
    (row,) = made(tmp_path / "out", environment, SplitImagenetExperiment(training, Budget(4)), axis="")
    assert list(row["per task"]) == ["classes-0-1"]
    assert row["note"] == "made from 1 of 100 tasks; imagenet has 2 classes"
    assert row["bytes"]["masks"] > 0


def test_tiny_imagenet_goes_on_where_it_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both bounds, and a run that ends after its first task: the next one learns only the second."""
    image = pytest.importorskip("PIL.Image")
    for half in ("train", "val"):
        for number in range(4):
            folder = tmp_path / "tiny-imagenet" / half / f"n{number}" / "images"
            folder.mkdir(parents=True)
            for copy in range(2):
                image.new("RGB", (32, 32), (60 * number, 90, 50 * copy)).save(folder / f"{copy}.JPEG")
    monkeypatch.setattr(nets, "resnet50", lambda outputs: nets.gem_resnet18(outputs))
    training = ImagenetTraining(
        tasks=2, classes_per_task=2, epochs=None, steps=1, batch_size=2, size=32, source="tiny-imagenet"
    )
    environment, learned = Environment(torch.device("cpu"), tmp_path), []
    learn_many = SupSup.learn_many

    def killed(model: SupSup, tasks: Sequence[data.Task], **settings: Any) -> None:
        learned.append(len(tasks))
        learn_many(model, tasks[:1] if len(learned) == 1 else tasks, **settings)
        if len(learned) == 1:
            raise RuntimeError("killed")

    monkeypatch.setattr(SupSup, "learn_many", killed)
    experiment = SplitImagenetExperiment(training, Budget(4))
    with pytest.raises(AssertionError, match="killed"):
        made(tmp_path / "out", environment, experiment, axis="")
    (row,) = made(tmp_path / "out", environment, experiment, axis="")
    assert learned == [2, 1]
    assert len(row["per task"]) == 2
    assert row["bytes"]["paper's count"] > 0
    bounds = [ImagenetBoundsExperiment(training, CifarBaselineGrading(b)) for b in ("upper", "lower")]
    upper, lower = made(tmp_path / "bounds", environment, *bounds, axis="")
    assert lower["bytes"]["paper's count"] < upper["bytes"]["paper's count"]


def test_tiny_imagenet_says_what_folder_it_needs(environment: Environment) -> None:
    with pytest.raises(SupSupError, match=r"holds tiny-imagenet/train/ and tiny-imagenet/val/ \(unzip"):
        environment.tiny_imagenet()


def test_split_imagenet_says_what_folder_it_needs(environment: Environment) -> None:
    with pytest.raises(SupSupError, match="needs --data-dir with a folder that holds train/ and val/"):
        environment.imagenet(32)


@pytest.fixture
def coloured(monkeypatch: pytest.MonkeyPatch) -> Environment:
    """Pictures of six classes, each of a colour of its own, as CIFAR-100 and as Tiny-ImageNet."""
    labels = torch.arange(96) % 6
    shades = 40 * torch.tensor([[(c + 1) % 6, c, 5 - c] for c in range(6)])[labels].view(-1, 3, 1, 1)
    noise = torch.randint(0, 40, (96, 3, 16, 16), generator=torch.Generator().manual_seed(0))
    source = data.arrays((shades + noise).to(torch.uint8), labels, (shades + noise).to(torch.uint8), labels)
    environment = Environment(torch.device("cpu"))
    monkeypatch.setattr(Environment, "source", lambda environment, name: source)
    monkeypatch.setattr(Environment, "tiny_imagenet", lambda environment: source)
    return environment


def test_tasks_that_nobody_names_are_found_from_scratch(tmp_path: Path, coloured: Environment) -> None:
    training = ScratchTraining(
        tasks=3, source="cifar100", classes_per_task=2, widths=(8,), epochs=None, steps=30, batch_size=32
    )
    (row,) = made(tmp_path, coloured, ScratchUnnamedExperiment(training), axis="images")
    labels, tasks = row["figures"]["labels right %"], row["figures"]["task right %"]
    assert list(tasks) == ["1", "4", "16", "1, small profiles", "1, large profiles"]
    small, large = (row["bytes"][f"beside masks, {size} profiles"] for size in ("small", "large"))
    assert small <= row["bytes"]["beside masks"] < large
    assert min(labels["from one image, small profiles"], labels["from one image, large profiles"]) > 50
    assert tasks["16"] == 100
    assert tasks["1"] >= 90
    assert labels["from one image"] <= min(labels["task given"], tasks["1"])
    assert row["bytes"]["beside masks"] > 0
    path = tmp_path / "tiny" / "row0-seed0.json"
    path.write_text(json.dumps(row | {"bytes": row["bytes"] | {"beside masks": 1}}))
    assert add_bytes(tmp_path, "tiny") == [path]
    assert json.loads(path.read_text()) == row, "counted again as it was"
    assert row["settings"]["defaults"]["recipe"]["self labels"] == "rotations"
    assert row["settings"]["defaults"]["finding"]["tried"] == 8
    assert list(row["per task"]) == supsup.load(tmp_path / "tiny" / "row0-seed0.supsup", device="cpu").tasks


def test_a_label_of_the_wrong_task_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of noise are not told apart, and half of all labels are right by chance."""
    noise = torch.randint(0, 256, (200, 3, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    labels = torch.arange(100) % 10
    source = data.arrays(noise[:100], labels, noise[100:], labels)
    monkeypatch.setattr(Environment, "source", lambda environment, name: source)
    training = ScratchTraining(
        tasks=5, source="cifar100", classes_per_task=2, widths=(4,), epochs=None, steps=2, batch_size=4
    )
    (row,) = made(tmp_path, Environment(torch.device("cpu")), ScratchUnnamedExperiment(training), axis="images")
    assert row["figures"]["labels right %"]["from one image"] < row["figures"]["task right %"]["1"] < 40


def test_tasks_that_nobody_names_are_found_by_a_pretrained_network(
    tmp_path: Path, coloured: Environment, monkeypatch: pytest.MonkeyPatch, pretrained_net: nets.ImageNetwork
) -> None:
    """Images reach it as its weights expect them."""
    asked: list[tuple[Any, ...]] = []

    def small(outputs: int, *, pretrained: bool, size: int) -> nets.ImageNetwork:
        asked.append((outputs, pretrained, size))
        return nets.mobilenet_v2(outputs, pretrained=pretrained, size=size)

    monkeypatch.setattr(nets, "efficientnet_lite0", small)
    training = PretrainedTraining(
        tasks=3, source="tiny-imagenet", classes_per_task=2, epochs=None, steps=2, batch_size=16, size=32
    )
    (row,) = made(tmp_path, coloured, PretrainedUnnamedExperiment(training), axis="images")
    assert asked == [(2, True, 32)]
    assert row["figures"]["task right %"]["16"] == 100
    model = supsup.load(tmp_path / "tiny" / "row0-seed0.supsup", device="cpu")
    assert state_of(model).net.pretrained
    assert model.task_info(model.tasks[0]).inputs is None


def test_mask_overhead(tmp_path: Path, environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    from supsup import nets

    monkeypatch.setattr(nets, "resnet50", lambda outputs: nets.ResNet(outputs, (1,), (4,)))
    training = OverheadTraining(image=(3, 8, 8), tasks=2, precision="float32")
    (row,) = made(tmp_path, environment, OverheadExperiment(training), axis="")
    assert row["figures"]["masking, % of a forward pass"][""] > 0


def test_the_partition_of_classes_follows_the_seed(environment: Environment) -> None:
    names = [[task.name for task in environment.cifar_stream(2, seed)] for seed in (0, 1)]
    assert names[0] != names[1]
    assert environment.source("mnist") is environment.source("mnist")
    assert isinstance(environment.source("cifar100"), data.Source)


def test_kernels_are_made_on_another_model_before_the_clock_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU: of the same widths, with the same settings, on two tasks; elsewhere nothing is made."""
    made: list[tuple[Any, ...]] = []

    class Watched:
        def __init__(self, net: nets.FullyConnected, **settings: Any) -> None:
            made.append((net.widths, settings))

        def learn_many(self, stream: data.Stream, show_progress: bool) -> None:
            made.append(([task.name for task in stream], show_progress))

    model = SupSup(nets.lenet_300_100(outputs=20), device="cpu")
    stream = data.permuted(data.digits(), 5)
    masks._compile(model, nets.lenet_300_100(outputs=20), stream)
    monkeypatch.setattr(masks, "SupSup", Watched)
    cuda = torch.device("cuda")
    other: Any = SimpleNamespace(device=cuda, recipe="r", inference="i")
    masks._compile(other, nets.lenet_300_100(outputs=20), stream)
    settings = {"recipe": "r", "inference": "i", "device": cuda}
    assert made == [((784, 300, 100, 20), settings), (["permutation-0", "permutation-1"], False)]


def silent(grade: Any) -> Any:
    def call(*given: Any, show_progress: bool | None = None, **how: Any) -> Any:
        assert show_progress is False, "a bar for each row would run into the one of the learning"
        return grade(*given, show_progress=show_progress, **how)

    return call


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which learning takes ten seconds a call and grading one; nothing else takes any."""
    now = [100.0]

    def taking(seconds: float, work: Any) -> Any:
        def call(*given: Any, **how: Any) -> Any:
            now[0] += seconds
            return work(*given, **how)

        return call

    monkeypatch.setattr(Environment, "clock", lambda environment: now[0])
    monkeypatch.setattr(baselines, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    for run in (masks, cifar):
        monkeypatch.setattr(run, "plain_way", lambda *given: {"plain": 7.0})
    monkeypatch.setattr(baselines, "plain_baseline", lambda *given: {"plain": 7.0})
    monkeypatch.setattr(cifar_baselines, "learn_side_by_side", each_alone)
    for owner, name in (
        (SupSup, "learn_many"),
        (Baseline, "learn_many"),
        (Baseline, "learning"),
        (cifar, "learn_with_models"),
        (baselines, "learn_side_by_side"),
        (cifar_baselines, "learn_side_by_side"),
    ):
        monkeypatch.setattr(owner, name, taking(10, getattr(owner, name)))
    for run in (masks, baselines, cifar, cifar_baselines):
        monkeypatch.setattr(run, "evaluate", taking(1, run.evaluate))
    for run in (cifar, cifar_baselines):
        monkeypatch.setattr(run, "evaluate", silent(run.evaluate))


@pytest.mark.usefixtures("timed")
def test_seconds_are_of_what_they_name(
    tmp_path: Path, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learning alone and grading alone, row by row; each one's share where several go in step."""

    def seconds(*experiments: Experiment, seeds: int = 1) -> list[dict[str, float]]:
        folder = tmp_path / experiments[0].kind
        return [row["seconds"] for row in made(folder, environment, *experiments, axis="", seeds=seeds)]

    usual = {"learning": 10, "grading": 1}
    scenarios: tuple[Literal["GG", "GNu"], ...] = ("GG", "GNu")
    gradings = [SupSupGrading(scenario=scenario, stages=(2,)) for scenario in scenarios]
    mnist = MnistTraining("permuted", "784-9", 20, 2, 2)
    assert seconds(*(SupSupExperiment(mnist, each) for each in gradings)) == [usual | {"plain": 7}] * 2
    given = [BatchEGrading(scenario="GG", stages=(stage,)) for stage in (1, 2)]
    batche = BatchETraining("permuted", "784-9", 20, 2, 2, base="random")
    (one, other) = seconds(*(BatchEExperiment(batche, each) for each in given))
    assert one == other == {"learning": one["learning"], "grading": 1, "plain": 7}
    assert one["learning"] >= 10
    assert seconds(PSPExperiment(STAGED), seeds=2) == [{"learning": 10, "grading": 2}] * 2
    training = CifarTraining(transfer="masks", tasks=2, epochs=None, steps=1, batch_size=4)
    rows = seconds(*(SplitCifarExperiment(training, Budget(budget)) for budget in (1, 2)))
    assert rows == [usual | {"plain": 7}] * 2
    assert seconds(SplitCifarBaselineExperiment(baseline_training("heads-random"))) == [usual]
    monkeypatch.setattr(cifar_baselines, "most_at_once", lambda *given: 2)
    shared = seconds(SplitCifarBaselineExperiment(baseline_training("bounds"), CifarBaselineGrading("upper")), seeds=2)
    assert shared == [usual] * 2, "ten seconds for each of two tasks of two seeds"
    speed = TransferSpeedTraining(
        transfer="masks", tasks=2, epochs=None, steps=1, batch_size=4, first_epochs=None, first_steps=1, budgets=(1,)
    )
    assert seconds(TransferSpeedExperiment(speed)) == [{"learning": 20, "grading": 1}]


def test_a_row_of_hopsupsup_has_the_figures_of_its_seed() -> None:
    accuracy, distance = torch.tensor([[1.0, 0.5], [0.25, 0.123456]]), torch.tensor([[0.0, 0.0], [0.009, 0.1234567]])
    ways = [torch.tensor([[0.12345, 1.0]]), torch.tensor([[0.5, 0.25]])]
    recalled = Recall(accuracy, distance, torch.tensor([[1.0, 2.0], [3.0, 0.12345]]), 6.0, ways)
    done = hop.HopfieldResult(["a", "b"], [3, 4], recalled, {"paper": recalled}, 8.0, [10, 12])
    rows = []
    for number, procedure in ((0, "paper"), (1, "paper"), (1, "own")):
        asked = HopfieldExperiment(HopfieldTraining(), HopfieldGrading(procedure))  # type: ignore[arg-type]
        wanted = PlannedRow("tiny", "row", "", "full", asked, Path())
        rows.append(hop.finished(wanted, 3 + number, number, done))
    first, second, own = rows
    assert (first.seed, second.seed, first.at_once) == (3, 4, 2)
    assert [row.figures["accuracy %"][""] for row in rows] == pytest.approx([75, 18.6728, 18.6728])
    assert [row.figures.get("right masks %") for row in rows] == [{"": 100.0}, {"": 50.0}, None]
    assert second.per_task == {"a": 25.0, "b": 12.346}
    assert second.trace == {"distance": {"a": 0.009, "b": 0.12346}, "entropy": {"a": 3.0, "b": 0.1235}}
    assert own.trace == {}
    assert first.trace["distances on the way"] == {"a": [[0.1235, 1.0]], "b": [[0.5, 0.25]]}
    assert first.trace["tasks"] == ["a", "b"]
    assert all(row.seconds == {"learning": 4.0, "grading": 3.0} for row in rows)
    assert all(row.bytes == {"Ψ and μ": 12} for row in rows)
