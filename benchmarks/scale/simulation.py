"""Cost of a million and a billion tasks and the use of many GPUs, simulated from measured rates.

    OMP_NUM_THREADS=1 python -m benchmarks simulation [--measure]

`--measure` measures what the process that has the model does for a task (LeNet 300-100 with 500 outputs) and writes it
to results/bench/driver-2-cores.json. Training, search and bytes are those in results/. Writes results/bench/scale.json
and the tables of docs/scale.md.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from supsup import Recipe, SupSup, data, load, nets
from supsup.cluster.worker import GroupResult, learn_group
from supsup.file.modelfile import model_to_bytes
from supsup.file.task_record import LearnedTask
from supsup.model.state import ModelState, state_of
from supsup_paper.provenance import provenance

ROOT = Path(__file__).resolve().parents[2]
BENCH, PAGE = ROOT / "results" / "bench", ROOT / "docs" / "scale.md"
DRIVER, OUT = BENCH / "driver-2-cores.json", BENCH / "scale.json"
GPU_MEMORY = 139 * 2**30  # bytes of an H200
AHEAD = 2  # groups for each worker: the one it trains and the next
CASES = (  # tasks, GPUs, models, tasks in a group
    (10**6, 8, 1, 2500),
    (10**6, 8, 4, 2500),
    (10**6, 64, 1, 2500),
    (10**6, 64, 32, 2500),
    (10**6, 64, 32, 250),
    (10**6, 512, 256, 250),
    (10**9, 8, 4, 2500),
    (10**9, 64, 1, 2500),
    (10**9, 64, 32, 2500),
    (10**9, 512, 1, 2500),
    (10**9, 512, 256, 2500),
)


@dataclass(frozen=True)
class Rates:
    """Seconds, as measured: a group on one GPU by its size, and a task for the process that has the model."""

    group: dict[int, float]
    driver: float


@dataclass(frozen=True)
class Conditions:
    """What was not measured but is assumed.

    hours    until a GPU fails, on average; it is back after `repair` seconds, and its group is learned again
    spread   of the speed of GPUs (the deviation of its logarithm)
    slow     how many groups of a hundred take three times as long
    network  bytes a second that the process with the model can take in
    """

    hours: float = math.inf
    repair: float = 0.0
    spread: float = 0.0
    slow: float = 0.0
    network: float = 1.25e9


CALM = Conditions()
ROUGH = Conditions(hours=100, repair=300, spread=0.05, slow=1.0)


def simulated(
    groups: int, gpus: int, group_seconds: float, commit_seconds: float, conditions: Conditions, seed: int
) -> tuple[float, int]:
    """Seconds until one model has all its groups, and how many groups were lost on the way.

    As `supsup.cluster.driver` does it: two groups for each worker are under way, who is free takes the next, and what
    has come back is committed one group after the other before more is sent.
    """
    chance = random.Random(seed)
    slowness = [math.exp(chance.gauss(0, conditions.spread)) for _ in range(gpus)]
    free = [(0.0, gpu) for gpu in range(gpus)]
    back: list[float] = []  # when groups come back
    now, waiting, under_way, lost = 0.0, groups, 0, 0
    while waiting or under_way:
        while waiting and under_way < AHEAD * gpus:
            waiting, under_way = waiting - 1, under_way + 1
            ready = now
            while True:
                begin, gpu = heapq.heappop(free)
                begin = max(begin, ready)
                straggles = 100 * chance.random() < conditions.slow
                seconds = group_seconds * slowness[gpu] * (3 if straggles else 1)
                lasts = chance.expovariate(1 / (3600 * conditions.hours)) if conditions.hours < math.inf else math.inf
                if lasts >= seconds:
                    break
                lost, ready = lost + 1, begin + lasts
                heapq.heappush(free, (ready + conditions.repair, gpu))
            heapq.heappush(free, (begin + seconds, gpu))
            heapq.heappush(back, begin + seconds)
        now = max(now, back[0])
        arrived = 0
        while back and back[0] <= now:
            heapq.heappop(back)
            arrived += 1
        now, under_way = now + arrived * commit_seconds, under_way - arrived
    return now, lost


def efficiency(case: tuple[int, int, int, int], rates: Rates, conditions: Conditions) -> tuple[float, float, int]:
    """Seconds for all tasks, the share of the GPUs' time that one GPU alone would have needed, and groups lost."""
    tasks, gpus, models, size = case
    groups = math.ceil(tasks / models / size)
    commit = size * (rates.driver + task_bytes() / conditions.network)
    runs = [simulated(groups, gpus // models, rates.group[size], commit, conditions, seed) for seed in range(models)]
    seconds = max(taken for taken, _ in runs)
    alone = tasks * rates.group[2500] / 2500
    return seconds, alone / (gpus * seconds), sum(lost for _, lost in runs)


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "results" / name).read_text())
    return found


def task_bytes() -> float:
    """Of a task in a model file."""
    found = read("model-file.json")
    return float(found["file_bytes"] / found["tasks"])


def rates_measured() -> Rates:
    """From results/."""
    rows = read("bench/bench-train-lenet-h200.json")["rows"]
    driver = float(read("bench/driver-2-cores.json")["seconds a task"])
    return Rates({row["tasks"]: row["seconds"] for row in rows}, driver)


