"""The record of where GPU tests last passed: a failure that is not counted would vouch for a commit that is broken."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
PATH = ROOT / "benchmarks" / "gpu" / "gpu_tests.py"
SCRIPT = runpy.run_path(str(PATH))
TESTS = """
import pytest

@pytest.fixture
def broken():
    yield
    raise ValueError

@pytest.mark.parametrize("number", [1, 2, 3])
def test_numbers(number):
    assert number != 2

@pytest.mark.skip(reason="no data")
def test_data(): ...

def test_after(broken): ...

def test_after_a_failure(broken):
    assert False
"""


def run_of(folder: Path, **files: str) -> dict[str, object]:
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    options = ["-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", "--junitxml=report.xml"]
    (folder / "pytest.ini").write_text("[pytest]\njunit_family=xunit1")
    subprocess.run([sys.executable, "-m", "pytest", *options], cwd=folder, check=False, capture_output=True)
    found: dict[str, object] = SCRIPT["outcomes"]((folder / "report.xml").read_text())
    return found


def test_what_pytest_says_is_counted(tmp_path: Path) -> None:
    found = run_of(tmp_path, some=TESTS, bare="import nothing_of_that_name")
    assert found["passed"] == 2
    names = ["test_numbers[2]", "test_after", "test_after_a_failure"]
    assert set(found["failures"]) == {"test_bare.py::test_bare", *(f"test_some.py::{name}" for name in names)}  # type: ignore[call-overload]
    assert found["failed"] == 4
    assert found["skipped"] == {"no data": 1}
    assert not SCRIPT["all_passed"](found)


def test_a_run_without_failures_has_passed_if_something_ran(tmp_path: Path) -> None:
    found = run_of(tmp_path, one="def test(): ...")
    assert SCRIPT["all_passed"](found)
    skipped = run_of(tmp_path, one="import pytest\n@pytest.mark.skip(reason='no GPU')\ndef test(): ...")
    assert not SCRIPT["all_passed"](skipped)


def test_a_failing_run_leaves_where_they_last_passed() -> None:
    good, bad = {"passed": 3, "failed": 0}, {"passed": 2, "failed": 1}
    first = SCRIPT["recorded"](good, {"commit": "a"}, {})
    assert first["last passed"] == first["made by"] == {"commit": "a"}
    second = SCRIPT["recorded"](bad, {"commit": "b"}, first)
    assert (second["last passed"], second["made by"], second["failed"]) == ({"commit": "a"}, {"commit": "b"}, 1)
    assert SCRIPT["recorded"](bad, {"commit": "c"}, {})["last passed"] is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(PATH), "--json", str(tmp_path / "found.json")])
    with pytest.raises(SystemExit, match="no GPU"):
        SCRIPT["main"]()
    assert not list(tmp_path.iterdir())


def test_every_test_for_a_gpu_is_marked() -> None:
    """Skipped by hand, it would be in no record."""
    files = SCRIPT["marked"]()
    assert {"tests/test_gpu.py", "tests/training/test_captured.py", "tests/data/test_task.py"} <= set(files)
    by_hand = re.compile(r"skipif\(not torch\.cuda")
    others = [path for path in (ROOT / "tests").rglob("*.py") if path.name != Path(__file__).name]
    assert [path.name for path in others if by_hand.search(path.read_text())] == [], "give it the mark gpu"
