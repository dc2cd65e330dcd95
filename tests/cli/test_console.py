"""Nothing that cannot be undone happens unasked, an interruption is explained, and no file speaks to the terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

import supsup
from supsup import Recipe, SupSup, SupSupError, nets
from supsup.cli import app, main
from supsup.file.modelfile import ModelFile
from supsup.runtime.errors import Damaged, printable

ESCAPES = "\x1b]0;owned\x07\x1b[2J[bold]task[/]\r\u202e"


def run(*arguments: object, answer: str | None = None) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200"}, input=answer)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    model = SupSup(nets.FullyConnected((4, 3)), recipe=Recipe(steps=1, batch_size=2), device="cpu")
    for name in "abc":
        model.learn((torch.rand(4, 4), torch.tensor([0, 1, 2, 0])), task=name)
    model.save(tmp_path / "m.supsup")
    return tmp_path / "m.supsup"


def tasks(file: Path) -> list[str]:
    with ModelFile(file) as model:
        return model.names


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supsup.cli.console.is_interactive", lambda: True)


def test_forgetting_looks_at_all_names_before_it_forgets_one(file: Path) -> None:
    """Until now a and b were gone for good when the third name was wrong."""
    done = run("forget", "--yes", file, "a", "b", "wrong-name")
    assert isinstance(done.exception, SupSupError)
    assert "no task 'wrong-name', so nothing was changed" in str(done.exception)
    assert tasks(file) == ["a", "b", "c"]


def test_a_name_given_twice_is_forgotten_once(file: Path) -> None:
    assert "2 tasks left" in run("forget", "--yes", file, "a", "a").stdout


def test_a_script_has_to_say_yes(file: Path) -> None:
    done = run("forget", file, "a")
    assert "Not interactive: add --yes to confirm" in str(done.exception)
    assert tasks(file) == ["a", "b", "c"]


@pytest.mark.usefixtures("terminal")
def test_a_terminal_is_asked(file: Path) -> None:
    refused = run("forget", file, "a", answer="n\n")
    assert refused.exit_code == 1
    assert "Forget 1 of 3 tasks of m.supsup: a? This cannot be undone." in refused.output
    assert "nothing was changed" in refused.output
    assert tasks(file) == ["a", "b", "c"]
    assert run("forget", file, "a", answer="y\n").exit_code == 0
    assert tasks(file) == ["b", "c"]


def test_an_export_replaces_nothing_unasked(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    out.write_text("precious")
    assert "add --yes" in str(run("export", file, "a", out).exception)
    assert out.read_text() == "precious"
    assert run("export", "--yes", file, "a", out).exit_code == 0
    assert out.read_bytes() != b"precious"


def test_an_interrupted_forgetting_says_what_is_left(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    remove = ModelFile.remove

    def interrupted(self: ModelFile, name: str) -> None:
        if name == "b":
            raise KeyboardInterrupt
        remove(self, name)

    monkeypatch.setattr(ModelFile, "remove", interrupted)
    monkeypatch.setattr("sys.argv", ["supsup", "forget", "--yes", str(file), "a", "b", "c"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    assert (
        "interrupted: 1 of 3 tasks are forgotten; still there: b, c. Run the command again" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("command", "where", "said"),
    [
        (["tasks"], "supsup.cli.inspect.read_tasks", "nothing was changed"),
        (["verify"], "supsup.file.repair.verify", "nothing was changed"),
        (["repair"], "supsup.file.repair.repair", "was not written; run the command again"),
        (["compact"], "supsup.file.modelfile.ModelFile.compact", "every task is unchanged"),
    ],
)
def test_every_interruption_says_what_was_kept(
    file: Path,
    command: list[str],
    where: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(where, interrupted)
    monkeypatch.setattr("sys.argv", ["supsup", *command, str(file)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    replaced = capsys.readouterr().err
    assert replaced.startswith("interrupted: ")
    assert said in replaced


def test_damage_points_to_repair(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def damaged(*_: object) -> None:
        raise Damaged("something is wrong")

    monkeypatch.setattr("supsup.cli.inspect.ModelFile", damaged)
    monkeypatch.setattr("sys.argv", ["supsup", "tasks", str(file)])
    with pytest.raises(SystemExit):
        main()
    assert "`supsup repair FILE` writes the undamaged tasks" in capsys.readouterr().err


def test_an_error_of_the_system_is_one_line(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_room(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("supsup.cli.inspect.ModelFile", no_room)
    monkeypatch.setattr("sys.argv", ["supsup", "tasks", str(file)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    assert capsys.readouterr().err == "error [Errno 28] No space left on device\n"


def test_printable_shows_what_a_terminal_would_obey() -> None:
    assert printable("a\x1b[31mb\r\n\x07\u202e\ud800é") == r"a\x1b[31mb\r\n\x07\u202e\ud800é"
    assert printable("x" * 600) == "x" * 500 + "…"
    assert printable("x" * 300, most=3) == "xxx…"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A model whose names and notes are terminal escapes and markup."""
    model = SupSup(nets.FullyConnected((4, 3)), recipe=Recipe(steps=1, batch_size=2), device="cpu")
    model.notes = {ESCAPES: ESCAPES}
    model.learn((torch.rand(4, 4), torch.tensor([0, 1, 2, 0])), task=ESCAPES)
    model.save(tmp_path / "hostile.supsup")
    return tmp_path / "hostile.supsup"


def test_no_command_prints_what_a_file_would_have_a_terminal_do(hostile: Path, tmp_path: Path) -> None:
    """A task's name could set the title of a terminal, wipe it or hide what stands in it; markup could hide text."""
    out = tmp_path / "o.safetensors"
    commands: list[list[object]] = [
        ["tasks", hostile],
        ["info", hostile],
        ["verify", hostile],
        ["repair", hostile],
        ["export", hostile, ESCAPES, out],
        ["export", hostile, "nobody", out, "--yes"],
        ["forget", "--yes", hostile, "nobody"],
        ["forget", "--yes", hostile, ESCAPES],
    ]
    for command in commands:
        code = "from supsup.cli import main; main()"
        environment = os.environ | {"COLUMNS": "400", "PYTHONUTF8": "1"}
        done = subprocess.run([sys.executable, "-c", code, *map(str, command)], capture_output=True, env=environment)
        said = (done.stdout + done.stderr).decode()
        assert not [c for c in said if not c.isprintable() and c != "\n"], (command, said)
        if "nobody" not in command and command[0] not in ("verify", "repair"):
            assert r"\x1b]0;owned\x07\x1b[2J[bold]task[/]\r\u202e" in said, (command, said)
    assert supsup.load(hostile).tasks == []
