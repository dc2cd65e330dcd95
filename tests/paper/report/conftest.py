"""A small catalogue with every kind of figure, results for it without any training, and a real browser."""

from __future__ import annotations

import html
import itertools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest

from supsup_paper.catalogue.experiments import LENET, MnistTraining, SupSupExperiment, SupSupGrading
from supsup_paper.catalogue.rows import Entry, Row, at_scale
from supsup_paper.catalogue.settings import settings_of
from supsup_paper.catalogue.tolerances import Tolerance

STAGES = ("10", "50", "100", "250")
TOLERANCE = Tolerance(0.3, "rows of these tests", "nowhere")


def experiment(outputs: int = 100) -> SupSupExperiment:
    """One for each number of outputs: rows with the same would be one measurement."""
    return SupSupExperiment(MnistTraining("permuted", LENET, outputs, 250), SupSupGrading(stages=(250,)))


_OTHER_OUTPUTS = itertools.count(101)


def row(name: str, label: str, values: tuple[float, ...] = (), **more: Any) -> Row:
    published = {"accuracy %": dict(zip(STAGES if len(values) > 1 else ("",), values))} if values else {}
    tolerance = TOLERANCE if values else None
    return Row(name, label, experiment(next(_OTHER_OUTPUTS)), published=published, tolerance=tolerance, **more)


CATALOGUE = {
    "permuted": Entry(
        "permuted",
        "PermutedMNIST, LeNet 300-100",
        "Figure 4, Table 3",
        (
            row("h", "SupSup GNu H, s=100", (93.65, 93.68, 93.68, 93.62)),
            row("g", "SupSup GNu G, s=100", (93.69, 93.67, 93.67, 93.63)),
            row("psp", "PSP GG", (94.80, 83.58, 64.62, 36.74)),
            row("batche", "BatchE GG <rank one>", (88.85, 88.33, 88.23, 88.21)),
            row("first", "SupSup, first layer's gradient only, every image for itself", beyond=True),
        ),
        axis="tasks learned",
    ),
    "cifar": Entry(
        "cifar",
        "SplitCIFAR100, task given",
        "Figure 3 & Table 1",
        (
            *(
                Row(
                    f"supsup-s{s}",
                    f"SupSup, s = {s}",
                    experiment(1000 + s),
                    published={"accuracy %": {"": accuracy}, "bytes": {"": float(size)}},
                    tolerance=TOLERANCE,
                )
                for s, accuracy, size in ((1, 77.56, 408_432), (4, 86.45, 695_592), (32, 89.57, 2_487_472))
            ),
            row("upper", "Upper Bound", (91.62,)),
        ),
        figure="bytes",
    ),
    "gamma": Entry(
        "gamma",
        "γ-interpolation on RotatedMNIST",
        "Figure 9",
        (row("gamma", "SupSup H"),),
        axis="γ",
        note="Published as a figure only.",
    ),
    "rotated": Entry(
        "rotated",
        "RotatedMNIST",
        "Figure 5",
        (row("supsup", "SupSup GNu", (96.13,)), row("lower", "Lower Bound", (48.71,))),
        figure="bars",
    ),
    "hop": Entry(
        "hop",
        "HopSupSup: distance to each mask",
        "Figure 7",
        (row("hop", "HopSupSup", (97.43,)),),
        figure="distances",
    ),
}


def write_result(folder: Path, entry: str, row: str, seed: int, figures: Mapping[str, Any], **more: Any) -> Path:
    """A result file in the form that `supsup reproduce` writes."""
    made_by = {"command": "supsup reproduce", "commit": "0123456789abcdef", "date": "2026-01-02", "device": "a GPU"}
    known = [line for line in CATALOGUE[entry].rows if line.name == row] if entry in CATALOGUE else []
    settings = settings_of(at_scale(known[0] if known else Row("", "", experiment()), more.get("scale", "full")))
    record = {
        "entry": entry,
        "row": row,
        "seed": seed,
        "scale": "full",
        "settings": settings,
        "figures": figures,
        "per task": {},
        "bytes": {},
        "seconds": {"learning": 50.0, "grading": 10.0},
        "note": "",
        "made by": made_by,
        **more,
    }
    path = folder / entry / f"{row}-seed{seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record))
    return path


class Writer(Protocol):
    """What `write_result` looks like to a test."""

    def __call__(self, folder: Path, entry: str, row: str, seed: int, figures: Any, **more: Any) -> Path: ...


@pytest.fixture
def write() -> Writer:
    return write_result


