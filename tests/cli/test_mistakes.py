"""Whatever a user gets wrong, a command says so in one line that tells what to do, ends with 2 and changes nothing."""

import csv
import shutil
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import supsup
from supsup import HopSupSup, Recipe, SupSup, nets
from supsup.cli import main
from supsup.cli.commands import COMMANDS

Mistakes = list[tuple[list[object], str]]
COLOURS = {"red": (200, 30, 30), "green": (30, 200, 30)}


def run(*arguments: object) -> int:
    """The exit code of a command, as it is typed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["supsup", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
    return int(end.value.code or 0)


def pictures(folder: Path, classes: list[str], count: int) -> Path:
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.random.default_rng(number).normal(COLOURS[name], 25, (12, 12, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good and bad data, and models: `model` has learned pictures, `rows` a table, `own` is on a user's own module."""
    at = tmp_path_factory.mktemp("mistakes")
    pictures(at / "good", ["red", "green"], 4)
    shutil.copytree(at / "good", at / "tasks" / "one")
    for folder in ("empty", "bare/only"):
        (at / folder).mkdir(parents=True)
    pictures(at / "one-class", ["red"], 3)
    pictures(at / "lonely", ["red", "green"], 1)
    pictures(at / "broken", ["red", "green"], 3)
    (at / "broken" / "red" / "0.png").write_bytes(b"no picture")
    (at / "cut.png").write_bytes((at / "good" / "red" / "0.png").read_bytes()[:60])
    (at / "song.mp3").write_bytes(b"la")
    (at / "README.md").write_text("# A page\n" * 200)
    _tables(at)
    (at / "raises.py").write_text("def net(outputs):\n    raise KeyError('no')\n\n\ndef text():\n    return 'text'\n")
    (at / "wrong.py").write_text("def net(:\n")
    _models(at)
    return at


def _tables(at: Path) -> None:
    with (at / "table.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["year", "kind", "f", "g"])
        rows.writerows(["2000" if number % 2 else "2001", "ab"[number % 2], number, -number] for number in range(12))
    for name, text in {
        "text": "label,f\na,1\nb,x\na,2\nb,3\n",
        "ragged": "label,f\na,1,2\n",
        "head": "label,f\n",
        "nothing": "",
        "twice": "f,f\n1,2\n",
        "nan": "label,f\na,1\nb,nan\na,2\nb,3\n",
        "gap": "label,f\na,1\nb,\na,2\nb,3\n",
        "single": "label,f\na,1\nb,2\nb,3\n",
        "labels": "label\na\nb\n",
        "nan-row": "f,g\n1,2\nnan,1\n",
        "wide": "f,g,h\n1,2,3\n",
    }.items():
        (at / f"{name}.csv").write_text(text)
    (at / "binary.csv").write_bytes(bytes(range(256)))
    (at / "broken.parquet").write_bytes(b"PAR1 no")
    (at / "broken.npz").write_bytes(b"PK no")
    np.savez(at / "names.npz", a=np.zeros(3), b=np.zeros(3))
    np.savez(at / "objects.npz", x=np.array([None, {}], dtype=object), y=np.zeros(2))
    np.savez(at / "lengths.npz", x=np.zeros((4, 2)), y=np.zeros(3))
    np.savez(at / "words.npz", x=np.array(["a", "b"]))
    np.savez(at / "deep.npz", x=np.zeros((8, 2, 2, 2, 2)), y=np.arange(8) % 2)


def _models(at: Path) -> None:
    recipe = Recipe(steps=1, batch_size=4)
    model = SupSup(nets.FullyConnected((432, 8, 6)), recipe=recipe, device="cpu")
    model.learn((torch.randint(0, 256, (8, 3, 12, 12), dtype=torch.uint8), ["red", "green"] * 4), task="good")
    model.save(at / "model.supsup")
    rows = SupSup(nets.FullyConnected((2, 8, 6)), recipe=recipe, device="cpu")
    rows.learn((torch.rand(8, 2), ["a", "b"] * 4), task="table")
    rows.save(at / "rows.supsup")
    own = SupSup(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(432, 4)), recipe=recipe, device="cpu")
    own.learn((torch.rand(8, 3, 12, 12), torch.arange(8) % 2), task="good")
    own.save(at / "own.supsup")
    SupSup(nets.FullyConnected((432, 6)), device="cpu").save(at / "new-born.supsup")
    HopSupSup(nets.HopMLP((16, 32, 32, 4)), device="cpu").save(at / "hop.supsup")
    (at / "cut.supsup").write_bytes((at / "model.supsup").read_bytes()[:5000])
    (at / "no-bytes.supsup").write_bytes(b"")
    shutil.copy(at / "model.supsup", at / "headless.supsup")
    with closing(sqlite3.connect(at / "headless.supsup")) as connection, connection:
        for table in ("model", "spare"):
            connection.execute(f"DELETE FROM {table}")
    with closing(sqlite3.connect(at / "other.supsup")) as connection, connection:
        connection.execute("CREATE TABLE songs (name)")


