"""The long campaign in little: each part runs, goes on where it was left, and would notice what it looks for."""

import json
import runpy
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from supsup import SupSupError
from tests.attack import judge
from tests.attack.forging import BYSTANDER, bystander, sound
from tests.attack.interrupting import Scenario, fresh, interrupted, task
from tests.attack.killing import Kills
from tests.attack.mutating import MUTATIONS, mutated

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "trust" / "campaign.py"


def campaign(out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *words, "--out", str(out)], capture_output=True, text=True, timeout=300
    )


def test_every_part_of_it(tmp_path: Path) -> None:
    done = campaign(tmp_path, "all", "--count", "16", "--minutes", "0.05")
    assert done.returncode == 0, done.stderr[-3000:]
    for part in ("kills", "interrupts", "mutations", "threads"):
        figures = json.loads((tmp_path / f"{part}.json").read_text())
        assert (figures["wrong"], figures["problems"], figures["sound"]) == (0, [], True)
        assert figures["done"] > 0
        assert figures["counts"]
        assert figures["largest_process_bytes"] < 2 << 30
    more = figures_of(tmp_path / "mutations.json")["done"] + 5
    assert campaign(tmp_path, "mutations", "--count", str(more)).returncode == 0
    figures = figures_of(tmp_path / "mutations.json")
    assert figures["done"] == more
    assert sum(figures["counts"].get(name, 0) for name in MUTATIONS) == more


def figures_of(path: Path) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(path.read_text())
    return figures


def test_what_would_be_a_failure() -> None:
    figures = runpy.run_path(str(SCRIPT))["Figures"]
    cut = Counter({"cut short": 3})
    assert figures(counts=cut).sound("cut short")
    assert not figures().sound("cut short"), "no interrupt ever came"
    lost = figures(counts=cut)
    lost.add("kill 3", "task-1 is lost")
    assert (lost.sound("cut short"), lost.wrong, lost.problems) == (False, 1, ["kill 3: task-1 is lost"])
    assert not figures(counts=cut, longest_call_seconds=21.0).sound("cut short")
    assert not figures(counts=cut, largest_process_bytes=3 << 30).sound("cut short")


def test_a_program_in_the_background_is_interrupted_too() -> None:
    """A shell starts it with SIGINT ignored, and no interrupt would ever come."""
    earlier = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        model = fresh()
        assert interrupted(lambda: model.learn(task(0)), 1)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, earlier)


def test_a_wrong_model_would_be_noticed(tmp_path: Path) -> None:
    right, path = judge.sound_ones(), tmp_path / "model.supsup"
    bystander(path).write_bytes(BYSTANDER)
    path.write_bytes(sound("plain", 5))
    assert judge.judged(path, "one of them", "plain", right)["wrong"] == []
    assert judge.judged(path, "either", "plain", right)["wrong"] == ["a wrong model was loaded"]


def test_a_mutation_can_be_made_again(tmp_path: Path) -> None:
    made = set()
    for number in range(300):
        contents = []
        for folder in (tmp_path / f"{number}", tmp_path / f"{number} again"):
            folder.mkdir()
            made.add(mutated(folder / "m", number)[0])
            contents.append({file.name: file.read_bytes() for file in folder.iterdir()})
        assert contents[0] == contents[1]
    assert made == set(MUTATIONS)


@pytest.mark.parametrize(
    ("operation", "said", "wrong"),
    [
        ("learn", ["learned task-5"], "task-5 is lost"),
        ("forget", ["forgot task-2"], "task-2 is still there"),
        ("save", ["saved"], "2 tasks were saved"),
        ("repair", ["repaired"], "there is no file"),
    ],
)
def test_what_a_killed_process_lost_would_be_noticed(
    operation: str, said: list[str], wrong: str, tmp_path: Path
) -> None:
    kills = Kills(tmp_path)
    kills.prepare(tmp_path / "place")
    kills.check(tmp_path / "place", operation, ["begin"])
    with pytest.raises((AssertionError, SupSupError), match=wrong):
        kills.check(tmp_path / "place", operation, ["begin", *said])


def test_a_task_that_should_not_be_there_would_be_noticed(tmp_path: Path) -> None:
    scenario = Scenario(tmp_path, "learn")
    scenario.call()
    scenario.check()
    scenario._model.learn(task(20))
    with pytest.raises(AssertionError, match="the tasks are"):
        scenario.check()
