"""Where a figure comes from: command, commit, device and versions, written beside every result."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from pathlib import Path

import torch


def provenance(device: torch.device) -> dict[str, str | int]:
    """What somebody needs to know to get the same figures again."""
    script = Path(sys.argv[0])
    program = "supsup" if script.stem in ("supsup", "__main__") else f"python {script.parent.name}/{script.name}"
    return {
        "command": " ".join([program, *(Path(word).name if word.startswith("/") else word for word in sys.argv[1:])]),
        "commit": _commit(),
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"{_processor()} (CPU)",
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _commit() -> str:
    """$SUPSUP_COMMIT if set, else the commit of the source tree that runs, marked where it was changed since."""
    if "SUPSUP_COMMIT" in os.environ:
        return os.environ["SUPSUP_COMMIT"]
    here = Path(__file__).resolve().parent
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True)
        changed = subprocess.run(["git", "status", "--porcelain", "."], cwd=here, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return commit.stdout.strip() + ("+changes" if changed.stdout.strip() else "")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
