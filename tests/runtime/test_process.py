"""The library changes nothing in a process; `tune_process` does, once, where a command or a user calls it."""

import ctypes
import gc
import subprocess
import sys
from contextlib import suppress

import pytest

from supsup.runtime import process
from supsup.runtime.process import no_garbage_collection

WATCH = """
import ctypes, os, signal, sys, threading

def settings():
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    threads = sys.modules["torch"].get_num_threads() if "torch" in sys.modules else None
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TORCH")}  # torch's own
    return environment, handlers, threads, [thread.name for thread in threading.enumerate()]

called = []
look_up = ctypes.CDLL.__getattr__
ctypes.CDLL.__getattr__ = lambda library, name: (called.append(name), look_up(library, name))[1]
os.getloadavg = lambda: (100.0, 100.0, 100.0)  # a busy machine
"""
USE = """
from torch.nn import Conv2d, Flatten, Linear, Sequential
for net in (nets.FullyConnected((64, 16, 2)), Sequential(Conv2d(1, 4, 3), Flatten(), Linear(144, 2))):
    model = supsup.SupSup(net, recipe=supsup.Recipe(steps=3, batch_size=8), device="cpu")
    x, y = torch.rand(40, 1, 8, 8), torch.arange(40) % 2
    for name in "ab":
        model.learn((x, y), task=name, show_progress=False)
    model.learn_many([supsup.data.Task(name, supsup.data.Part(x, y), supsup.data.Part(x, y), 2) for name in "cd"])
    model.predict(x)
    model.observe(x, y)
    model.forget("a")
"""


def ran(code: str, **environment: str) -> str:
    clean = {"PATH": "", "PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean | environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_library_changes_nothing() -> None:
    """A program that imports supsup beside other work keeps its environment, handlers, threads and allocator."""
    code = (
        "before = settings()\nimport supsup\nassert settings() == before and 'torch' not in sys.modules\nprint('same')"
    )
    assert ran(WATCH + code) == "same"


def test_learning_and_predicting_change_nothing() -> None:
    """Nor does its first use: no sleeping threads on a busy machine, no mallopt, no handler left behind."""
    code = (
        """
import torch
before = settings()
import supsup
from supsup import nets
called.clear()
"""
        + USE
        + """
after = settings()
for old, new in zip(before, after):
    assert old == new, (old, new)
assert "mallopt" not in called
print("same")
"""
    )
    assert ran(WATCH + code) == "same"


TUNE = "import supsup; supsup.tune_process(); supsup.tune_process()\nprint(os.environ.get('OMP_WAIT_POLICY'), "
TEAMS = f"[thread.name for thread in threading.enumerate()].count({process.SLEEPING_TEAM!r}), called.count('mallopt'))"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have another OpenMP and C library")
@pytest.mark.parametrize(
    ("first", "environment", "found"),
    [
        ("", {}, "PASSIVE 0 1"),
        ("import torch", {}, "None 1 1"),
        ("import torch; torch.set_num_threads(1)", {}, "None 0 1"),
        ("", {"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE 0 1"),
        ("import torch", {"GOMP_SPINCOUNT": "1000"}, "None 0 1"),
        ("", {"MALLOC_TRIM_THRESHOLD_": "1"}, "PASSIVE 0 0"),
        ("", {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=1"}, "PASSIVE 0 0"),
    ],
    ids=lambda value: str(value) or "torch not imported",
)
def test_tuning_a_process_sets_each_thing_once(first: str, environment: dict[str, str], found: str) -> None:
    """Threads that wait give way, by the environment where torch comes later; what the user has set stays."""
    assert ran(f"{WATCH}{first}\ncalled.clear()\n{TUNE}{TEAMS}", **environment) == found


def test_freed_memory_is_kept_by_glibc_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    class Library:
        mallopt = staticmethod(lambda *setting: asked.append(setting))

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library)
    process._keep_freed_memory()
    assert asked == [(-3, 32 << 20), (-1, 256 << 20)]
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())  # another C library
    process._keep_freed_memory()
    assert len(asked) == 2


def test_commands_tune_their_process() -> None:
    code = """
import os, sys
sys.argv = ["supsup", "--version"]
from supsup.cli import main
try:
    main()
finally:
    print(os.environ["OMP_WAIT_POLICY"])
"""
    assert ran(code).splitlines()[-1] == "PASSIVE"


def test_garbage_waits_and_collecting_goes_on_afterwards_whatever_happens() -> None:
    gc.enable()  # tests that interrupt every line may have left it off
    with suppress(ZeroDivisionError), no_garbage_collection():
        assert not gc.isenabled()
        _ = 1 / 0
    assert gc.isenabled()


def test_collecting_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with no_garbage_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
