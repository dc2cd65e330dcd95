"""Every experiment of the paper runs from end to end, small: each would otherwise fail only after hours on a GPU."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from supsup import SupSupError, data
from supsup.paper.catalogue import Entry, Row, settings_of
from supsup.paper.entries import ENTRIES
from supsup.paper.reproduction import reproduce
from supsup.paper.runs import RUNS
from supsup.paper.runs.cifar_rivals import model_of
from supsup.paper.sizes import add_bytes
from supsup.paper.workshop import Workshop

FC: dict[str, Any] = {"stream": "permuted", "net": "784-24", "outputs": 20, "tasks": 2, "steps": 4}
ROTATED = FC | {"stream": "rotated"}
SEQUENTIAL = FC | {"stages": [1, 2]}
GNU: dict[str, Any] = {"scenario": "GNu", "protocol": "paper-full-batch", "stages": [2]}
PICTURES: dict[str, Any] = {"tasks": 2, "epochs": None, "steps": 2, "batch size": 4}
EWC = SEQUENTIAL | {"batch size": 16, "strength": 1.0}


def made(
    folder: Path,
    shop: Workshop,
    run: str,
    training: dict[str, Any],
    *owns: dict[str, Any],
    axis: str = "x",
    seeds: int = 1,
) -> list[dict[str, Any]]:
    """The records of rows that share a training."""
    rows = tuple(Row(f"row{i}", "", settings_of(run, training, own)) for i, own in enumerate(owns))
    said: list[str] = []
    done = reproduce([Entry("tiny", "", "", rows, axis)], folder, "full", seeds, shop, said.append)
    assert done.failed == 0, "\n".join(said)
    return [
        json.loads((folder / "tiny" / f"{row.name}-seed{seed}.json").read_text())
        for row in rows
        for seed in range(seeds)
    ]


def test_every_kind_is_used_by_the_catalogue() -> None:
    assert {row.settings["run"] for entry in ENTRIES.values() for row in entry.rows} == set(RUNS)


def test_gamma_goes_from_one_shot_to_binary(tmp_path: Path, shop: Workshop) -> None:
    how = {"objective": "H", "layers": "all"}
    gamma = GNU | how | {"method": "gamma", "gammas": ["1/k", 0.25, 0.5], "stages": [4]}
    ends = [GNU | how | {"method": method, "stages": [4]} for method in ("one-shot", "binary")]
    curve, one_shot, binary = (row["figures"]["accuracy %"] for row in made(
        tmp_path, shop, "supsup", ROTATED | {"tasks": 4, "steps": 30}, gamma, *ends
    ))  # fmt: skip
    assert list(curve) == ["0.25", "0.5"]
    assert curve == {"0.25": one_shot["4"], "0.5": binary["4"]}


def test_unannounced(tmp_path: Path, shop: Workshop) -> None:
    (row,) = made(tmp_path, shop, "unannounced", SEQUENTIAL, {})
    assert list(row["figures"]["accuracy %"]) == ["1", "2"]
    opened = row.get("trace", {}).get("tasks that opened not one mask but", {})
    assert row["figures"]["masks opened"]["2"] == sum(opened.get(f"permutation-{i}", 1) for i in range(2))


def test_psp_with_seeds_in_step(tmp_path: Path, shop: Workshop) -> None:
    """Each seed's figures are its own: alone it gives the same."""
    rows = made(tmp_path / "both", shop, "psp", SEQUENTIAL, {}, seeds=2)
    (alone,) = made(tmp_path / "alone", shop, "psp", SEQUENTIAL, {})
    assert [row["seed"] for row in rows] == [0, 1]
    assert rows[0]["figures"] == alone["figures"]
    assert rows[0]["figures"] != rows[1]["figures"]
    assert rows[0]["bytes"] == {"paper's count": 4 * (784 * 24 + 24 * 20)}


def test_bounds_come_from_one_training(tmp_path: Path, shop: Workshop) -> None:
    lower, upper = made(tmp_path, shop, "bounds", SEQUENTIAL, {"keep": "lower"}, {"keep": "upper"})
    assert lower["figures"]["accuracy %"]["1"] == upper["figures"]["accuracy %"]["1"]
    assert lower["bytes"]["paper's count"] < upper["bytes"]["paper's count"]


@pytest.mark.parametrize("method", ["ewc", "si"])
def test_consolidation(tmp_path: Path, shop: Workshop, method: str) -> None:
    (row,) = made(tmp_path, shop, "consolidation", EWC | {"method": method}, {})
    assert list(row["figures"]["accuracy %"]) == ["1", "2"]


def test_batche_given_inferred_and_augmented(tmp_path: Path, shop: Workshop) -> None:
    one_shot = GNU | {"method": "one-shot", "objective": "H"}
    abatche = GNU | {"method": "abatche", "objective": "M", "images": 4}
    given = {"scenario": "GG", "stages": [1, 2]}
    rows = made(tmp_path, shop, "batche", FC | {"base": "random"}, given, one_shot, abatche)
    assert ["task right %" in row["figures"] for row in rows] == [False, True, True]
    for row in rows[1:]:
        assert row["figures"]["accuracy %"]["2"] <= rows[0]["figures"]["accuracy %"]["2"]


