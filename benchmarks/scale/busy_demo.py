"""`supsup demo` on an idle machine and beside busy processes.

    python -m benchmarks busy_demo [--busy 8] [--no-defaults] [--out results/bench/demo-busy-2-cores.json]

Time of the CPU and of the clock, with threads that wait as the library sets them (OMP_WAIT_POLICY=PASSIVE) and as
OpenMP's own default has them, which is cut off after 10 minutes.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import torch
import typer

from supsup_paper.provenance import provenance

LIMIT = 600.0  # seconds
ROOT = Path(__file__).parents[2]


def main(
    busy: Annotated[int, typer.Option(help="Processes that do nothing but compute.", min=1)] = 8,
    defaults: Annotated[bool, typer.Option(help="Also with OpenMP's own default, which takes 12 minutes more.")] = True,
    out: Annotated[Path, typer.Option(help="Where the figures go.")] = ROOT / "results/bench/demo-busy-2-cores.json",
) -> None:
    rows = {}
    for name, beside, policy in (
        ("alone", 0, None),
        ("alone, OpenMP's default", 0, "none"),
        (f"beside {busy} busy processes", busy, None),
        (f"beside {busy} busy processes, OpenMP's default", busy, "none"),
    ):
        if policy is not None and not defaults:
            continue
        print(f"{name} …", flush=True)
        rows[name] = measured(beside, policy)
        print(f"  {rows[name]}", flush=True)
    out.write_text(json.dumps({"rows": rows, "made by": provenance(torch.device("cpu"))}, indent=1) + "\n")


def measured(busy: int, policy: str | None) -> dict[str, float | bool]:
    """Seconds of one demo; `policy` "none": as if the library did not set any."""
    # With torch imported first, and told how long to spin, the library leaves OpenMP as it is.
    program = ("import torch\n" if policy == "none" else "") + "from supsup.cli import main; main()"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    if policy == "none":
        environment["GOMP_SPINCOUNT"] = "300000"  # libgomp's own
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    before, begin = _spent(), time.perf_counter()
    ended = True
    try:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", program, "demo", "--fresh", "--out", folder]
            subprocess.run(command, check=True, timeout=LIMIT, env=environment, capture_output=True)
    except subprocess.TimeoutExpired:
        ended = False
    finally:
        seconds, spent = time.perf_counter() - begin, _spent() - before
        for burner in burners:
            burner.kill()
        for burner in burners:
            burner.wait()
    return {"ended": ended, "seconds": round(seconds, 1), "seconds of the CPU": round(spent, 1)}


def _spent() -> float:
    """Seconds of the CPU of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    typer.run(main)
