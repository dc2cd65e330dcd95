"""The speed tables of README.md and docs/speed.md, from results/: `python -m benchmarks speed_tables`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = {"README.md": ("sentence",), "docs/speed.md": ("speed", "search")}
GROWTH = {
    "search-growth-h200": "One H200",
    "search-trained-h200": "One H200, masks trained fully",
    "search-growth-2-cores": "2 cores",
}
TWENTY_THOUSAND = "bench/infer-20000-h200"
OWN = {"residual": "somebody's residual network", "transformer": "somebody's vision transformer"}


def read(name: str) -> dict[str, Any]:
    """One result."""
    record: dict[str, Any] = json.loads((ROOT / "results" / f"{name}.json").read_text())
    return record


def sentence() -> str:
    """Speed, in a sentence."""
    (_, _, right), trained = twenty_thousand("G"), read("bench/bench-train-lenet-h200")["rows"][-1]
    return (
        f"One H200 trains 2,500 tasks in {trained['seconds']:.1f} s, {trained['faster than plain']:.0f} times faster "
        f"than one by one with autograd, and finds the task of an image among 20,000 in {right:.2f} % of cases "
        "([speed](docs/speed.md))."
    )


def own(name: str) -> dict[str, Any]:
    """The last row of a network that supsup does not know."""
    row: dict[str, Any] = read(f"bench/bench-train-own-{name}-h200")["rows"][-1]
    return row


def speed() -> str:
    """Time, ours beside the plain path and the floor."""
    lenet, fc = read("bench/bench-train-lenet-h200")["rows"][-1], read("bench/bench-train-fc-h200")["rows"][-1]
    exact, few = searches("bench/bench-infer-h200"), searches(two_cores())
    cores = read("bench/bench-train-lenet-2-cores")["rows"][-1]
    (learning, asking, _), unannounced = twenty_thousand("H"), read("bench/bench-unannounced-h200")["rows"][0]
    asked = 1e-6 * 10_000 * searches(TWENTY_THOUSAND)["exact, first layer, H"]["floor in batches µs"]
    rows = [
        training("H200, LeNet 300-100 with 500 outputs, 2,500 tasks × 1,000 batches", lenet),
        training("H200, FC 1024-1024 with 200 outputs, 250 tasks × 1,000 batches", fc),
        *(
            training(f"H200, {what}, 20 tasks × 300 batches, capturing included", own(name))
            for name, what in OWN.items()
        ),
        (
            "H200, 20,000 tasks, then 10,000 single images over all of them",
            f"{learning:.1f} s + {asking:.2f} s",
            f"{all_steps(lenet, 20_000, 'plain µs per task-step'):,.0f} s + …",
            f"{all_steps(lenet, 20_000, 'floor µs'):.1f} s + {asked:.2f} s",
        ),
        (
            "H200, 2,500 tasks × 1,000 batches, unannounced, graded 5 times on the way",
            f"{unannounced['seconds']:.0f} s",
            f"{all_steps(lenet, unannounced['tasks'], 'plain µs per task-step'):,.0f} s + …",
            f"{all_steps(lenet, unannounced['tasks'], 'floor µs'):.1f} s",
        ),
        *inferring("H200", exact["exact, all layers, H"]),
        *inferring("H200", exact["exact, first layer, H"]),
        (
            "2 cores, a training step of LeNet with 500 outputs, data included",
            f"{cores['µs per task-step'] / 1000:.2f} ms ({cores['times the products']:.2f} × its matrix products)",
            f"{cores['plain µs per task-step'] / 1000:.2f} ms",
            f"{cores['floor µs'] / 1000:.2f} ms",
        ),
        *inferring("2 cores", few["exact, all layers, H"])[:1],
        *inferring("2 cores", few["exact, first layer, H"])[:1],
    ]
    return "\n".join(
        [
            "| what | ours | plain path | floor |",
            "|---|---|---|---|",
            *(f"| {' | '.join(row)} |" for row in rows),
        ]
    )


def twenty_thousand(objective: str) -> tuple[float, float, float]:
    """20,000 tasks: seconds of learning, seconds of 10,000 single images with the first layer, % of tasks right."""
    row = searches(TWENTY_THOUSAND)[f"exact, first layer, {objective}"]
    return row["learning seconds"], row["grading seconds"], 100 * row["task right"]


def two_cores() -> str:
    """The inference benchmark on 2 cores whose masks were trained longest."""
    names = [f"bench/{path.stem}" for path in sorted((ROOT / "results" / "bench").glob("*infer-2-cores*.json"))]
    return max(names, key=lambda name: read(name)["steps"])


def searches(name: str) -> dict[str, Any]:
    """Rows of an inference benchmark by their setting."""
    return {row["setting"]: row for row in read(name)["rows"]}


def training(what: str, row: dict[str, Any]) -> tuple[str, str, str, str]:
    """A line on training."""
    plain, floor = (all_steps(row, row["tasks"], name) for name in ("plain µs per task-step", "floor µs"))
    return what, f"{row['seconds']:.1f} s", f"{plain:,.0f} s", f"{floor:.1f} s"


def all_steps(row: dict[str, Any], tasks: int, name: str) -> float:
    """Seconds of so many tasks' steps, from those of one."""
    return 1e-6 * tasks * float(row["steps"]) * float(row[name])


