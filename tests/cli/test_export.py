"""Subnetworks are exported one by one and all at once, also those of a network of one's own."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from typer.testing import CliRunner, Result

from supsup import Recipe, SupSup, SupSupError
from supsup.cli import app

OWN = """from torch import nn


def make(outputs):
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, outputs))
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model on a network of one's own with other outputs than usual, made by `supsup learn`."""
    (tmp_path / "exported_own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    chance = torch.Generator().manual_seed(0)
    lines = ["a,b,c,d,e,f,label,kind"]
    for number in range(40):
        values = torch.rand(6, generator=chance).tolist()
        lines.append(",".join([*(f"{value:.3f}" for value in values), f"{number % 2}", f"kind/{number // 20}"]))
    (tmp_path / "table.csv").write_text("\n".join(lines))
    net = ("--net", "exported_own:make")
    run("learn", "own.supsup", "table.csv", "--label", "label", "--task-column", "kind", "--outputs", "7", *net)
    return tmp_path / "own.supsup"


def test_all_tasks_of_a_network_of_one_s_own(own: Path) -> None:
    said = run("export", own, "--all", "out", "--net", "exported_own:make").stdout
    assert "2 tasks" in said
    files = sorted(Path("out").iterdir())
    assert [file.name for file in files] == ["kind%2F0.safetensors", "kind%2F1.safetensors"]
    for number, file in enumerate(files):
        with safe_open(file, "pt") as opened:
            assert opened.metadata()["task"] == f"kind/{number}"
            assert opened.get_tensor("2.weight").shape == (7, 5)
    with pytest.raises(SupSupError, match="Replace 2 files"):
        run("export", own, "--all", "out", "--net", "exported_own:make")
    run("export", own, "kind/1", "one.onnx", "--net", "exported_own:make")
    assert Path("one.onnx").is_file()


@pytest.mark.parametrize("arguments", [("a",), ("a", "b.onnx", "--all")])
def test_what_is_left_out_is_named(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    SupSup(torch.nn.Linear(3, 2), recipe=Recipe(steps=1), device="cpu").save(tmp_path / "m.supsup")
    with pytest.raises(SupSupError, match="supsup export FILE"):
        run("export", tmp_path / "m.supsup", *arguments)