def test_hopfield_has_a_file_for_each_seed_and_the_way_of_the_first(tmp_path: Path, shop: Workshop) -> None:
    training = {"units": 48, "epochs": 1, "starts": 2, "tasks": 2}
    owns = [{"procedure": name} for name in ("paper", "best-of", "own")]
    rows = made(tmp_path, shop, "hopfield", training, *owns, axis="", seeds=2)
    assert [row["seed"] for row in rows] == [0, 1] * 3
    way = rows[0]["trace"]["distances on the way"]
    assert list(way) == ["classes-0-1", "classes-2-3"]
    assert len(way["classes-0-1"]) == 30
    assert "distances on the way" not in rows[1]["trace"]
    assert all(0 <= row["figures"]["accuracy %"][""] <= 100 for row in rows)
    assert "right masks %" not in rows[-1]["figures"]


@pytest.mark.parametrize("transfer", ["none", "masks"])
def test_split_cifar100_counts_the_bytes_of_the_models_it_keeps(tmp_path: Path, shop: Workshop, transfer: str) -> None:
    owns = [{"budget": 1}, {"budget": 8}]
    rows = made(tmp_path, shop, "split-cifar100", PICTURES | {"transfer": transfer}, *owns, axis="")
    small, large = (row["bytes"] for row in rows)
    assert small["paper's count"] == 2 * 408_430 // 20  # of 20 tasks, as the paper counts
    assert small["masks"] < large["masks"] < large["paper's count"]
    path = tmp_path / "tiny" / "row0-seed0.json"
    assert path.with_suffix(".supsup").exists()
    path.write_text(json.dumps(rows[0] | {"bytes": {}}))
    assert path in add_bytes(tmp_path, "tiny")
    assert json.loads(path.read_text()) == rows[0]


def test_split_cifar100_rivals_have_their_learning_rates(shop: Workshop) -> None:
    """They decide the rivals' accuracy by many points."""
    methods = ("batche", "batche-random-rank-one", "batche-random-heads", "heads", "heads-random", "bounds")
    models = [model_of(PICTURES | {"method": method}, 0, shop.device) for method in methods]
    assert [model.recipe.learning_rate for model in models] == [1e-2, 0.1, 0.1, 1e-2, 1e-2, 1e-3]
    assert [models[i].first.learning_rate for i in (0, 3)] == [1e-3, 1e-3]
    assert all(model.recipe.schedule == "cosine" and model.recipe.steps == 2 for model in models)


def test_split_cifar100_rivals(tmp_path: Path, shop: Workshop) -> None:
    owns = [{"keep": "lower"}, {"keep": "upper"}]
    lower, upper = made(tmp_path, shop, "split-cifar100-rivals", PICTURES | {"method": "bounds"}, *owns, axis="")
    assert list(lower["figures"]["accuracy %"]) == [""]
    assert lower["bytes"]["paper's count"] < upper["bytes"]["paper's count"]


def test_batche_with_random_weights_counts_a_head_where_the_paper_does(tmp_path: Path, shop: Workshop) -> None:
    training = PICTURES | {"method": "batche-random-rank-one"}
    (row,) = made(tmp_path, shop, "split-cifar100-rivals", training, {}, axis="")
    tasks = training["tasks"]
    assert row["bytes"] == {"paper's count": tasks * 400_240 // 20, "vectors": tasks * 4 * (2_703 + 165 + 1_500)}


@pytest.mark.parametrize("transfer", ["none", "masks"])
def test_transfer_speed(tmp_path: Path, shop: Workshop, transfer: str) -> None:
    training = PICTURES | {"transfer": transfer, "first epochs": None, "first steps": 3, "budgets": [1, 4]}
    (row,) = made(tmp_path, shop, "transfer-speed", training, {})
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
    training = {"tasks": 100, "classes per task": 2, "epochs": None, "steps": 1, "batch size": 2, "size": 32}
    shop = Workshop(torch.device("cpu"), tmp_path)
    (row,) = made(tmp_path / "out", shop, "split-imagenet", training, {"budget": 4}, axis="")
    assert list(row["per task"]) == ["classes-0-1"]
    assert row["note"] == "made from 1 of 100 tasks; imagenet has 2 classes"
    assert row["bytes"]["masks"] > 0


def test_split_imagenet_says_what_folder_it_needs(shop: Workshop) -> None:
    with pytest.raises(SupSupError, match="needs --data-dir with a folder that holds train/ and val/"):
        shop.imagenet(32)


def test_mask_overhead(tmp_path: Path, shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    from supsup import nets

    monkeypatch.setattr(nets, "resnet50", lambda outputs: nets.ResNet(outputs, (1,), (4,)))
    training = {"net": "resnet50", "image": [3, 8, 8], "batch": 1, "tasks": 2, "precision": "float32"}
    (row,) = made(tmp_path, shop, "mask-overhead", training, {}, axis="")
    assert row["figures"]["masking, % of a forward pass"][""] > 0


def test_the_partition_of_classes_follows_the_seed(shop: Workshop) -> None:
    names = [[task.name for task in shop.cifar_stream({"tasks": 2}, seed)] for seed in (0, 1)]
    assert names[0] != names[1]
    assert shop.source("mnist") is shop.source("mnist")
    assert isinstance(shop.source("cifar100"), data.Source)