def inferring(where: str, row: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """A line on a lone image and, where it was measured, one on batches."""
    what = f"{where}, One-Shot among {row['k']:,}, {row['setting']}"
    lone, plain = f"{row['lone image ms']:.3g} ms", f"{row['plain lone image ms']:.3g} ms"
    lines = [(f"{what}: a lone image", lone, plain, f"{row['floor of a lone image ms']:.2g} ms")]
    if "batch" in row:
        each = f"{row['µs per image in batches']:.3g} µs"
        lines.append((f"{what}: in batches of {row['batch']:,}", each, "", f"{row['floor in batches µs']:.2g} µs"))
    return lines


def search() -> str:
    """How the time of a lone image grows with the number of tasks, on each machine where that was measured."""
    there = [each for each in GROWTH.items() if (ROOT / "results" / "bench" / f"{each[0]}.json").exists()]
    return "\n\n".join(growth(*each) for each in there)


def growth(name: str, where: str) -> str:
    """One machine: the whole answer exactly and from few coordinates, of it the query, and the floor of each."""
    record = read(f"bench/{name}")
    links = f"[file](../results/bench/{name}.json), [plot](../results/bench/{name}.svg)"
    first = f"{where} ({record['steps']:,} batches), ms ({links})"
    titles = [
        "exact",
        "floor",
        f"from {record['coordinates']:,} coordinates",
        "floor",
        "of both, the query",
        "same answer",
    ]
    lines = [f"| {first} | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
    for row in record["rows"]:
        figures = [row[key] for key in ("exact ms", "floor, exact ms", "short ms", "floor, short ms", "query ms")]
        same = f"{row['short as exact %']:.4g} % of {row['images']:,}"
        lines.append(f"| {row['k']:,} tasks | {' | '.join(map(short, figures))} | {same} |")
    return "\n".join(lines)


def short(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def with_table(page: str, text: str) -> str:
    """A page with its tables made anew."""
    for name in PAGES[page]:
        start, end = f"<!-- {name}: made by benchmarks/pages/speed_tables.py from results/ -->", f"<!-- /{name} -->"
        made = f"{start}\n{MADE[name]()}\n{end}"
        text = re.sub(f"{re.escape(start)}.*?{re.escape(end)}", lambda _, made=made: made, text, flags=re.DOTALL)  # type: ignore[misc]
    return text


MADE = {"sentence": sentence, "speed": speed, "search": search}

if __name__ == "__main__":
    for page in PAGES:
        path = ROOT / page
        path.write_text(with_table(page, path.read_text()))
