"""Several processes and one file: kill -9 at any moment, a second writer, readers beside a writer.

Eight kills by default; `SUPSUP_KILLS=200 pytest tests/test_processes.py -s` for more, with the counts printed.
"""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

import supsup
from supsup import Recipe, SupSup, SupSupError, nets
from supsup.file.repair import verify

LEARNER = """
import sys, torch
import supsup
torch.set_num_threads(1)
x, y = torch.randn(64, 200, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 10
warm = supsup.SupSup(supsup.nets.FullyConnected((200, 40, 20)), recipe=supsup.Recipe(steps=1), device="cpu")
warm.learn((x, y), task="whatever torch loads late")
with supsup.load(sys.argv[1], in_place=True, device="cpu") as model:
    print("ready", flush=True)
    first = int(model.tasks[-1].rpartition("-")[2]) + 1 if model.tasks else 0
    for number in range(first, first + 100_000):
        name = model.learn((x, y), task=f"task-{number}")
        print("learned", name, flush=True)
        if number % 5 == 4:
            model.forget(f"task-{number - 2}")
            print("forgot", f"task-{number - 2}", flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model file without tasks."""
    SupSup(nets.FullyConnected((200, 40, 20)), recipe=Recipe(steps=1), device="cpu").save(tmp_path / "model.supsup")
    return tmp_path / "model.supsup"


def test_nothing_returned_is_ever_lost(path: Path) -> None:
    kills, chance = int(os.environ.get("SUPSUP_KILLS", "8")), random.Random(0)
    known: set[str] = set()
    unfinished = 0
    for _ in range(kills):
        with subprocess.Popen([sys.executable, "-c", LEARNER, str(path)], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0, 0.3))
            child.kill()
            lines = [line.split() for line in child.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        unfinished += path.with_name(path.name + "-journal").exists()
        for what, name in lines:
            known = known | {name} if what == "learned" else known - {name}
        model = supsup.load(path, device="cpu")
        # Beyond what was printed, at most the one step under way when the kill came may be in the file.
        assert len(known ^ set(model.tasks)) <= 1
        assert verify(path).clean
        known = set(model.tasks)
    print(f"{kills} kills, {unfinished} in the middle of a commit, {len(known)} tasks in the file, none lost")
    assert len(known) > kills


def test_one_writer_and_many_readers_until_the_writer_dies(path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", LEARNER, str(path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        with pytest.raises(SupSupError, match="being written by another process"):
            supsup.load(path, in_place=True)
        seen = [len(supsup.load(path, device="cpu").tasks) for _ in range(60)]
        child.kill()
    with supsup.load(path, in_place=True, device="cpu") as model:
        assert len(model.tasks) >= seen[-1] - 1
    assert os.listdir(path.parent) == [path.name]
