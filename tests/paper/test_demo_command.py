"""The command line, run as a user would."""

import json
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from supsup import SupSupError, __version__, data, load
from supsup.cli import app
from supsup.evaluation.evaluator import Evaluation
from supsup.evaluation.grading import Grade
from supsup.file.modelfile import ModelFile
from supsup.serve.requests import PredictRequest
from supsup.serve.service import ModelService
from supsup_paper.commands import demo as module
from supsup_paper.commands.demo import DemoResult, DemoSettings, in_words


def supsup(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    code = "from supsup.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], cwd=cwd, capture_output=True, text=True)


def test_demo_prints_a_table_and_writes_a_plot_and_figures(tmp_path: Path) -> None:
    done = supsup("demo", "--tasks", "3", "--steps", "40", "--out", "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "SupSup, task unknown" in done.stdout
    assert "ordinary network" in (tmp_path / "here" / "demo.svg").read_text()
    figures = json.loads((tmp_path / "here" / "demo.json").read_text())
    assert figures["settings"]["tasks"] == 3
    assert set(figures["made by"]) >= {"command", "commit", "device", "torch"}
    given, unknown = (figures["lines"][f"SupSup, task {word}"] for word in ("given", "unknown"))
    assert len(unknown["per_task"]) == 3
    assert list(unknown["curve"]) == ["1", "2", "3"]
    assert abs(given["average_accuracy"] - unknown["average_accuracy"]) < 0.01
    said, ordinary = " ".join(done.stdout.split()), figures["lines"]["ordinary network"]
    assert "3 tasks were learned on one frozen network, none forgotten." in said
    assert f"With the task unknown it is found in {100 * unknown['task_accuracy']:.1f} % of the cases" in said
    assert f"one after the other kept {100 * ordinary['average_accuracy']:.1f} %." in said
    assert "Next: supsup serve here/demo.supsup opens the model as a page; draw a digit on it." in said
    is_worth_opening(tmp_path / "here" / "demo.supsup")


def is_worth_opening(path: Path) -> None:
    """The page over a demo's model lists its tasks with examples, and answers a digit as it would be drawn."""
    served = ModelService.open(path, read_only=True, device="cpu")
    tasks = served.tasks("", 0, 10)["tasks"]
    assert tasks[0]["name"] == "digits as drawn"
    assert [len(served.details(task["name"])["examples"]) for task in tasks] == [6, 6, 6]
    digits = data.digits().test_images[:200]
    (answer,) = served.predict([PredictRequest(digits.numpy())])
    assert not isinstance(answer, Exception)
    found = [each["task"] for each in answer["answers"]]
    assert found.count("digits as drawn") > 190
    served.close()


def test_words_say_what_was_lost() -> None:
    """A run in which something was forgotten must not end with "none forgotten"."""
    fresh, later = Grade(0.9, 1.0), Grade(0.5, 1.0)
    stages = [{"one": fresh}, {"one": later, "two": fresh}]
    lost = Evaluation("GG", "given", [1, 2], stages, {"one": fresh, "two": fresh}, 2)
    results = [DemoResult(label, lost, 1.0) for label in (module.GIVEN, module.UNKNOWN)]
    assert "2 tasks were learned on one frozen network, 40.00 points of accuracy lost since." in in_words(results)


def masks(path: Path) -> dict[str, bytes]:
    with ModelFile(path) as file:
        return {record.name: file.decoded(record).tobytes() for record in file.records()}


def test_a_killed_run_goes_on_and_ends_with_the_same_masks(tmp_path: Path) -> None:
    options = ["demo", "--tasks", "4", "--steps", "30", "--outputs", "20", "--no-strict", "--no-compare", "--out", "."]
    killed, straight = tmp_path / "killed.supsup", tmp_path / "straight.supsup"
    code = "from supsup.cli import main; main()"
    with subprocess.Popen([sys.executable, "-c", code, *options, "--model", str(killed)], cwd=tmp_path) as child:
        while child.poll() is None and not (killed.exists() and names(killed)):
            time.sleep(0.001)
        child.kill()
    assert 1 <= len(names(killed)) <= 4
    resumed = supsup(*options, "--model", "killed.supsup", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert "not learned again" in resumed.stdout
    assert supsup(*options, "--model", "straight.supsup", cwd=tmp_path).returncode == 0
    assert masks(killed) == masks(straight)
    other = supsup(*options, "--model", "straight.supsup", "--steps", "31", "--seed", "2", cwd=tmp_path)
    assert other.returncode == 2
    assert "seed 0 (now 2), steps 30 (now 31); go on with those, start again with --fresh" in " ".join(
        other.stderr.split()
    )


def names(path: Path) -> list[str]:
    with ModelFile(path) as file:
        return file.names


def test_demo_unannounced_on_rotations(tmp_path: Path) -> None:
    options = ["--stream", "rotated", "--tasks", "1", "--steps", "5", "--no-strict", "--no-compare", "--unannounced"]
    done = supsup("demo", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 masks were opened for 1 tasks." in done.stdout
    assert names(tmp_path / "runs" / "demo.supsup") == ["observed-0"]


def test_demo_with_a_hopfield_memory(tmp_path: Path) -> None:
    done = supsup("demo", "--hopfield", "--units", "256", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "recovered, best-of" in done.stdout
    assert "after the first task and after the last" in " ".join(done.stdout.split())
    figures = json.loads((tmp_path / "runs" / "hopfield.json").read_text())
    assert len(figures["tasks"]) == 5
    assert figures["masks as learned"]["accuracy %"] > 90
    assert (tmp_path / "runs" / "hopfield.svg").read_text().count(">images of ") == 5
    assert load(tmp_path / "runs" / "hopfield.supsup").tasks == figures["tasks"]


def test_mistakes_get_one_line_and_no_traceback(tmp_path: Path) -> None:
    for arguments, message in (
        (["--tasks", "0"], "no tasks"),
        (["--data", "cats"], "digits, mnist, fashion-mnist"),
        (["--method", "guess"], "known: auto, features, one-shot"),
        (["--hopfield", "--unannounced"], "leave out --unannounced"),
        (["--net", "brain"], "lenet_300_100, fc_1024"),
        (["--stream", "shuffled"], "drawn, permuted, rotated, split"),
        (["--data", "mnist", "--data-dir", "nowhere"], "nowhere"),
    ):
        done = supsup("demo", *arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert message in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr


def test_every_option_reaches_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An option that is read and then dropped would change nothing, and nobody would notice."""
    asked = DemoSettings(
        data="mnist",
        data_dir=tmp_path,
        stream="rotated",
        tasks=7,
        classes_per_task=5,
        net="fc_1024",
        outputs=11,
        steps=3,
        batch_size=4,
        seed=9,
        method="gamma",
        objective="G",
        layers="first",
        protocol="paper-full-batch",
        unannounced=True,
        units=8,
        strict=False,
        compare=False,
        device="cpu",
    )
    got: list[DemoSettings] = []

    def run(settings: DemoSettings, *_: object, **__: object) -> None:
        got.append(settings)
        raise SupSupError("that is enough")

    monkeypatch.setattr(module, "run_demo", run)
    monkeypatch.setattr(module, "run_and_save", run)
    options = []
    for option in fields(DemoSettings):
        name, value = option.name.replace("_", "-"), getattr(asked, option.name)
        assert option.name == "hopfield" or value != option.default, "the test must ask for something else"
        switch = f"--{name}" if value else f"--no-{name}"
        options += [switch] if isinstance(value, bool) else [f"--{name}", str(value)]
    options.remove("--no-hopfield")
    for more in ([], ["--hopfield"]):
        CliRunner().invoke(app, ["demo", *options, "--out", str(tmp_path), *more])
    assert got == [asked, replace(asked, hopfield=True)]


def test_without_matplotlib_there_is_no_plot_but_all_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours of learning must not end in an error because of a picture."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    small = ["--tasks", "1", "--steps", "2", "--no-strict", "--no-compare", "--device", "cpu", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, ["demo", *small])
    assert done.exit_code == 0, done.output
    assert "no plot (plots need matplotlib" in " ".join(done.output.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo.json", "demo.supsup"]


def test_help_and_version(tmp_path: Path) -> None:
    assert "--objective" in supsup("demo", "--help", cwd=tmp_path).stdout
    assert supsup("--version", cwd=tmp_path).stdout.strip() == f"supsup {__version__}"
