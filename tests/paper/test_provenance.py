"""A figure is worth what can be said of its origin: a commit that is not what ran would be worse than none."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import supsup_paper.provenance
from supsup_paper.provenance import provenance

SOURCE = Path(supsup_paper.provenance.__file__)


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A git tree that holds a copy of the module, committed."""
    shutil.copy(SOURCE, tmp_path / "provenance.py")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "provenance.py")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def commit_of(folder: Path, monkeypatch: pytest.MonkeyPatch, said: str | None = None) -> str:
    """What the module says of its commit when it lies in a folder and the variable is set so."""
    monkeypatch.setattr(supsup_paper.provenance, "__file__", str(folder / "provenance.py"))
    monkeypatch.delenv("SUPSUP_COMMIT", raising=False)
    if said is not None:
        monkeypatch.setenv("SUPSUP_COMMIT", said)
    return str(provenance(torch.device("cpu"))["commit"])


def test_the_commit_is_that_of_the_tree(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = git(tree, "rev-parse", "HEAD").strip()
    assert commit_of(tree, monkeypatch) == head
    assert commit_of(tree, monkeypatch, "") == head, "an empty variable is as if it were not set"
    assert commit_of(tree, monkeypatch, "abc") == "abc"


@pytest.mark.parametrize("said", [None, "", "abc", "abc+changes"])
def test_a_changed_tree_is_always_marked(said: str | None, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the variable says: figures of a changed tree under a clean commit could never be made again."""
    head = git(tree, "rev-parse", "HEAD").strip()
    (tree / "new.py").write_text("")
    expected = "abc+changes" if said and said.startswith("abc") else f"{head}+changes"
    assert commit_of(tree, monkeypatch, said) == expected


def test_without_a_tree_the_variable_is_all_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit_of(tmp_path, monkeypatch, "abc") == "abc"
    assert commit_of(tmp_path, monkeypatch) == ""


def test_a_tree_that_only_surrounds_the_source_is_not_its_own(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package inside somebody's repository: its commit and its changes say nothing of this code."""
    installed = tree / "site-packages"
    installed.mkdir()
    shutil.copy(SOURCE, installed / "provenance.py")
    assert commit_of(installed, monkeypatch) == ""
    assert commit_of(installed, monkeypatch, "abc") == "abc"


def test_a_record_says_how_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without paths of the machine: the last part of each is enough to repeat the command elsewhere."""
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/supsup", "reproduce", "gamma", "--out", "/tmp/results"])
    made = provenance(torch.device("cpu"))
    assert made["command"] == "supsup reproduce gamma --out results"
    assert made["torch"] == torch.__version__
    assert "(CPU)" in str(made["device"])


@pytest.mark.parametrize(
    ("started", "named"),
    [
        ("benchmarks/some.py", "benchmarks/some.py"),
        ("-m benchmarks.some", "-m benchmarks some"),
        ("-m other", "-m other"),
    ],
)
def test_a_program_is_named_as_somebody_would_start_it(started: str, named: str, tmp_path: Path) -> None:
    """A benchmark by the runner, which runs its module."""
    (tmp_path / "benchmarks").mkdir()
    for name in ("benchmarks/some.py", "other.py"):
        (tmp_path / name).write_text(
            "import torch\nfrom supsup_paper.provenance import provenance\n"
            "print(provenance(torch.device('cpu'))['command'])\n"
        )
    command = [sys.executable, *started.split(), "--tasks", "3"]
    said = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert said == f"python {named} --tasks 3\n"
