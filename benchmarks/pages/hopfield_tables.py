"""The tables of docs/hopfield.md, from results/hopfield: `python -m benchmarks hopfield_tables`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "hopfield.md"
HOPFIELD = ROOT / "results" / "hopfield"
RESULTS = {"own-seed0": "accuracy", "capacity": "capacity"}  # file and the name of its place on the page


def read(name: str) -> dict[str, Any]:
    """One result."""
    record: dict[str, Any] = json.loads((HOPFIELD / f"{name}.json").read_text())
    return record


def rows(name: str) -> list[dict[str, Any]]:
    """All seeds of a row of the reproduction."""
    return [json.loads(path.read_text()) for path in sorted(HOPFIELD.glob(f"{name}-seed*.json"))]


def accuracy() -> str:
    """The paper's experiment: masks as learned, and as each procedure recovers them."""
    found = {name: rows(name) for name in ("own", "paper", "best-of")}
    seeds, (first, *_) = len(found["own"]), found["own"]
    lines = [
        f"| SplitMNIST, task unknown, {seeds} seeds | accuracy % | right masks | exact | seconds |",
        "|---|---|---|---|---|",
        "| published | 97.43 | | | |",
    ]
    for label, name in (("masks as learned", "own"), ('"paper"', "paper"), ('"best-of"', "best-of")):
        mean = fmean(row["figures"]["accuracy %"][""] for row in found[name])
        distances = [value for row in found[name] for value in row.get("trace", {}).get("distance", {}).values()]
        right, exact = sum(value < 0.01 for value in distances), sum(value == 0 for value in distances)
        recovered = f"{right} of {len(distances)} | {exact}" if distances else " | "
        seconds = f"{sum(row['seconds']['grading'] for row in found[name]):.1f}" if distances else ""
        lines.append(f"| {label} | **{mean:.2f}** | {recovered} | {seconds} |")
    learning = sum(row["seconds"]["learning"] for row in found["own"])
    lines += [
        "",
        f"{first['made by']['device']}: learning all {seeds} seeds together took {learning:.1f} s. Ψ and μ of a model "
        f"take {first['bytes']['Ψ and μ']:,} bytes after every task. A mask is right if fewer than 1 % of its units "
        "differ.",
    ]
    return "\n".join(lines)


def capacity() -> str:
    """How many masks each memory holds."""
    record = read("capacity")
    sets = [label.removeprefix("hebb, ") for label in record["holds"] if label.startswith("hebb, ")]
    lines = [
        f"| {record['units']} units; masks that come back from {record['flipped']:.0%} flipped bits "
        "| overlap | Hebb | Storkey |",
        "|---|---|---|---|",
    ]
    for label in sets:
        cells = []
        for rule in ("hebb", "storkey"):
            key = f"{rule}, {label}"
            rows = record["curves"][key]
            all_held = rows[-1]["stored"] == record["holds"][key]
            warned = record["warned at"][key]
            cells.append(
                f"{'≥ ' if all_held else ''}{record['holds'][key]}" + (f" (warned at {warned})" if warned else "")
            )
        lines.append(f"| {label} | {record['overlap'][label]:.2f} | {' | '.join(cells)} |".replace("-0.0", "0.0"))
    lines += ["", "Up to that many, at least 95 % of those asked for came back at every stage."]
    for rule, rows in record.get("from images", {}).items():
        last = rows[-1]
        right = round(last["best-of"] * last["asked"])
        lines.append(
            f"From test images alone, with {last['stored']} learned masks stored by {rule.capitalize()}'s rule, "
            f"{right} of {last['asked']} were found."
        )
    return "\n".join(lines)


def with_tables(text: str) -> str:
    """The page with its figures made anew, as far as they have been measured."""
    for result, name in RESULTS.items():
        if not (HOPFIELD / f"{result}.json").exists():
            continue
        start, end = f"<!-- {name}: made by benchmarks/pages/hopfield_tables.py from results/ -->", f"<!-- /{name} -->"
        made = {"accuracy": accuracy, "capacity": capacity}[name]()
        block = f"{start}\n{made}\n{end}"
        text = re.sub(f"{re.escape(start)}.*?{re.escape(end)}", lambda _, block=block: block, text, flags=re.DOTALL)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
