"""The table of docs/rivals.md, from the files in results/rivals: python benchmarks/rivals_table.py"""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "rivals.md"
MARKS = ("<!-- table: made by benchmarks/rivals_table.py from results/rivals -->", "<!-- /table -->")


def lines_of(path: Path) -> list[str]:
    """One line for each figure of a row that has a published one beside it, and for each at the last stage."""
    record = json.loads(path.read_text())
    lines = []
    for label, curve in record["accuracy %"].items():
        published = record["published %"].get(label, {})
        spread = record["deviation over seeds"].get(label, {})
        for stage, value in curve.items():
            if stage not in published and stage != list(curve)[-1]:
                continue
            ours = f"**{value:.2f}**" + (f" ± {spread[stage]:.2f}" if stage in spread else "")
            name = path.stem if label == "accuracy" else f"{path.stem}, {label}"
            there = f"{published[stage]:.2f}" if stage in published else "–"
            lines.append(f"| [{name}](../results/rivals/{path.name}) | {stage} | {ours} | {there} |")
    return lines


def table(folder: Path) -> str:
    """All rows."""
    lines = [line for path in sorted(folder.glob("*.json")) for line in lines_of(path)]
    return "\n".join(["| row | tasks | ours, % | paper, % |", "|---|---|---|---|", *lines])


def main() -> None:
    begin, end = (re.escape(mark) for mark in MARKS)
    made = "\n".join([MARKS[0], table(ROOT / "results" / "rivals"), MARKS[1]])
    PAGE.write_text(re.sub(f"{begin}.*?{end}", lambda _: made, PAGE.read_text(), flags=re.DOTALL))


if __name__ == "__main__":
    main()
