"""Tables against one linear classifier, from results/: `python -m benchmarks alternative_table`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"README.md": "alternative", "docs/task-inference.md": "vectors"}
RESULTS = ROOT / "results" / "alternative-2-cores.json"
NAMES = {
    "clinc150": "CLINC150, 150 intents",
    "tables": "5 tables",
    "photographs": "photographs, 15 classes",
}
FIGURES = {
    "labels, %": "labels, task unknown, %",
    "task, %": "task found, %",
    "given, %": "labels, task given, % (linear: one for each task)",
    "calibration error of tasks, %": "calibration error of tasks, %",
    "known rejected, %": "known inputs rejected, 5 % wanted",
    "area of strange inputs, %": "AUROC of inputs of no task, % (linear: largest probability)",
    "seconds": "seconds to learn all tasks (linear: one fit)",
    "bytes": "kilobytes, masks included",
}
SCALE = {"bytes": 1000}
WAYS = ("supsup", "linear classifier")


def table() -> str:
    """A row for each kind of data: means over seeds, the better figure in bold."""
    measured: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    lines = ["| data | supsup | linear | given | linear | seconds | linear |", "|---|---|---|---|---|---|---|"]
    for row, name in NAMES.items():
        cells = [name]
        for figure in ("labels, %", "given, %", "seconds"):
            both = [mean(each[way][figure] for each in measured[row].values()) for way in WAYS]
            best = min(both) if figure == "seconds" else max(both)
            cells += [f"**{value:.1f}**" if value == best else f"{value:.1f}" for value in both]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def details() -> str:
    """Every figure of both ways, means over seeds."""
    measured: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    lines = ["| | CLINC150 | linear | tables | linear | photographs | linear |", "|---|---|---|---|---|---|---|"]
    for figure, name in FIGURES.items():
        cells = [name]
        for row in NAMES:
            for way in WAYS:
                values = [each[way][figure] for each in measured[row].values() if figure in each[way]]
                cells.append(f"{mean(values) / SCALE.get(figure, 1):,.1f}" if values else "–")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


MADE = {"alternative": table, "vectors": details}


def with_table(page: str, text: str) -> str:
    """A page with the table of today's results."""
    name = PAGES[page]
    begin = f"<!-- {name}: made by python -m benchmarks alternative_table from results/ -->"
    return re.sub(
        rf"<!-- {name}: .*?<!-- /{name} -->",
        lambda _: f"{begin}\n{MADE[name]()}\n<!-- /{name} -->",
        text,
        flags=re.S,
    )


if __name__ == "__main__":
    for page in PAGES:
        path = ROOT / page
        path.write_text(with_table(page, path.read_text(encoding="utf-8")), encoding="utf-8")
