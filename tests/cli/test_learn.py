"""The whole way without a line of Python: learn, predict, evaluate."""

import csv
import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_wine

import supsup
from supsup import nets
from supsup.cli import learn, main, networks
from supsup.data.files import ReadOptions, find_tasks
from supsup.file.repair import verify
from supsup.nets import imagenet
from supsup.training import auto_recipe as fitting

COLOURS = {"red": (200, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 200), "grey": (120, 120, 120)}


def run(*arguments: object) -> int:
    """The exit code of a command, as it is typed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["supsup", *map(str, arguments)])
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0)
    return 0


def pictures(folder: Path, classes: list[str], count: int = 12, seed: int = 0) -> Path:
    chance = np.random.default_rng(seed)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.clip(np.array(COLOURS[name]) + chance.normal(0, 25, (12, 12, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tasks, a folder each."""
    root = tmp_path_factory.mktemp("pictures") / "colours"
    pictures(root / "warm", ["red", "grey"])
    pictures(root / "cold", ["blue", "green", "grey"], seed=1)
    return root


@pytest.fixture(scope="module")
def model(folders: Path) -> Path:
    path = folders.parent / "colours.supsup"
    assert run("learn", path, folders, "--each", "--device", "cpu") == 0
    return path


@pytest.fixture
def wine(tmp_path: Path) -> Path:
    """A table with two tasks in a column of their own."""
    x, y = load_wine(return_X_y=True)
    path = tmp_path / "wine.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["year", "kind", *(f"f{number}" for number in range(x.shape[1]))])
        for number, (row, kind) in enumerate(zip(x.tolist(), y.tolist())):
            rows.writerow(["2001" if number % 2 else "2000", "abc"[kind], *row])
    return path