@pytest.fixture
def catalogue() -> dict[str, Entry]:
    return CATALOGUE


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Rows reproduced over seeds, one better, one worse with a note, one of ours, and rows that were not run."""
    folder = tmp_path / "results"
    for seed in range(3):
        curve = dict.fromkeys(STAGES, 93.6 + 0.1 * seed)
        right = dict.fromkeys(STAGES, 99.9)
        write_result(folder, "permuted", "h", seed, {"accuracy %": curve, "task right %": right})
    low = dict(zip(STAGES, (93.7, 80.0, 60.0, 33.0)))
    write_result(folder, "permuted", "psp", 0, {"accuracy %": low}, note="Rotations are drawn <anew> in each layer.")
    write_result(folder, "permuted", "first", 0, {"accuracy %": dict.fromkeys(STAGES, 93.7)})
    size = {"masks": 300_000, "statistics": 80_000, "paper's count": 408_432}
    time = {"learning": 380.0, "grading": 2.0, "plain way": 9000.0}
    write_result(folder, "cifar", "supsup-s1", 0, {"accuracy %": {"": 78.0}}, bytes=size, seconds=time)
    write_result(folder, "gamma", "gamma", 0, {"accuracy %": {"0.0278": 90.0, "0.25": 94.0, "0.5": 96.0}})
    write_result(folder, "rotated", "supsup", 0, {"accuracy %": {"": 40.0}}, scale="quick")
    way = {
        "tasks": ["0-1", "2-3"],
        "distances on the way": {"0-1": [[0.5, 0.5], [0.0, 0.4]], "2-3": [[0.5, 0.5], [0.4, 0.1]]},
    }
    for seed in range(2):
        write_result(folder, "hop", "hop", seed, {"accuracy %": {"": 98.0 + seed}}, trace=way if seed == 0 else {})
    return folder


class Browser:
    """Headless Chromium, without any state of its own; pages are files."""

    DARK, LIGHT = 0, 1

    def __init__(self, program: str, folder: Path) -> None:
        self.program, self.folder = program, folder

    def _run(self, page: Path, *options: str) -> str:
        always = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=2000")
        command = [self.program, *always, f"--user-data-dir={self.folder / 'profile'}", *options, page.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def measured(self, text: str, width: int, script: str, scheme: int) -> Any:
        """What a script gives, as JSON, on a page shown at a width: a frame has it, as windows are never narrow."""
        replaced = f"<script>onload=()=>parent.postMessage(({script})(),'*')</script>"
        (self.folder / "copy.html").write_text(text.replace("</body>", f"{replaced}</body>"))
        frame = self.folder / "frame.html"
        frame.write_text(
            '<!doctype html><meta name="color-scheme" content="light dark"><pre id="said"></pre>'
            "<script>onmessage=m=>{document.getElementById('said').textContent=JSON.stringify(m.data)}</script>"
            f'<iframe src="copy.html" style="border:0;width:{width}px;height:2000px"></iframe>'
        )
        dom = self._run(frame, "--dump-dom", f"--blink-settings=preferredColorScheme={scheme}")
        said = re.search(r'<pre id="said">(.*?)</pre>', dom, flags=re.DOTALL)
        assert said is not None, dom
        return json.loads(html.unescape(said[1]))

    def dom(self, text: str) -> str:
        """The page as the browser understood it."""
        (self.folder / "copy.html").write_text(text)
        return self._run(self.folder / "copy.html", "--dump-dom")

    def screenshot(self, text: str, width: int, height: int, scheme: int) -> Path:
        """A picture of the page's top at a width."""
        (self.folder / "copy.html").write_text(text)
        frame, picture = self.folder / "frame.html", self.folder / f"{width}-{scheme}.png"
        frame.write_text(
            '<!doctype html><meta name="color-scheme" content="light dark"><body style="margin:0">'
            f'<iframe src="copy.html" style="border:0;width:{width}px;height:{height}px"></iframe>'
        )
        self._run(
            frame,
            f"--screenshot={picture}",
            f"--window-size={width},{height}",
            f"--blink-settings=preferredColorScheme={scheme}",
        )
        return picture


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    """Chromium where it is found; tests that need it are skipped where it is not."""
    names = [os.environ.get("CHROME", ""), "chromium", "chromium-browser", "google-chrome"]
    program = next((found for name in names if name and (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on the PATH; $CHROME may name one")
    folder = tmp_path / "browser"
    folder.mkdir()
    return Browser(program, folder)
