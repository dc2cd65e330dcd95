"""Threads that wait for one another do not spin where others need the cores."""

import subprocess
import sys
import threading

import pytest
import torch

from supsup import SupSup, nets
from supsup.runtime import process as waiting


@pytest.mark.parametrize(
    ("before", "policy"),
    [
        ("", "PASSIVE"),
        ("import os; os.environ['OMP_WAIT_POLICY'] = 'ACTIVE'", "ACTIVE"),
        ("import torch", None),
    ],
)
def test_threads_that_wait_give_way(before: str, policy: str | None) -> None:
    """On a busy machine torch's threads would else spin, waiting for one another, and nothing gets done."""
    code = f"import os; os.environ.pop('OMP_WAIT_POLICY', None)\n{before}\nimport supsup"
    said = subprocess.run(
        [sys.executable, "-c", f"{code}\nprint(os.environ.get('OMP_WAIT_POLICY'))"], capture_output=True, text=True
    )
    assert said.stdout.strip() == str(policy), said.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have another OpenMP")
@pytest.mark.parametrize(
    ("before", "load", "asleep"),
    [
        ("import torch; torch.set_num_threads(2)", "[100, 100, 0]", [1, 1, 0]),
        ("import torch; torch.set_num_threads(2)", "[0, 100, 100]", [0, 1, 1]),
        ("import torch; torch.set_num_threads(1)", "[100, 100, 0]", [0, 0, 0]),
        ("import torch; torch.set_num_threads(2); os.environ['GOMP_SPINCOUNT'] = '1000'", "[100, 100, 0]", [0, 0, 0]),
        ("import supsup, torch; torch.set_num_threads(2)", "[100, 100, 0]", [0, 0, 0]),
    ],
)
def test_where_torch_came_first_a_team_sleeps_while_the_machine_is_busy(
    before: str, load: str, asleep: list[int]
) -> None:
    """Its being there keeps libgomp from spinning; once, however many models there are."""
    code = f"""
import os
for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
    os.environ.pop(name, None)
{before}
import threading
from supsup import SupSup, nets
from supsup.baselines import LowerBound
from supsup.concurrency import waiting
waiting._EVERY, found = 0.0, []
for load in {load}:
    os.getloadavg = lambda: (load, 0, 0)
    models = [SupSup(nets.lenet_300_100(outputs=10), device="cpu"), LowerBound(nets.lenet_300_100(outputs=10))]
    found.append([thread.name for thread in threading.enumerate()].count(waiting.NAME))
print(found)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert said.stdout.strip() == str(asleep), said.stderr


def test_answers_heed_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    heeded: list[None] = []
    monkeypatch.setattr("supsup.model.predictor.heed_load", lambda: heeded.append(None))
    model = SupSup(nets.FullyConnected((4, 8, 2)), device="cpu")
    model.learn((torch.rand(40, 4), torch.arange(40) % 2), task="a")
    before = len(heeded)
    model.predict(torch.rand(3, 4), task="a")
    assert len(heeded) > before


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have another OpenMP")
def test_while_more_threads_work_than_there_are_cores_a_team_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    def asleep() -> int:
        return [thread.name for thread in threading.enumerate()].count(waiting.NAME)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for name in waiting._SAID:
            monkeypatch.delenv(name, raising=False)
        with waiting.without_spinning():
            assert asleep() == 1
        assert asleep() == 0
        monkeypatch.setenv("GOMP_SPINCOUNT", "1000")
        with waiting.without_spinning():
            assert asleep() == 0, "the user has said how threads wait"
    finally:
        torch.set_num_threads(before)
