"""Commands are found by name and imported only when they are called."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer import Typer
from typer.main import get_command

import supsup
from supsup.cli.commands import COMMANDS, load_command


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_of_a_command_what_it_says_itself(name: str) -> None:
    command = load_command(COMMANDS[name])
    assert command.help.split("\n\n")[0].replace("\n", " ") == COMMANDS[name].help


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
def test_help_and_version_do_not_wait_for_torch(arguments: list[str]) -> None:
    code = (
        "import sys\n"
        "from supsup.cli import main\n"
        f"sys.argv = ['supsup', *{arguments}]\n"
        "try:\n    main()\nfinally:\n    assert 'torch' not in sys.modules\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "supsup" in said.stdout
    assert "Traceback" not in said.stderr


def run_without_paper(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; sys.modules['supsup_paper'] = None; from supsup.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)


def test_commands_of_the_paper_say_what_to_do_where_its_package_is_missing() -> None:
    """The library works without the reproduction of the paper; its commands fail in one line."""
    assert "reproduce" in run_without_paper("--help").stdout
    assert run_without_paper("tasks", "--help").returncode == 0
    for name in ("demo", "reproduce", "report", "bench"):
        done = run_without_paper(name, "--help")
        assert done.returncode == 2
        assert done.stderr.startswith("error this command needs the package supsup_paper")
        assert len(done.stderr.splitlines()) == 1


def test_every_command_runs_from_a_source_tree(tmp_path: Path) -> None:
    """Nothing has to be installed: no entry point is looked up."""
    source = str(Path(supsup.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([source, *filter(None, sys.path[1:])])}
    done = subprocess.run(
        [sys.executable, "-m", "supsup", "bench", "--help"],
        capture_output=True, text=True, cwd=tmp_path, env=environment,
    )  # fmt: skip
    assert "train" in done.stdout


def test_an_unknown_command_names_one_that_is_alike() -> None:
    said = subprocess.run([sys.executable, "-m", "supsup", "taks"], capture_output=True, text=True)
    assert said.returncode == 2
    assert "tasks" in said.stderr


def test_a_shell_completes_commands_and_their_options() -> None:
    for typed, offered in (("supsup ver", "verify"), ("supsup tasks --he", "--help"), ("supsup bench tr", "train")):
        environment = {"_SUPSUP_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
        code = "import sys; sys.argv = ['supsup']; from supsup.cli import main; main()"
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
        assert offered in said.stdout.split(), said.stderr


def test_every_public_name_is_there() -> None:
    code = "import supsup\nfor name in supsup.__all__: assert getattr(supsup, name) is not None, name\n"
    code += "assert callable(supsup.evaluate) and set(supsup.__all__) <= set(dir(supsup))\n"
    code += "from supsup import *; assert evaluate is supsup.evaluate"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="nothing"):
        _ = supsup.nothing


def test_a_group_of_commands_is_a_group() -> None:
    assert isinstance(load_command(COMMANDS["bench"]), type(get_command(Typer(callback=lambda: None))))
