"""Whoever waits hears how long still, also where stderr is a file."""

import subprocess
import sys

import pytest

from supsup import progress


def test_a_line_every_few_seconds_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    lines = progress.Lines("learning", 20, "tasks", clock=lambda: now[0])
    for second in range(1, 41):
        now[0] = second
        lines(0.5)
    said = capsys.readouterr().err.splitlines()
    assert said == [f"learning: {5 * n} of 20 tasks, {40 - 10 * n} s left" for n in (1, 2, 3, 4)]


def test_short_work_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.bar("learning", 2) as advance:
        advance(2)
    assert capsys.readouterr().err == ""


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
