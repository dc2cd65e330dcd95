"""`supsup bench` at a size that takes a moment: every figure is there."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from supsup import Inference, SupSup, nets
from supsup.cli import app
from supsup.data import Stream
from supsup_paper.bench import Machine, bench_inference
from supsup_paper.bench import inference as inferring
from supsup_paper.bench.inference import single_images
from supsup_paper.bench.masking import with_random_masks


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["bench", *arguments, "--device", "cpu"])
    assert done.exit_code == 0, done.output
    return done.output


def test_train(tmp_path: Path) -> None:
    target = tmp_path / "results" / "bench-train.json"
    run("train", "--tasks", "1,2", "--steps", "3", "--outputs", "20", "--json", str(target))
    record = json.loads(target.read_text())
    assert [row["tasks"] for row in record["rows"]] == [1, 2]
    for row in record["rows"]:
        assert row["seconds"] > 0
        assert row["floor µs"] > 0
    assert target.with_suffix(".svg").exists()
    assert "device" in record["made by"]


def test_train_a_network_of_one_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By import path, from the present folder, with another recipe; the record says who trained it."""
    (tmp_path / "mine.py").write_text(
        "from torch import nn\ndef net(outputs):\n"
        "    return nn.Sequential(nn.Conv2d(1, 4, 5, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, outputs))\n"
        "nothing = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    target = tmp_path / "own.json"
    size = ("--tasks", "2", "--steps", "3", "--outputs", "10", "--json", str(target))
    run("train", "--net", "mine:net", "--recipe", "split-cifar100", *size)
    (row,) = json.loads(target.read_text())["rows"]
    assert row["executor"] == "plain"
    assert row["floor µs"] > 0
    for net, said in (
        ("mine:nothing", "no function"),
        ("nowhere:net", "cannot be imported"),
        ("lenet", "unknown network"),
    ):
        done = CliRunner().invoke(app, ["bench", "train", "--net", net])
        assert done.exit_code != 0
        assert said in done.output + str(done.exception)


def test_train_unannounced() -> None:
    assert "masks" in run("train", "--tasks", "2", "--steps", "3", "--outputs", "20", "--unannounced")


def test_infer(tmp_path: Path) -> None:
    """The figures of a whole run come from it too: learning, grading, and how many tasks were right."""
    target = tmp_path / "bench-infer.json"
    size = ("--tasks", "3", "--steps", "40", "--images", "6", "--outputs", "20", "--batch", "4")
    output = run("infer", *size, "--json", str(target))
    for word in ("lone image ms", "same as exact", "bytes read", "learning and grading seconds"):
        assert word in output
    record = json.loads(target.read_text())
    assert record["learned_on"] == "cpu"
    for row in record["rows"]:
        assert row["learning and grading seconds"] == row["learning seconds"] + row["grading seconds"]
        assert row["graded images"] == 6
        assert 0 <= row["task right"] <= 1
    assert record["rows"][0]["same as exact"] == 1


def test_a_grader_gives_the_exact_answers(learned: SupSup, stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exact answers come from the faster copy, those from few coordinates from the model that is measured."""
    monkeypatch.setattr(inferring, "_ONE_BY_ONE", 4)
    x, names = single_images(stream[:4], 7)
    grader = learned.to("cpu")
    asked: dict[str, int] = {"model": 0, "grader": 0}

    def counted(who: str, answer: Callable[..., list[str]]) -> Callable[..., list[str]]:
        def count(*args: Any, **how: Any) -> list[str]:
            asked[who] += len(args[0])
            return answer(*args, **how)

        return count

    model = learned.to("cpu")
    monkeypatch.setattr(model, "infer_task", counted("model", model.infer_task))
    monkeypatch.setattr(grader, "infer_task", counted("grader", grader.infer_task))
    settings = {"exact": Inference(), "few": Inference(coordinates=4096)}
    rows = bench_inference(model, x, names, Machine(1e9, 1e9), settings, 2, grader)
    assert asked == {"model": 4 * 2 + 4, "grader": 7}  # a batch of 2 is timed 4 times
    assert [row.graded_images for row in rows] == [7, 4]
    assert rows[1].same_as_exact == 1
    assert rows[1].task_right == 1


def test_masking(tmp_path: Path) -> None:
    target = tmp_path / "masking.json"
    output = run("masking", "--net", "gem_resnet18", "--batch", "2", "--tasks", "3", "--json", str(target))
    assert "switching / plain forward" in output
    (row,) = json.loads(target.read_text())["rows"]
    assert row["weights"] == 1_091_740
    assert row["bytes moved by a switch"] >= row["weights"] * (8 + 1 / 8)
    assert row["precision"] == "float32"
    for figure in ("plain forward ms", "selected task forward ms", "switching µs", "floor of a switch µs"):
        assert row[figure] > 0


def test_random_masks_have_the_density_asked_for() -> None:
    model = with_random_masks(nets.lenet_300_100(10), (1, 28, 28), 2, 0.3, torch.device("cpu"))
    first, second = model.mask("random-0"), model.mask("random-1")
    for name, mask in first.items():
        assert abs(float(mask.float().mean()) - 0.3) < 0.03
        assert not torch.equal(mask, second[name])


@pytest.mark.parametrize("wrong", [("--net", "resnet"), ("--precision", "float8"), ("--batch", "0")])
def test_masking_asked_for_what_there_is_not(wrong: tuple[str, str]) -> None:
    done = CliRunner().invoke(app, ["bench", "masking", "--device", "cpu", *wrong])
    assert done.exit_code == 2


def test_memory() -> None:
    assert "one by one / bits" in run("memory", "--tasks", "3,9", "--outputs", "20")


def test_numbers_that_are_none() -> None:
    done = CliRunner().invoke(app, ["bench", "train", "--tasks", "many"])
    assert done.exit_code == 2
    assert "not a list of numbers" in done.output
