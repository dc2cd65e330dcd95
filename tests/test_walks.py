"""`learn`, `predict` and a request to the server each pass through few files: those that docs/architecture.md lists."""

from __future__ import annotations

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


def files_entered(call: Callable[[], object]) -> set[str]:
    """The files of the library in which a function is called meanwhile, in any thread."""
    found: set[str] = set()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            found.add(frame.f_code.co_filename)

    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    inside = {Path(name).relative_to(LIBRARY).as_posix() for name in found if Path(name).is_relative_to(LIBRARY)}
    return {name for name in inside if not name.startswith(NOT_COUNTED)}


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
    assert len(entered) <= MOST_FILES, sorted(entered)
    assert entered == files_on_the_page("`learn`")


def test_predict_visits_few_files(model: SupSup, tasks: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    entered = files_entered(lambda: model.predict(tasks[0][0][:5]))
    assert len(entered) <= MOST_FILES, sorted(entered)
    assert entered == files_on_the_page("`predict`")
