"""The tables of docs/trust.md, from results/trust: `python -m benchmarks trust_tables`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "trust.md"
RESULTS = ROOT / "results" / "trust"
PARTS = {
    "kills": ("processes sent kill -9, SIGINT or SIGTERM at a moment by chance", "10,000 with the interrupts"),
    "interrupts": ("calls interrupted, at every line that a change runs", "every line"),
    "mutations": ("mutated files and journals, each given to every command that reads", "100,000"),
    "threads": ("seconds of eight threads asking while one learns and forgets", "600"),
}  # what is counted, and how many are wanted


def read(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return record


def present() -> list[str]:
    """The parts of the campaign that have figures."""
    return [part for part in PARTS if (RESULTS / f"{part}.json").exists()]


def row(found: dict[str, Any]) -> str:
    return (
        f"{found['done']:,} | {found['wrong']:,} | {found['largest_process_bytes'] / 1e6:,.0f} MB "
        f"| {found['longest_call_seconds']:.2f} s | {found['made by']['commit'][:7]}"
    )


def campaign() -> str:
    """What each part of the campaign found."""
    lines = [
        "| what | wanted | done | wrong | largest process | longest call | commit |",
        "|---|---|---|---|---|---|---|",
    ]
    for part, (what, wanted) in PARTS.items():
        found = read(part) if part in present() else None
        figures = "not run yet | – | – | – | –" if found is None else row(found)
        lines.append(f"| {what} | {wanted} | {figures} |")
    counts = {part: read(part)["counts"] for part in present()}
    lines.append("")
    if "kills" in counts:
        kills = counts["kills"]
        lines.append(
            f"Of the signals {kills['came before the end']:,} came before the process was done, "
            f"{kills['came in the middle of a commit']:,} of them in the middle of a commit."
        )
    if "mutations" in counts:
        refused, answered = (counts["mutations"][f"load: {word}"] for word in ("refused", "answered"))
        lines.append(f"Of the mutated files `load` refused {refused:,} and read {answered:,} right.")
    if "threads" in counts:
        asked = counts["threads"]
        known, unknown = (asked[f"answers, task {word}"] for word in ("known", "unknown"))
        changes = asked["tasks learned or forgotten"]
        lines.append(
            f"The threads got {known:,} answers with the task known and {unknown:,} with it inferred, during "
            f"{changes:,} changes."
        )
    return "\n".join(lines)


def speed() -> str:
    """What the promises cost."""
    lines = ["| one call, one thread | before, ms | now, ms | now / before |", "|---|---|---|---|"]
    for case, row in read("speed")["cases"].items():
        before, now = (row["ms"][version]["median"] for version in ("before", "now"))
        lines.append(f"| {case} | {before:,.2f} | {now:,.2f} | {row['now / before']['neighbours']:.2f} |")
    return "\n".join(lines)


def with_tables(text: str) -> str:
    """The page with its figures made anew."""
    for name, make in (("campaign", campaign), ("speed", speed)):
        start, end = (
            f"<!-- {name}: made by benchmarks/pages/trust_tables.py from results/trust/ -->",
            f"<!-- /{name} -->",
        )
        block = f"{start}\n{make()}\n{end}"
        text, count = re.subn(f"{re.escape(start)}.*?{re.escape(end)}", lambda _, b=block: b, text, flags=re.DOTALL)  # type: ignore[misc]
        assert count == 1, name
    return text


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
