"""Where a figure comes from: command, commit, device and versions, written beside every result."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from pathlib import Path

import torch

CHANGED = "+changes"  # after a commit whose tree was changed


def provenance(device: torch.device) -> dict[str, str | int]:
    """What somebody needs to know to get the same figures again."""
    words = (Path(word).name if word.startswith("/") else word for word in sys.argv[1:])
    return {
        "command": " ".join([_program(), *words]),
        "commit": _commit(),
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"{_processor()} (CPU)",
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _program() -> str:
    """What was started, as somebody would type it."""
    script, module = Path(sys.argv[0]), getattr(sys.modules["__main__"], "__spec__", None)
    if script.stem in ("supsup", "__main__"):
        return "supsup"
    if module is None:
        return f"python {script.parent.name}/{script.name}"
    runner, _, benchmark = module.name.partition(".")
    return (
        f"python -m benchmarks {benchmark.rpartition('.')[2]}" if runner == "benchmarks" else f"python -m {module.name}"
    )


def _commit() -> str:
    """The commit of the source that runs: what $SUPSUP_COMMIT says, else that of its git tree, "" where there is none.

    A git tree that was changed since is always marked; the variable is for copies of the source without one.
    """
    said = os.environ.get("SUPSUP_COMMIT", "").strip()
    here = Path(__file__).resolve().parent
    try:
        _git(here, "ls-files", "--error-unmatch", "provenance.py")  # fails where another project's git tree holds this
        commit, changed = _git(here, "rev-parse", "HEAD"), _git(here, "status", "--porcelain", ".")
    except (OSError, subprocess.CalledProcessError):
        return said
    found = said or commit
    return f"{found}{CHANGED}" if changed and not found.endswith(CHANGED) else found


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
