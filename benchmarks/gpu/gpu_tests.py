"""Runs the tests that need a GPU, and records the commit at which they last passed.

    PYTHONPATH=src python -m benchmarks gpu_tests --json results/gpu-tests.json

Runs every test marked `gpu`, with kernels compiled. torch, pytest and src are enough to start; tests that want more
than is there are named among the failures, and data that are not there (SUPSUP_DATA) among the skipped. A copy without
.git says its commit in SUPSUP_COMMIT. The file has what the last run gave, and where all that ran last passed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch

from supsup_paper.provenance import provenance

ROOT = Path(__file__).resolve().parents[2]
MARK = "pytest.mark.gpu"


def main() -> None:
    options = parse()
    if not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU here: run this where there is one; nothing was written")
    device, files = torch.device("cuda"), marked()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", f"--junitxml={report}"]
        command += ["--continue-on-collection-errors", "-o", "junit_family=xunit1", *files]
        subprocess.run(command, cwd=ROOT, env=os.environ | {"TRITON_INTERPRET": "0"}, check=False)
        if not report.exists():
            raise SystemExit("pytest did not run; nothing was written")
        found = outcomes(report.read_text(encoding="utf-8"))
    before = json.loads(options.json.read_text(encoding="utf-8")) if options.json.exists() else {}
    record = recorded(found | {"files": files}, provenance(device), before)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{found['passed']} passed, {found['failed']} failed, {sum(found['skipped'].values())} skipped")
    sys.exit(0 if all_passed(found) else 1)


def marked(tests: Path = ROOT / "tests") -> list[str]:
    """The files with tests for a GPU; the others may not even be importable on a bare machine."""
    files = sorted(path for path in tests.rglob("test_*.py") if MARK in path.read_text(encoding="utf-8"))
    return [path.relative_to(tests.parent).as_posix() for path in files]


def outcomes(report: str) -> dict[str, Any]:
    """How many passed and failed, names of failures, and how many were skipped for which reason, from pytest's XML."""
    passed, failures, skipped = 0, list[str](), Counter[str]()
    for case in ElementTree.fromstring(report).iter("testcase"):
        reason = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            place = case.get("file") or case.get("classname") or ""
            failures.append("::".join(filter(None, [place, case.get("name")])))
        elif reason is not None:
            skipped[reason.get("message", "")] += 1
        else:
            passed += 1
    names = list(dict.fromkeys(failures))  # a test that fails and whose fixture fails after it is there twice
    return {"passed": passed, "failed": len(names), "failures": names, "skipped": dict(sorted(skipped.items()))}


def all_passed(found: dict[str, Any]) -> bool:
    """Whether something ran, and nothing failed."""
    return found["passed"] > 0 and not found["failed"]


def recorded(found: dict[str, Any], made_by: dict[str, str | int], before: dict[str, Any]) -> dict[str, Any]:
    """What goes into the file; a run with failures leaves there where they last passed."""
    last = made_by if all_passed(found) else before.get("last passed")
    return found | {"last passed": last, "made by": made_by}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path("results/gpu-tests.json"))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
