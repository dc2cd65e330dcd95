"""One runner for all measurements: `python -m benchmarks` lists them, `python -m benchmarks NAME [options]` runs one.

A family is a folder. A benchmark is a module in it with a `main`, whose first sentence is shown in the list. Most
write their figures to results/, with the command, commit and device that made them.
"""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

HERE = Path(__file__).parent
FAMILIES = {
    "task_inference": "How often the task is found when nobody names it",
    "networks": "Other people's networks and data",
    "scale": "Many tasks, many processes, a busy machine",
    "storage": "Bytes of masks and model files",
    "gpu": "Training steps and tests on a GPU",
    "hopfield": "HopSupSup",
    "paper": "Questions that the paper leaves open",
    "trust": "Attacks on what is promised: kills, interrupts, wrong code, load",
    "pages": "Tables and plots of the documentation, from the files in results/",
}


def benchmarks() -> dict[str, Path]:
    """The modules that can be run, by name."""
    found = {}
    for family in FAMILIES:
        for path in sorted((HERE / family).glob("*.py")):
            if '__name__ == "__main__"' in path.read_text(encoding="utf-8"):
                found[path.stem] = path
    return found


def listing() -> str:
    """All families with their benchmarks, a line each."""
    lines = ["python -m benchmarks NAME [options]; NAME --help lists the options", ""]
    every = benchmarks()
    for family, title in FAMILIES.items():
        lines.append(f"{title} (benchmarks/{family}/)")
        for name, path in every.items():
            if path.parent.name == family:
                doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
                lines.append(f"  {name:<20} {doc.splitlines()[0]}")
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    """Run the benchmark that was named, or list them all."""
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(listing())
        return 0
    name, path = sys.argv[1], benchmarks().get(sys.argv[1])
    if path is None:
        print(f"there is no benchmark {name!r}; `python -m benchmarks` lists them", file=sys.stderr)
        return 2
    del sys.argv[1]
    runpy.run_module(f"benchmarks.{path.parent.name}.{name}", run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