def held(at: Path) -> dict[str, bytes]:
    """What is in the model files, but for the head in which SQLite counts how often they were opened for writing."""
    return {path.name: path.read_bytes()[100:] for path in at.glob("*.supsup")}


def learning(at: Path) -> Mistakes:
    new, model, good, table = at / "new.supsup", at / "model.supsup", at / "good", at / "table.csv"
    return [
        (["learn"], "Missing argument"),
        (["learn", new], "Missing argument"),
        (["learn", new, at / "nowhere"], "does not exist"),
        (["learn", new, at / "empty"], "no folders"),
        (["learn", new, at / "empty", "--each"], "no folders"),
        (["learn", new, at / "bare"], "no images"),
        (["learn", new, at / "one-class"], "two classes"),
        (["learn", new, at / "lonely"], "has 1 image"),
        (["learn", new, at / "broken"], "0.png"),
        (["learn", new, at / "tasks"], "add --each"),
        (["learn", new, at / "tasks", "--each", "--task", "x"], "--task names one"),
        (["learn", new, good, "--task", ""], "name"),
        (["learn", new, table], "--label COLUMN"),
        (["learn", new, table, "--label", "colour"], "no column 'colour'"),
        (["learn", new, table, "--label", "kind", "--task-column", "decade"], "no column 'decade'"),
        (["learn", new, table, "--label", "kind", "--task-column", "year", "--task", "x"], "--task names one"),
        (["learn", new, table, "--each"], "is a file"),
        (["learn", new, at / "text.csv"], "holds text"),
        (["learn", new, at / "ragged.csv"], "line 2"),
        (["learn", new, at / "head.csv"], "no rows"),
        (["learn", new, at / "nothing.csv"], "no rows"),
        (["learn", new, at / "twice.csv"], "one name"),
        (["learn", new, at / "binary.csv"], "cannot be read"),
        (["learn", new, at / "nan.csv"], "finite"),
        (["learn", new, at / "gap.csv"], "holds text"),
        (["learn", new, at / "single.csv"], "has 1 example"),
        (["learn", new, at / "labels.csv"], "no column but"),
        (["learn", new, at / "broken.parquet"], "Parquet"),
        (["learn", new, at / "broken.npz"], "plain arrays"),
        (["learn", new, at / "names.npz"], "x and y"),
        (["learn", new, at / "objects.npz"], "plain arrays"),
        (["learn", new, at / "lengths.npz"], "one label each"),
        (["learn", new, at / "deep.npz"], "no default network"),
        (["learn", new, at / "song.mp3"], "no table"),
        (["learn", new, good, "--net", "resnet51"], "unknown network"),
        (["learn", new, good, "--net", "mobilenet_v2"], "weights mobilenet_v2"),
        (["learn", new, good, "--net", "nowhere:net"], "cannot be imported"),
        (["learn", new, good, "--net", "wrong:net"], "cannot be imported"),
        (["learn", new, good, "--net", "raises:net"], "KeyError"),
        (["learn", new, good, "--net", "raises:text"], "must return an nn.Module"),
        (["learn", new, good, "--net", "raises:nothing"], "no function or class"),
        (["learn", new, good, "--device", "tpu"], "tpu"),
        (["learn", new, good, "--outputs", 1], "--outputs"),
        (["learn", new, good, "--outputs", 10**12], "outputs"),
        (["learn", new, good, "--size", 2], "--size"),
        (["learn", new, good, "--size", "large"], "--size"),
        (["learn", new, good, "--test-share", 2], "--test-share"),
        (["learn", new, good, "--seed", "x"], "--seed"),
        (["learn", new, good, "--cluster", "local:none"], "how many processes"),
        (["learn", new, good, "--epochs", 3], "No such option"),
        (["learn", at / "nowhere" / "m.supsup", good], "nowhere"),
        (["learn", at, good, "--task", "x"], "folder"),
        (["learn", good / "red" / "0.png", good], "not a supsup model"),
        (["learn", at / "cut.supsup", good], "supsup repair"),
        (["learn", at / "other.supsup", good], "not a supsup model"),
        (["learn", at / "hop.supsup", good], "HopSupSup"),
        (["learn", model, table, "--label", "kind", "--task", "w"], "shape"),
        (["learn", model, good, "--task", "x", "--net", "small_resnet"], "omit --net"),
        (["learn", at / "own.supsup", good, "--task", "x"], "your own module"),
    ]


