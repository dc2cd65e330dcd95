"""`supsup bench` at a size that takes a moment: every figure is there."""

import json
from pathlib import Path

from typer.testing import CliRunner

from supsup.cli import app


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
    assert target.with_suffix(".png").exists()
    assert "device" in record["made by"]


def test_train_unannounced() -> None:
    assert "masks" in run("train", "--tasks", "2", "--steps", "3", "--outputs", "20", "--unannounced")


def test_infer() -> None:
    output = run("infer", "--tasks", "3", "--steps", "2", "--images", "6", "--outputs", "20", "--batch", "4")
    for word in ("lone image ms", "same as exact", "bytes read"):
        assert word in output


def test_memory() -> None:
    assert "one by one / bits" in run("memory", "--tasks", "3,9", "--outputs", "20")


def test_numbers_that_are_none() -> None:
    done = CliRunner().invoke(app, ["bench", "train", "--tasks", "many"])
    assert done.exit_code == 2
    assert "not a list of numbers" in done.output