def costs(tasks: int, rates: Rates) -> dict[str, float]:
    """What so many LeNet tasks cost; the search is exact, over all layers, each GPU over its share of the masks."""
    few, many = (read(f"bench/{name}.json")["rows"][0] for name in ("bench-infer-h200", "infer-20000-h200"))
    mask = many["bytes read"] / many["k"]
    holders = math.ceil(tasks * mask / GPU_MEMORY)
    share = tasks / holders

    def at_share(column: str) -> float:
        slope = (many[column] - few[column]) / (many["k"] - few["k"])
        return float(many[column] + slope * (share - many["k"]))

    return {
        "tasks": tasks,
        "GPU hours of training": tasks * rates.group[2500] / 2500 / 3600,
        "model files, GB": tasks * task_bytes() / 1e9,
        "hours of committing": tasks * rates.driver / 3600,
        "GPUs that hold all masks": holders,
        "lone image, ms": at_share("lone image ms"),
        "in batches, µs an image": at_share("µs per image in batches"),
    }


class Instant(Executor):
    """An executor whose workers have everything ready: what is left is the work of the process that has the model."""

    def __init__(self, parts: dict[str, bytes], size: int) -> None:
        self._parts, self._size = parts, size

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        ready = function is learn_group
        future.set_result(GroupResult("here", self._parts[arguments[2][0].name]) if ready else self._size)
        return future


def measured_driver(tasks: int = 1000, size: int = 250, turns: int = 3) -> dict[str, Any]:
    """Seconds of computing for a task: sending it out, checking what comes back, adding it, committing it."""
    torch.set_num_threads(1)
    stream = data.permuted(data.digits(), tasks=tasks, seed=0)
    new = SupSup(nets.lenet_300_100(outputs=500), recipe=Recipe(steps=1), device="cpu")
    parts = {stream[start].name: _part(state_of(new), stream[start : start + size]) for start in range(0, tasks, size)}
    seconds: list[float] = []
    for _ in range(turns):
        with tempfile.TemporaryDirectory() as folder:
            new.save(Path(folder) / "model")
            with load(Path(folder) / "model", in_place=True, device="cpu") as model:
                begin = time.process_time()
                model.learn_many(stream, cluster=Instant(parts, size), show_progress=False)
                seconds.append((time.process_time() - begin) / tasks)
    return {"tasks": tasks, "tasks in a group": size, "seconds a task": min(seconds)}


def _part(state: ModelState, tasks: Sequence[data.Task]) -> bytes:
    """A part file with random masks, which are as long as trained ones."""
    part = ModelState(state.net, state.settings)
    masks = torch.randint(0, 256, (state.bank.pack(_empty(state)).numel(), len(tasks)), dtype=torch.uint8)
    part.add([LearnedTask(task.name, task.classes) for task in tasks], masks, {}, tuple(tasks[0].train.shape))
    return model_to_bytes(part.save)


def _empty(state: ModelState) -> dict[str, torch.Tensor]:
    return {name: torch.zeros(shape) for name, shape in state.net.shapes.items()}


def rows(rates: Rates) -> list[dict[str, float]]:
    """Every case, when nothing goes wrong and when much does."""
    found = []
    for case in CASES:
        calm, rough = efficiency(case, rates, CALM), efficiency(case, rates, ROUGH)
        found.append(
            dict(zip(("tasks", "GPUs", "models", "tasks in a group"), case))
            | {"seconds": calm[0], "efficiency": calm[1]}
            | {"seconds, rough": rough[0], "efficiency, rough": rough[1], "groups lost": rough[2]}
        )
    return found


def tables(found: dict[str, Any]) -> str:
    """For the page."""
    million, billion = found["costs"]
    lines = ["| LeNet 300-100, 1,000 batches a task | a million tasks | a billion tasks |", "|---|---|---|"]
    lines += [f"| {name} | {_short(million[name])} | {_short(billion[name])} |" for name in million if name != "tasks"]
    lines += ["", "| tasks | GPUs | models | a group | time | efficiency | when much goes wrong | groups lost |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for row in found["rows"]:
        first = f"| {row['tasks']:,} | {row['GPUs']} | {row['models']} | {row['tasks in a group']:,} "
        calm = f"| {_time(row['seconds'])} | {100 * row['efficiency']:.0f} % "
        lines.append(
            f"{first}{calm}| {_time(row['seconds, rough'])}, {100 * row['efficiency, rough']:.0f} % "
            f"| {row['groups lost']:,} |"
        )
    return "\n".join(lines)


def with_tables(page: str, found: dict[str, Any]) -> str:
    """The page with these tables."""
    return re.sub(r"(<!-- scale.*? -->\n).*?(<!-- /scale -->)", rf"\g<1>{tables(found)}\n\g<2>", page, flags=re.DOTALL)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 3600:.1f} h"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true")
    cpu = torch.device("cpu")
    if parser.parse_args().measure:
        DRIVER.write_text(json.dumps(measured_driver() | {"made by": provenance(cpu)}, indent=1) + "\n")
    rates = rates_measured()
    found: dict[str, Any] = {
        "rates": asdict(rates),
        "assumed when much goes wrong": asdict(ROUGH),
        "costs": [costs(tasks, rates) for tasks in (10**6, 10**9)],
        "rows": rows(rates),
    }
    OUT.write_text(json.dumps(found | {"made by": provenance(cpu)}, indent=1) + "\n")
    PAGE.write_text(with_tables(PAGE.read_text(), found))
    print(tables(found))


if __name__ == "__main__":
    main()