def asking(at: Path) -> Mistakes:
    model, rows, good = at / "model.supsup", at / "rows.supsup", at / "good"
    return [
        (["predict", model], "Missing argument"),
        (["predict", at / "nowhere.supsup", good], "no file"),
        (["predict", at / "README.md", good], "not a supsup model"),
        (["predict", at / "no-bytes.supsup", good], "not a supsup model"),
        (["predict", at / "cut.supsup", good], "supsup repair"),
        (["predict", at / "hop.supsup", good], "HopSupSup"),
        (["predict", at / "own.supsup", good], "your own module"),
        (["predict", at / "own.supsup", good, "--net", "raises:net"], "KeyError"),
        (["predict", at / "own.supsup", good, "--net", "small_resnet"], "does not fit"),
        (["predict", at / "new-born.supsup", good], "no tasks yet"),
        (["predict", model, at / "nowhere.png"], "does not exist"),
        (["predict", model, at / "empty"], "no images"),
        (["predict", model, at / "broken" / "red" / "0.png"], "0.png"),
        (["predict", model, at / "cut.png"], "cut.png"),
        (["predict", model, at / "song.mp3"], "song.mp3"),
        (["predict", model, good, "--task", "hot"], "unknown task 'hot'"),
        (["predict", model, good, "--json", "--csv"], "not both"),
        (["predict", model, good, "--method", "guessing"], "--method"),
        (["predict", model, good, "--device", "tpu"], "tpu"),
        (["predict", model, at / "wide.csv"], "shape"),
        (["predict", rows, good], "not square colour images"),
        (["predict", rows, at / "wide.csv"], "shape"),
        (["predict", rows, at / "nan-row.csv"], "NaN"),
        (["predict", rows, at / "names.npz"], "called x"),
        (["predict", rows, at / "words.npz"], "numbers"),
        (["predict", rows, at / "table.csv", "--label", "colour"], "no column 'colour'"),
        (["evaluate", model, good, "--task", "hot"], "unknown task 'hot'"),
        (["evaluate", model, at / "nowhere"], "does not exist"),
        (["evaluate", model, at / "tasks", "--each"], "unknown task 'one'"),
        (["evaluate", model, at / "table.csv", "--label", "kind", "--task", "good"], "the data has none of them"),
        (["evaluate", at / "README.md", good], "not a supsup model"),
        (["evaluate", at / "cut.supsup", good], "supsup repair"),
        (["serve"], "Missing argument"),
        (["serve", at / "nowhere.supsup", "--port", 0], "no file"),
        (["serve", at / "README.md", "--port", 0], "not a supsup model"),
        (["serve", at / "cut.supsup", "--port", 0], "supsup repair"),
        (["serve", at / "own.supsup", "--port", 0], "your own module"),
        (["serve", model, "--port", 70_000], "port"),
        (["serve", model, "--port", "http"], "--port"),
        (["serve", model, "--host", "999.1.1.1", "--read-only"], "not an address of this machine"),
        (["serve", model, "--host", "0.0.0.0"], "token"),
        (["serve", model, "--token", "short"], "at least 8 characters"),
        (["serve", model, "--max-batch", 0], "max_batch"),
        (["serve", model, "--masks", "cloud"], "--masks"),
        (["serve", model, "--port", 0, "--method", "guessing"], "--method"),
    ]


def keeping(at: Path) -> Mistakes:
    """Commands on model files."""
    model = at / "model.supsup"
    looking: Mistakes = [
        ([command, at / name], said)
        for command in ("tasks", "info", "verify", "compact", "card")
        for name, said in (("nowhere", "no file"), ("good", "is a folder"))
    ]
    reading: Mistakes = [
        ([command, at / name], said)
        for command in ("tasks", "info", "compact", "card")
        for name, said in (("README.md", "not a supsup model"), ("cut.supsup", "supsup repair"))
    ]
    return [
        *looking,
        *reading,
        (["tasks"], "Missing argument"),
        (["tasks", model, "--yaml"], "No such option"),
        (["tasks", at / "headless.supsup"], "supsup repair"),
        (["repair", at / "nowhere"], "no file"),
        (["repair", at / "README.md", at / "rescued.supsup"], "nothing can be rescued"),
        (["repair", model, model], "exists"),
        (["forget", model], "Missing argument"),
        (["forget", model, "nobody", "--yes"], "no task 'nobody'"),
        (["forget", model, "good"], "add --yes"),
        (["forget", at / "README.md", "good", "--yes"], "not a supsup model"),
        (["forget", at / "hop.supsup", "good", "--yes"], "share one memory"),
        (["export", model, "good"], "give a task and a file"),
        (["export", model, "nobody", at / "x.onnx"], "unknown task 'nobody'"),
        (["export", model, "good", at / "x.pt"], "safetensors or"),
        (["export", model, "good", at / "nowhere" / "x.safetensors"], "nowhere"),
        (["export", model, "--all", at / "README.md"], "README.md"),
        (["export", model, "a", "b", "--all"], "takes no task name"),
        (["export", at / "own.supsup", "good", at / "x.safetensors"], "your own module"),
        (["export", at / "README.md", "good", at / "x.safetensors"], "not a supsup model"),
        (["export", at / "hop.supsup", "good", at / "x.safetensors"], "HopSupSup"),
        (["card", model, at / "README.md"], "add --yes"),
        (["card", model, at / "nowhere" / "card.md"], "nowhere"),
    ]


