"""`learn`, `predict` and a request to the server each pass through few files: those that docs/architecture.md lists."""

from __future__ import annotations

import inspect
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import supsup
from supsup import SupSup, data, nets

LIBRARY = Path(supsup.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
MOST_FILES = 18
NOT_COUNTED = ("runtime/", "kernels/", "nets/")  # utilities, compiled inner loops, and definitions of networks


class Walk:
    """Collects the files of the library in which a function is called, in this thread and in those started later."""

    def __init__(self) -> None:
        self._entered: set[str] = set()

    def watch(self, frame: FrameType, event: str, _: Any) -> None:
        """For `sys.setprofile`."""
        if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # bodies of modules and classes are not
            self._entered.add(frame.f_code.co_filename)

    def start_again(self) -> None:
        """Forget what was entered until now."""
        self._entered.clear()

    def files(self) -> set[str]:
        """Files by their path in the library."""
        paths = (Path(name) for name in self._entered)
        inside = {path.relative_to(LIBRARY).as_posix() for path in paths if path.is_relative_to(LIBRARY)}
        return {name for name in inside if not name.startswith(NOT_COUNTED)}


def check_walk(name: str, entered: set[str]) -> None:
    """Few files, and exactly those of the page."""
    assert len(entered) <= MOST_FILES, sorted(entered)
    missing, gone = entered - files_on_the_page(name), files_on_the_page(name) - entered
    assert not missing, f"{PAGE.name} lacks these files of {name}: {sorted(missing)}"
    assert not gone, f"{PAGE.name} names files that {name} does not enter: {sorted(gone)}"


def files_entered(call: Callable[[], object]) -> set[str]:
    """The files of the library in which a function is called meanwhile, in any thread."""
    walk = Walk()
    threading.setprofile(walk.watch)
    sys.setprofile(walk.watch)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return walk.files()


def files_on_the_page(walk: str) -> set[str]:
    """The files in the page's table of walks."""
    row = re.search(rf"^\| {walk} \| (.*) \|$", PAGE.read_text(), flags=re.MULTILINE)
    assert row is not None, f"{PAGE.name} has no walk {walk}"
    return set(re.findall(r"`([\w/]+\.py)`", row[1]))


@pytest.fixture(scope="module")
def tasks() -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [task.train.batch(torch.arange(300)) for task in list(data.split(data.digits(), 5))[:2]]


@pytest.fixture(scope="module")
def model(tasks: list[tuple[torch.Tensor, torch.Tensor]]) -> SupSup:
    """Two tasks; it has answered once, so that nothing is built for the first time."""
    model = SupSup(nets.lenet_300_100(outputs=10), device="cpu")
    for number, task in enumerate(tasks):
        model.learn(task, task=f"task {number}", show_progress=False)
    model.predict(tasks[0][0][:2])
    return model


def test_learn_visits_few_files(tasks: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    fresh = SupSup(nets.lenet_300_100(outputs=10), device="cpu")
    entered = files_entered(lambda: fresh.learn(tasks[0], task="one", show_progress=False))
    check_walk("`learn`", entered)


def test_predict_visits_few_files(model: SupSup, tasks: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    entered = files_entered(lambda: model.predict(tasks[0][0][:5]))
    check_walk("`predict`", entered)
