"""Ten alphabets of Omniglot, learned and queried with the commands that the documentation shows.

    python -m benchmarks omniglot_commands --data-dir DIR    DIR/omniglot/omniglot.zip has the drawings

About seven minutes on two cores; results/omniglot-10-alphabets.json is what the README says.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from supsup_paper.provenance import provenance

ROOT = Path(__file__).parents[2]
ALPHABETS, WAYS = 10, ("auto", "exhaustive", "one-shot")


def main(
    data_dir: Annotated[Path, typer.Option(envvar="SUPSUP_DATA", help="The folder with omniglot/omniglot.zip.")],
    out: Path = ROOT / "results" / "omniglot-10-alphabets.json",
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        unzip(data_dir / "omniglot" / "omniglot.zip", folder / "omniglot")
        learn = ["learn", "alphabets.supsup", "omniglot", "--each"]
        begin = time.perf_counter()
        supsup(folder, *learn)
        seconds, core = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
        learned = json.loads(supsup(folder, "tasks", "alphabets.supsup", "--json"))
        evaluate = ["evaluate", "alphabets.supsup", "omniglot", "--each", "--json", "--method"]
        found = {way: counted(json.loads(supsup(folder, *evaluate, way))) for way in WAYS}
    record: dict[str, Any] = {
        "commands": [" ".join(["supsup", *learn]), *(" ".join(["supsup", *evaluate, way]) for way in WAYS)],
        "seconds": round(seconds, 1),
        "seconds of the CPU": round(core.ru_utime + core.ru_stime, 1),
        "learned": {
            task["task"]: {key: task[key] for key in ("classes", "examples", "bytes", "accuracy")} for task in learned
        },
        **found,
        "made by": provenance(torch.device("cpu")),
    }
    out.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def unzip(archive: Path, folder: Path) -> None:
    """The first alphabets, each a folder of letters."""
    with zipfile.ZipFile(archive) as drawings:
        wanted = sorted({entry.partition("/")[0] for entry in drawings.namelist()})[:ALPHABETS]
        drawings.extractall(folder, [entry for entry in drawings.namelist() if entry.partition("/")[0] in wanted])


def supsup(folder: Path, *arguments: str) -> str:
    """What a command prints; it says meanwhile what it does."""
    paths = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "supsup", *arguments]
    return subprocess.run(
        command, cwd=folder, env=os.environ | {"PYTHONPATH": paths}, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def counted(replaced: dict[str, Any]) -> dict[str, float]:
    """All tasks together, in %."""
    asked = sum(task["asked"] for task in replaced["tasks"].values())
    names = ("task given", "task unknown", "task found")
    shares = {f"{key}, %": sum(task[key] for task in replaced["tasks"].values()) for key in names}
    return {"asked": asked} | {key: round(100 * count / asked, 1) for key, count in shares.items()}


if __name__ == "__main__":
    typer.run(main)