def measuring(at: Path) -> Mistakes:
    """Commands on the paper's experiments and on this machine."""
    return [
        (["lern"], "Did you mean 'learn'"),
        (["--verbose"], "No such option"),
        (["demo", "--data", "cats"], "cats"),
        (["demo", "--stream", "cats", "--out", at / "out"], "cats"),
        (["demo", "--tasks", "many"], "--tasks"),
        (["demo", "--tasks", -1, "--out", at / "out"], "tasks"),
        (["demo", "--net", "resnet51", "--out", at / "out"], "resnet51"),
        (["demo", "--method", "guessing", "--out", at / "out"], "guessing"),
        (["demo", "--model", at / "README.md", "--out", at / "out"], "README.md"),
        (["reproduce", "table-99"], "table-99"),
        (["reproduce", "hopfield", "--scale", "huge"], "huge"),
        (["reproduce", "hopfield", "--row", "nothing"], "nothing"),
        (["reproduce", "hopfield", "--seeds", 0, "--out", at / "out"], "seeds"),
        (["reproduce", "hopfield", "--data-dir", at / "nowhere", "--out", at / "out"], "nowhere"),
        (["report", "--results", at / "nowhere"], "does not exist"),
        (["report", "--results", at / "empty", "--out", at / "good"], "good"),
        (["bench", "nothing"], "No such command"),
        (["bench", "train", "--net", "resnet51"], "unknown network"),
        (["bench", "train", "--tasks", "some"], "tasks"),
        (["bench", "train", "--recipe", "secret"], "unknown recipe"),
        (["bench", "train", "--data", "cats"], "cats"),
        (["bench", "train", "--steps", 0], "--steps"),
        (["bench", "train", "--device", "tpu"], "tpu"),
        (["bench", "infer", "--model", at / "README.md"], "not a supsup model"),
    ]


@pytest.fixture
def typed_there(at: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands are typed in the folder; no weights are on this machine, and nobody is there to answer."""
    monkeypatch.chdir(at)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SUPSUP_DATA", raising=False)
    monkeypatch.setattr("supsup.nets.published._find_in_package", lambda _: None)
    monkeypatch.setattr("supsup.cli.console.is_interactive", lambda: False)


@pytest.mark.usefixtures("typed_there")
@pytest.mark.parametrize("kind", [learning, asking, keeping, measuring])
def test_mistakes_are_told_in_one_line(
    kind: Callable[[Path], Mistakes], at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = held(at)
    wrong = []
    for arguments, word in kind(at):
        capsys.readouterr()
        code, said = run(*arguments), capsys.readouterr().err
        if code != 2 or word not in said or not said.startswith("error ") or said.count("\n") != 1:
            wrong.append((" ".join(map(str, arguments)).replace(f"{at}/", ""), code, said))
        if (new := at / "new.supsup").exists():
            assert supsup.load(new).tasks == []
            new.unlink()
    assert not wrong, "\n".join(map(str, wrong))
    assert held(at) == before


def test_every_command_is_tried(at: Path) -> None:
    tried = [str(arguments[0]) for kind in (learning, asking, keeping, measuring) for arguments, _ in kind(at)]
    assert set(COMMANDS) <= set(tried)
    assert len(tried) >= 40


@pytest.mark.usefixtures("typed_there")
def test_a_port_that_is_taken(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run("serve", at / "model.supsup", "--port", port) == 2
    assert f"port {port} of 127.0.0.1 is in use" in capsys.readouterr().err


@pytest.mark.usefixtures("typed_there")
def test_damage_that_was_looked_for_is_no_mistake(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`verify` and `repair` end with 1 where they found some: a script can tell it from a path that is wrong."""
    for damaged in ("headless.supsup", "cut.supsup", "README.md"):
        assert run("verify", at / damaged) == 1
        assert "damaged" in capsys.readouterr().out
    assert run("repair", at / "headless.supsup", at / "rescued.model") == 1
    assert "1 tasks rescued" in capsys.readouterr().out
    assert supsup.load(at / "rescued.model", device="cpu").tasks == ["good"]
