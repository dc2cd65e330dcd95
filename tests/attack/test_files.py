"""Hostile files: whatever is handed over as a model file or lies beside one, the answer is right or an error of ours.

No other file is touched, nothing is written by who only reads, and nothing takes more memory or time than is stated.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What every command did with every crafted file, in a process of its own with little memory."""
    folder = tmp_path_factory.mktemp("crafted")
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    environment.pop("SUPSUP_MAX_BYTES", None)
    child = subprocess.run(
        [sys.executable, "-m", "tests.attack.judge", str(folder)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stderr[-3000:]
    verdicts: dict[str, Any] = json.loads((folder / "verdicts.json").read_text())
    assert [file.name for file in folder.iterdir() if file.name.startswith("supsup-")] == [], (
        "private copies are removed"
    )
    return verdicts


def test_every_crafted_file_is_refused_or_read_right(judged: dict[str, Any]) -> None:
    wrong = {name: verdict["wrong"] for name, verdict in judged["verdicts"].items() if verdict["wrong"]}
    shown = "\n".join(f"{name}: {problem}" for name, problems in wrong.items() for problem in problems)
    assert not wrong, f"{len(wrong)} of {len(judged['verdicts'])}\n{shown}"


def test_there_are_enough_of_them(judged: dict[str, Any]) -> None:
    assert len(judged["verdicts"]) >= 250


def test_none_takes_much_memory(judged: dict[str, Any]) -> None:
    assert judged["bytes"] < 2 << 30
