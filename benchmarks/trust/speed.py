"""Cost of safety: predict, learn and load before and after threads, signals and files were made safe.

    git worktree add --detach ../before 29e9dc7
    python -m benchmarks speed ../before/src

Two processes with one thread each, one of each version, make the same calls in turns, many times, so that whatever else
the machine does falls on both. What counts is the time that a process computes, not how long it has to wait for its
turn; every version loads files that it wrote itself. The second of two equal processes can be a little slower than the
first for no reason, so there are several pairs, with the order changed. Writes results/trust/speed.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import supsup
from supsup import data, nets

ROOT = Path(__file__).resolve().parents[2]
ALLOWED = 1.05
SHORTEST = 0.03  # seconds that are measured at once, from as many calls as that takes
LONG, FEW = "predict 1,000 images, task unknown, 250 tasks", 5  # seconds each: a case with few turns
Case = tuple[Callable[[], Any], Callable[[], Any]]  # what is measured, and what is done after each call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the folder src of the version before")
    parser.add_argument("--pairs", type=int, default=4, help="of processes")
    parser.add_argument("--turns", type=int, default=15, help="of each pair for each case")
    parser.add_argument("--only", default="", help="cases whose names begin with this; nothing is written then")
    chosen = parser.parse_args()
    measured: dict[str, dict[str, list[float]]] = {}
    for number in range(chosen.pairs):
        sources = {"before": chosen.before.resolve(), "now": ROOT / "src"}
        order = list(sources) if number % 2 == 0 else list(reversed(sources))
        workers = {version: Worker(sources[version]) for version in order}
        for case in next(iter(workers.values())).cases:
            if not case.startswith(chosen.only):
                continue
            times = measured.setdefault(case, {version: [] for version in sources})
            for _ in range(FEW if case == LONG else chosen.turns):
                for version, worker in workers.items():
                    times[version].append(worker.measure(case))
            print(f"pair {number + 1} of {chosen.pairs}: {case}: {ratios(times)}", file=sys.stderr, flush=True)
        for worker in workers.values():
            worker.end()
    if not chosen.only:
        write(measured)


class Worker:
    """A process that runs one version and measures a case whenever it is asked to."""

    def __init__(self, source: Path) -> None:
        environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"import runpy; runpy.run_path({__file__!r}, run_name='worker')"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        found = self._answer()
        assert Path(found["source"]).parent == source, "another version than the one asked for"
        self.cases: list[str] = found["cases"]

    def measure(self, case: str) -> float:
        """Seconds for one call."""
        assert self._process.stdin is not None
        print(json.dumps(case), file=self._process.stdin, flush=True)
        return float(self._answer())

    def end(self) -> None:
        self._process.communicate()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


def work() -> None:
    """What a worker does: only the public face, which both versions have."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        every = cases(Path(folder))
        print(json.dumps({"source": str(Path(supsup.__file__).parent), "cases": list(every)}), flush=True)
        calls: dict[str, int] = {}
        for line in sys.stdin:
            name = json.loads(line)
            if name not in calls:
                for _ in range(2):
                    once = seconds(every[name], 1)
                calls[name] = max(1, round(SHORTEST / once))
            print(json.dumps(seconds(every[name], calls[name])), flush=True)


def seconds(case: Case, calls: int) -> float:
    """The mean of some calls, in seconds of computing."""
    call, afterwards = case
    total = 0.0
    for _ in range(calls):
        begin = time.process_time()
        call()
        total += time.process_time() - begin
        afterwards()
    return total / calls


def cases(folder: Path) -> dict[str, Case]:
    stream = data.permuted(data.digits(), tasks=250, seed=0)
    brief = supsup.Recipe(steps=1, batch_size=8)

    def lenet(tasks: int) -> supsup.SupSup:
        model = supsup.SupSup(nets.lenet_300_100(outputs=100), recipe=brief, inference=supsup.Inference(), device="cpu")
        model.learn_many(stream[:tasks], show_progress=False)
        return model

    many, few = lenet(250), lenet(5)
    many.save(folder / "many")
    few.save(folder / "few")
    residual = supsup.SupSup(nets.gem_resnet18(outputs=5), recipe=brief, inference=supsup.Inference(), device="cpu")
    x, y = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 5
    for number in range(4):
        residual.learn((x, y), task=f"task-{number}")
    residual.save(folder / "residual")
    images = torch.cat([task.test.tensors()[0][:200] for task in stream[:5]])
    known = stream[3].name
    one_shot = supsup.Inference()  # without profiles, whose cost `profile_cost` measures
    recipe = supsup.Recipe(steps=20, batch_size=32)
    small = supsup.SupSup(nets.FullyConnected((784, 64, 10)), recipe=recipe, inference=one_shot, device="cpu")
    wide = supsup.SupSup(
        nets.lenet_300_100(outputs=500), recipe=supsup.Recipe(steps=50), inference=one_shot, device="cpu"
    )

    def forget(tasks: int, model: supsup.SupSup = small) -> Callable[[], None]:
        def forget_all() -> None:
            for task in stream[:tasks]:
                model.forget(task.name)

        return forget_all

    def nothing() -> None:
        pass

    def load(name: str) -> Case:
        return lambda: supsup.load(folder / name, device="cpu"), nothing

    return {
        "predict one image, task known, 250 tasks": (lambda: many.predict(images[:1], known), nothing),
        "predict one image, task unknown, 250 tasks": (lambda: many.predict(images[:1]), nothing),
        "predict one image, task known, 5 tasks": (lambda: few.predict(images[:1], known), nothing),
        "predict one image, task unknown, 5 tasks": (lambda: few.predict(images[:1]), nothing),
        "predict 1,000 images, task known, 250 tasks": (lambda: many.predict(images, known), nothing),
        LONG: (lambda: many.predict(images), nothing),
        "learn one small task": (lambda: small.learn(stream[0]), forget(1)),
        "learn_many, 20 small tasks": (lambda: small.learn_many(stream[:20], show_progress=False), forget(20)),
        "learn_many, 4 LeNet tasks, 50 batches each": (
            lambda: wide.learn_many(stream[:4], show_progress=False),
            forget(4, wide),
        ),
        "load 250 tasks": load("many"),
        "load 5 tasks": load("few"),
        "load a ResNet of 4 tasks": load("residual"),
    }


def ratios(times: dict[str, list[float]]) -> dict[str, float]:
    """How many times as long it takes now: by medians, by minima, and the median of neighbours' ratios."""
    before, now = times["before"], times["now"]
    return {
        "median": round(statistics.median(now) / statistics.median(before), 3),
        "minimum": round(min(now) / min(before), 3),
        "neighbours": round(statistics.median(b / a for a, b in zip(before, now)), 3),
    }


def write(measured: dict[str, dict[str, list[float]]]) -> None:
    from supsup_paper.provenance import provenance

    rows: dict[str, dict[str, Any]] = {}
    for case, times in measured.items():
        milliseconds = {
            version: {"median": round(1000 * statistics.median(each), 4), "minimum": round(1000 * min(each), 4)}
            for version, each in times.items()
        }
        rows[case] = {"ms": milliseconds, "measurements": len(times["now"]), "now / before": ratios(times)}
    record = {
        "what": "milliseconds of computing for one call, one thread",
        "cases": rows,
        "slower than allowed": [name for name, row in rows.items() if row["now / before"]["neighbours"] > ALLOWED],
        "made by": provenance(torch.device("cpu")),
    }
    target = ROOT / "results" / "trust" / "speed.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "worker":
    work()
elif __name__ == "__main__":
    main()
