"""Hardened and odd places: a read-only install, no home, a broken cache, no stderr, a terminal that knows ASCII only.

Each in a process of its own. What root may write to anyway is blocked by a file where a folder should be.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import supsup
from supsup import HopSupSup, Recipe, SupSup, UnitRecipe, nets

SOURCE = Path(supsup.__file__).parent
KERNEL = """
import torch, supsup
from supsup.kernels.numba_masks import numba_update
from supsup.kernels.rule import Rule
scores, masked, rule = torch.ones(1, 2, 2), torch.zeros(1, 2, 2), Rule("sgd", 0.0, 0.0, 0.9, 0.99, 1e-8)
numba_update((torch.ones(2, 2), scores, masked, None, None), torch.ones(1, 2, 2), 1, 0.5, rule)
assert scores.tolist() == [[[0.5, 0.5], [0.5, 0.5]]] and masked.tolist() == [[[1.0, 1.0], [1.0, 1.0]]]
print("right", supsup.__file__)
"""


def run(code: str, *, path: Path = SOURCE.parent, **environment: str | None) -> subprocess.CompletedProcess[str]:
    """A program in a process of its own; a variable that is None is not there."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA", "XDG"))}
    known = {"PYTHONPATH": str(path), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}
    known = {name: value for name, value in {**clean, **known, **environment}.items() if value is not None}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=known, timeout=300)


@pytest.fixture
def blocked(tmp_path: Path) -> Path:
    """A copy of the package beside which no compiled code can be kept."""
    shutil.copytree(SOURCE, tmp_path / "supsup", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "supsup" / "kernels" / "__pycache__").write_text("no folder")
    return tmp_path


def test_a_read_only_install_without_a_writable_home(blocked: Path) -> None:
    """`import supsup` failed: numba found no place for its cache."""
    pytest.importorskip("numba")
    done = run(KERNEL, path=blocked, HOME="/dev/null")
    assert done.stdout == f"right {blocked / 'supsup' / '__init__.py'}\n", done.stderr


def test_no_home_and_an_unknown_user(blocked: Path, tmp_path: Path) -> None:
    pytest.importorskip("numba")
    (tmp_path / "here").mkdir()
    nobody = f"""
import os, pwd
os.chdir({str(tmp_path / "here")!r})
def unknown(*_): raise KeyError("uid not found")
pwd.getpwuid = unknown
"""
    asked = """
try:
    supsup.data.mnist()
except supsup.SupSupError as error:
    print(error)
"""
    done = run(nobody + KERNEL + asked, path=blocked, HOME=None, SUPSUP_DATA=None)
    assert done.stdout.startswith("right"), done.stderr
    assert "set SUPSUP_DATA" in done.stdout
    assert not list((tmp_path / "here").iterdir())  # such as a folder called ~


def test_a_damaged_cache_of_compiled_code(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    assert run(KERNEL, NUMBA_CACHE_DIR=str(tmp_path)).stdout.startswith("right")
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert kept
    for path in kept:
        path.write_bytes(path.read_bytes()[:-20] if path.suffix == ".nbc" else b"garbage")
    done = run(KERNEL, NUMBA_CACHE_DIR=str(tmp_path))
    assert done.stdout.startswith("right"), done.stderr


def test_a_full_disk_under_the_cache(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    full = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, {resource.RLIM_INFINITY}))\n"
    done = run(full + KERNEL, NUMBA_CACHE_DIR=str(tmp_path))
    assert done.stdout.startswith("right"), done.stderr


LEARN = """
import torch
from supsup import Recipe, SupSup, data, nets
x, y = torch.rand(8, 4), torch.arange(8) % 2
stream = data.permuted(data.arrays(x, y, x, y), 2)
model = SupSup(nets.FullyConnected((4, 3)), recipe=Recipe(steps=1, batch_size=2), device="cpu")
model.learn_many(stream[:1])
model.learn_many(stream[1:], show_progress=True)
print(*model.predict(x).tasks[:0], "learned")
"""


@pytest.mark.parametrize(
    "closed",
    [
        "import sys; sys.stderr.close()\n",
        "import sys; sys.stderr = sys.__stderr__ = None\n",
    ],
)
def test_without_stderr(closed: str) -> None:
    """A service may have none; a progress bar must not be what stops it."""
    done = run(closed + LEARN)
    assert done.stdout == "learned\n", done.stderr


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("places")
    x, y = torch.rand(8, 4), torch.arange(8) % 2
    model = SupSup(nets.FullyConnected((4, 3)), recipe=Recipe(steps=1, batch_size=2), device="cpu")
    hop = HopSupSup(nets.HopMLP((4, 16, 3)), recipe=UnitRecipe(batch_size=2), device="cpu")
    paths = [folder / "one → two.supsup", folder / "Ψ µ ±.supsup"]
    learners: tuple[SupSup | HopSupSup, ...] = (model, hop)
    for path, learner in zip(paths, learners):
        learner.notes["Größe"] = "± 3 µm → …"
        learner.learn((x, y), task="Übung ± → Ψ")
        learner.save(path)
    return paths


def test_a_terminal_that_knows_ascii_only(files: list[Path]) -> None:
    """One process for all commands: each may end with an exit, none with an error of an encoding."""
    commands = [[name, str(path)] for name in ("tasks", "info", "verify") for path in files]
    commands += [["compact", str(files[0])], ["forget", "--yes", str(files[0]), "Übung ± → Ψ"]]
    commands += [["--help"], ["demo", "--help"], ["reproduce", "--list"]]
    code = f"""
import sys
from supsup.cli import main
for command in {commands!r} + [["tasks", "nowhere µ"]]:
    sys.argv = ["supsup", *command]
    try:
        main()
    except SystemExit as end:
        assert not end.code or "nowhere µ" in command, command
print("all said")
"""
    done = run(code, PYTHONIOENCODING="ascii:strict")
    assert done.stdout.endswith("all said\n"), done.stderr
    assert done.stdout.isascii()
    assert "nowhere \\xb5" in done.stderr