def test_folders_are_learned_and_asked_about(model: Path, folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(model).clean
    assert supsup.load(model).tasks == ["cold", "warm"]
    assert run("predict", model, folders / "warm" / "red", "--task", "warm", "--json") == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(answers) == 12
    assert {answer["label"] for answer in answers} == {"red"}
    assert all(answer["task"] == "warm" and answer["task_confidence"] == 1 for answer in answers)
    assert run("predict", model, folders / "cold" / "blue" / "0.png", "--csv") == 0
    names, answer = csv.reader(capsys.readouterr().out.splitlines())
    assert names == ["input", "label", "task", "confidence", "task_confidence"]
    assert answer[0].endswith("0.png")
    assert run("evaluate", model, folders, "--each", "--all", "--method", "exhaustive") == 0
    said = capsys.readouterr().out
    assert all(name in said for name in ("cold", "warm", "task correct", "all"))
    assert run("evaluate", model, folders, "--each", "--all", "--json") == 0
    counts = json.loads(capsys.readouterr().out)["tasks"]
    assert {name: counted["images"] for name, counted in counts.items()} == {"cold": 36, "warm": 24}
    for counted in counts.values():
        assert counted["images"] >= counted["task given"] >= counted["task unknown"]


def test_what_is_of_no_task_is_refused_where_asked(
    model: Path, folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = sorted((folders / "cold" / "blue").glob("*.png"))[0]
    noise = np.random.default_rng(0).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    assert run("predict", model, tmp_path / "noise.png", "--unknown") == 0
    assert "noise.png: none of these tasks" in capsys.readouterr().out.replace("\n", "")
    assert run("predict", model, tmp_path / "noise.png", known, "--unknown", "--json") == 0
    strange, usual = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (strange["task"], strange["label"]) == (None, None)
    assert (usual["task"], usual["label"]) == ("cold", "blue")


def test_the_answer_is_that_of_the_library(model: Path, folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted((folders / "cold" / "green").glob("*.png"))
    assert run("predict", model, *files, "--json") == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    raw = np.stack([np.array(Image.open(file)) for file in files])
    said = supsup.load(model, device="cpu").predict(raw)
    assert [answer["label"] for answer in answers] == said.names
    assert [answer["task"] for answer in answers] == said.tasks


def test_paths_come_from_stdin(
    model: Path, folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", [f"{folders / 'warm' / 'red' / '1.png'}\n", "\n"])
    assert run("predict", model, "-", "--task", "warm") == 0
    assert "1.png: red" in capsys.readouterr().out


def test_the_same_command_goes_on(folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is in the file stays, bit for bit; only the new folder is learned."""
    root, path = tmp_path / "colours", tmp_path / "m.supsup"
    shutil.copytree(folders / "cold", root / "cold")
    assert run("learn", path, root, "--each", "--device", "cpu") == 0
    before = supsup.load(path, device="cpu").mask("cold")
    shutil.copytree(folders / "warm", root / "warm")
    assert run("learn", path, root, "--each", "--device", "cpu") == 0
    assert "cold is already in" in capsys.readouterr().out
    after = supsup.load(path, device="cpu")
    assert after.tasks == ["cold", "warm"]
    assert all((after.mask("cold")[name] == bits).all() for name, bits in before.items())
    assert run("learn", path, root, "--each", "--device", "cpu") == 0, "nothing is left to do"


def test_tables(wine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wine.supsup"
    assert run("learn", path, wine, "--label", "kind", "--task-column", "year", "--device", "cpu") == 0
    learned = supsup.load(path, device="cpu")
    assert sorted(learned.tasks) == ["2000", "2001"]
    assert learned.task_info("2000").names == ("a", "b", "c")
    capsys.readouterr()
    assert run("evaluate", path, wine, "--label", "kind", "--task-column", "year") == 0
    assert "2001" in capsys.readouterr().out
    plain = tmp_path / "rows.csv"
    with wine.open() as file:
        rows = list(csv.reader(file))
    plain.write_text("\n".join(",".join(row[2:]) for row in rows))
    assert run("predict", path, plain, "--task", "2000", "--json") == 0
    answers = [json.loads(line)["label"] for line in capsys.readouterr().out.splitlines()]
    assert np.mean([answer == row[1] for answer, row in zip(answers, rows[1:])]) > 0.9


def test_parquet_and_arrays(wine: Path, tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    polars.read_csv(wine).drop("year").write_parquet(tmp_path / "wine.parquet")
    x, y = load_wine(return_X_y=True)
    np.savez(tmp_path / "wine.npz", x=x, y=y)
    path = tmp_path / "m.supsup"
    for file in ("wine.parquet", "wine.npz"):
        assert run("learn", path, tmp_path / file, "--label", "kind", "--task", file, "--device", "cpu") == 0
    assert supsup.load(path).tasks == ["wine.parquet", "wine.npz"]


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of weights as if it were the published one, where they are looked for; a few steps on small images."""
    path = tmp_path / "data" / "weights" / imagenet.MOBILENET_V2.file
    path.parent.mkdir(parents=True)
    torch.save(nets.mobilenet_v2(1000).state_dict(), path)
    published = replace(imagenet.MOBILENET_V2, sha256=hashlib.sha256(path.read_bytes()).hexdigest(), package=None)
    for module in (imagenet, networks):
        monkeypatch.setattr(module, "MOBILENET_V2", published)
    for module in (networks, learn):
        monkeypatch.setattr(module, "PHOTOGRAPHS", 32)
    for bound in ("_SHORTEST", "_LONGEST"):
        monkeypatch.setattr(fitting, bound, 2)
    monkeypatch.setenv("SUPSUP_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return path


def photographs(folder: Path, classes: list[str], count: int = 8) -> Path:
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.random.default_rng(number).normal(COLOURS[name], 25, (70, 90, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / name / f"{number}.jpg")
    return folder


def test_photographs_are_learned_on_a_pretrained_network(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its weights are found again by every command; where they are gone, each that needs them says so."""
    monkeypatch.chdir(tmp_path)
    photographs(tmp_path / "warm", ["red", "grey"])
    photographs(tmp_path / "cold", ["blue", "green"])
    for name in ("warm", "cold"):
        assert run("learn", "m.supsup", name, "--device", "cpu") == 0
    said = capsys.readouterr().out
    assert said.count("a new model on mobilenet_v2(outputs=100, pretrained=True, size=32, masks_from=19)") == 1
    assert "learned into m.supsup on mobilenet_v2" in said
    assert run("learn", "m.supsup", "warm", "--task", "x", "--net", "small_resnet") == 2
    assert "uses mobilenet_v2" in capsys.readouterr().err
    needing = [
        ("predict", "m.supsup", "warm/red", "--task", "warm", "--device", "cpu"),
        ("evaluate", "m.supsup", "cold", "--device", "cpu"),
        ("export", "m.supsup", "warm", "warm.safetensors", "--yes"),
    ]
    others = [("tasks", "m.supsup"), ("info", "m.supsup"), ("card", "m.supsup", "-"), ("verify", "m.supsup")]
    for command in (*needing, *others):
        assert run(*command) == 0
    assert "pretrained=True, size=32, masks_from=19)" in capsys.readouterr().out.replace("\\", "")
    weights.unlink()
    for command in others:
        assert run(*command) == 0
    for command in (*needing, ("serve", "m.supsup", "--port", "0"), ("learn", "m.supsup", "warm", "--task", "x")):
        capsys.readouterr()
        assert run(*command) == 2
        replaced = capsys.readouterr().err
        assert replaced.count("\n") == 1
        assert "Put the file into DIR/weights and set SUPSUP_DATA=DIR" in replaced


def test_without_its_weights_the_small_network_is_taken_and_said(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = find_tasks(photographs(tmp_path / "warm", ["red", "grey"]), ReadOptions())
    assert networks.default_network_name(found) == "mobilenet_v2"
    assert capsys.readouterr().out == ""
    weights.unlink()
    assert networks.default_network_name(found) is None
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("using small_resnet instead of the pretrained mobilenet_v2: the weights ")
    assert "SUPSUP_OFFLINE is set" in line
    assert "SUPSUP_DATA=DIR" in line


def test_tasks_are_learned_by_a_cluster(wine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And again: what is in the file already is left as it is."""
    model, command = tmp_path / "wine.supsup", ["--task-column", "year", "--label", "kind", "--device", "cpu"]
    assert run("learn", model, wine, *command, "--cluster", "local:1") == 0
    assert sorted(supsup.load(model).tasks) == ["2000", "2001"]
    assert "2001" in capsys.readouterr().out
    assert run("learn", model, wine, *command, "--cluster", "local:1") == 0
    assert verify(model).clean
    assert run("learn", tmp_path / "other", wine, *command, "--cluster", "local:none") != 0
    assert "how many processes" in capsys.readouterr().err
