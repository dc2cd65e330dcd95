"""Kills, interrupts, mutated files, and threads that predict while others learn: nothing may be lost.

    python -m benchmarks campaign all
    python -m benchmarks campaign kills --count 6000       # processes: kill -9, SIGINT, SIGTERM at any moment
    python -m benchmarks campaign interrupts               # Ctrl-C at every line of every change
    python -m benchmarks campaign mutations --count 100000 # files and journals, all commands that read
    python -m benchmarks campaign threads --minutes 10     # eight ask while one learns and forgets

Each writes results/trust/NAME.json (or to --out) every minute and at the end. Ctrl-C keeps the figures so far, and the
next run goes on from there; --fresh begins again. TMPDIR=/dev/shm is several times faster than a disk. What is found
is in the file under "problems", with the number of the trial; `--first NUMBER --count 1` makes that one again.
The attacks themselves are in tests/attack/, where CI runs a few of each.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
os.environ.setdefault("OMP_NUM_THREADS", "1")  # what is forked must have one thread

import torch  # noqa: E402

from supsup.cli import inspect as commands  # noqa: E402
from supsup_paper.provenance import provenance  # noqa: E402
from tests.attack import asking, interrupting, judge, killing, mutating  # noqa: E402

MOST_BYTES, MOST_SECONDS = 2 << 30, 20.0
EVERY = 60.0  # seconds between two writes of the figures
MOST_SHOWN = 50  # problems in a file


@dataclass
class Figures:
    """What a part of the campaign has found so far; `done` trials are never made again."""

    done: int = 0
    seconds: float = 0.0
    longest_call_seconds: float = 0.0
    largest_process_bytes: int = 0
    wrong: int = 0
    counts: Counter[str] = field(default_factory=Counter)  # of what was tried and what came of it
    problems: list[str] = field(default_factory=list)

    def add(self, name: str, problem: str = "", seconds: float = 0.0) -> None:
        """One more trial."""
        self.longest_call_seconds = max(self.longest_call_seconds, seconds)
        if problem:
            self.wrong += 1
            self.problems = [*self.problems, f"{name}: {problem}"[:1000]][:MOST_SHOWN]
            print(f"\nPROBLEM {name}: {problem}", file=sys.stderr)

    def look_at_memory(self) -> None:
        children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        self.largest_process_bytes = max(self.largest_process_bytes, judge.peak_bytes(), children)

    def sound(self, effect: str) -> bool:
        """Whether nothing was found, and the attack had its effect at all."""
        within = self.longest_call_seconds < MOST_SECONDS and self.largest_process_bytes < MOST_BYTES
        return within and not self.wrong and self.counts[effect] > 0


def kills(figures: Figures, folder: Path, chosen: argparse.Namespace) -> Iterator[int]:
    """Gives how many trials there will be, after each."""
    trials = killing.Kills(folder)
    while figures.done < chosen.first + chosen.count:
        outcome = trials.trial(figures.done)
        figures.counts[outcome.sent] += 1
        figures.counts[outcome.operation] += 1
        figures.counts["came before the end"] += outcome.early
        figures.counts["came in the middle of a commit"] += outcome.journal
        figures.add(f"kill {figures.done}, {outcome.operation}", outcome.problem, outcome.seconds)
        figures.done += 1
        yield chosen.first + chosen.count


def interrupts(figures: Figures, folder: Path, chosen: argparse.Namespace) -> Iterator[int]:
    before = 0
    scenarios = {name: new_scenario(folder, name) for name in interrupting.SCENARIOS}
    lines = {}
    for name, scenario in scenarios.items():
        for _ in range(2):  # the first time more is run: what is made once
            lines[name] = interrupting.lines_of(scenario.call)
            scenario.check()
    total = min(chosen.first + chosen.count, sum(map(len, lines.values())))
    for name, scenario in scenarios.items():
        for line in lines[name][max(0, figures.done - before) :]:
            if figures.done >= total:
                return
            problem, begin = "", time.process_time()
            try:
                cut = interrupting.interrupted(scenario.call, line)
                spent = time.process_time() - begin
                figures.counts[name] += 1
                figures.counts["cut short"] += cut
                scenario.check()
            except Exception as error:
                problem, spent = f"{type(error).__name__}: {error}", 0.0
                scenario = new_scenario(folder, name)
            figures.add(f"interrupt {figures.done}, {name}, line {line}", problem, spent)
            figures.done += 1
            yield total
        before += len(lines[name])
    if 2 * figures.counts["cut short"] < figures.done:
        figures.add("interrupts", "hardly any came: is SIGINT ignored?")


def new_scenario(folder: Path, name: str) -> interrupting.Scenario:
    return interrupting.Scenario(Path(tempfile.mkdtemp(dir=folder)), name)


def mutations(figures: Figures, folder: Path, chosen: argparse.Namespace) -> Iterator[int]:
    right = judge.sound_ones()
    judge.limit()
    gc.freeze()  # nothing of what was loaded by now goes away
    place = folder / "place"
    place.mkdir()
    while figures.done < chosen.first + chosen.count:
        what, kind, expect = mutating.mutated(place / "model.supsup", figures.done)
        shown: AbstractContextManager[Any] = (
            nullcontext() if figures.done % 8 == 0 else patch.object(commands, "print_table", unseen)
        )
        with shown:
            verdict = judge.judged(place / "model.supsup", expect, kind, right, in_place=figures.done % 4 == 0)
        figures.counts[what] += 1
        for command, outcome in verdict["done"].items():
            figures.counts[f"{command}: {'refused' if outcome == 'refused' else 'answered'}"] += 1
        problem = "; ".join(verdict["wrong"])
        figures.add(f"mutation {figures.done}, {what} of {kind}", problem, verdict["longest"])
        for file in place.iterdir():
            file.unlink()
        figures.done += 1
        yield chosen.first + chosen.count


def unseen(table: object) -> None:
    """In place of the terminal's tables, which take longer to draw than a file takes to read."""


def threads(figures: Figures, folder: Path, chosen: argparse.Namespace) -> Iterator[int]:
    """A trial is a second; networks take turns."""
    stream, turn = asking.permutations(), 15
    total = round(60 * chosen.minutes)
    while figures.done < total:
        kind = list(asking.NETWORKS)[figures.done // turn % len(asking.NETWORKS)]
        asked, path = asking.Asked(), folder / f"{kind}.supsup"
        problem = ""
        try:
            asking.ask_while_another_learns(kind, stream, min(turn, total - figures.done), asked, path)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        figures.counts["answers, task known"] += sum(asked.known)
        figures.counts["answers, task unknown"] += sum(asked.unknown)
        figures.counts["tasks learned or forgotten"] += asked.changes
        figures.add(f"threads at second {figures.done}, {kind}", problem, max(asked.longest))
        figures.done += min(turn, total - figures.done)
        yield total


@dataclass(frozen=True)
class Part:
    """An attack, what is counted, how often it is made, and the count that shows that it had an effect."""

    attack: Callable[[Figures, Path, argparse.Namespace], Iterator[int]]
    what: str
    usual: int
    effect: str


PARTS = {
    "kills": Part(kills, "processes that were sent a signal", 6000, "came before the end"),
    "interrupts": Part(interrupts, "calls interrupted, at every line of each", 10**9, "cut short"),
    "mutations": Part(mutations, "mutated files, each read by every command", 100_000, "load: refused"),
    "threads": Part(threads, "seconds of eight threads asking and one changing", 0, "tasks learned or forgotten"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PARTS, "all"])
    parser.add_argument("--count", type=int, help="trials")
    parser.add_argument("--minutes", type=float, default=10.0, help="of threads; for another part by itself, at most")
    parser.add_argument("--first", type=int, default=0, help="the number of the first trial")
    parser.add_argument("--fresh", action="store_true", help="forget earlier figures")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "trust", help="the folder of the figures")
    chosen = parser.parse_args()
    bounded = any(word.startswith("--minutes") for word in sys.argv) and chosen.part not in ("all", "threads")
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # of a job in the background it is ignored
    warnings.simplefilter("ignore")  # that a budget is in use
    chosen.out.mkdir(parents=True, exist_ok=True)
    sound = True
    for name in PARTS if chosen.part == "all" else [chosen.part]:
        until = time.monotonic() + 60 * chosen.minutes if bounded else float("inf")
        if not run(name, chosen, until):
            sound = False
    sys.exit(0 if sound else 1)


def run(name: str, chosen: argparse.Namespace, until: float) -> bool:
    """One part, from where it was left; whether nothing was found."""
    part, target = PARTS[name], chosen.out / f"{name}.json"
    asked = argparse.Namespace(**vars(chosen))
    asked.count = part.usual if chosen.count is None else chosen.count
    figures = Figures(done=chosen.first)
    if target.exists() and not chosen.fresh and not chosen.first:
        kept: dict[str, Any] = json.loads(target.read_text())
        figures = Figures(**{key: kept[key] for key in Figures.__dataclass_fields__})
        figures.counts = Counter(figures.counts)
    begin, earlier, written = time.monotonic(), figures.seconds, time.monotonic()
    total = 0
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            for total in part.attack(figures, Path(folder), asked):
                now = time.monotonic()
                figures.seconds = round(earlier + now - begin, 1)
                if now - written > EVERY or (sys.stderr.isatty() and figures.done % 20 == 0):
                    figures.look_at_memory()
                    write(target, part, figures)
                    written = now
                    print(f"\r{name}: {figures.done:,} of {total:,}, {figures.wrong} wrong", end="", file=sys.stderr)
                    sys.stderr.flush()
                if now > until:
                    break
    except KeyboardInterrupt:
        print(f"\n{name}: interrupted; the same command goes on with {figures.done:,}", file=sys.stderr)
        raise SystemExit(130) from None
    finally:
        figures.look_at_memory()
        write(target, part, figures)
    print(f"\r{name}: {figures.done:,} {part.what}, {figures.wrong} wrong: {target}", file=sys.stderr)
    return figures.sound(part.effect)


def write(target: Path, part: Part, figures: Figures) -> None:
    record = {"what": part.what, **vars(figures), "counts": dict(sorted(figures.counts.items()))}
    record |= {"sound": figures.sound(part.effect), "made by": provenance(torch.device("cpu"))}
    unfinished = target.with_suffix(".part")
    unfinished.write_text(json.dumps(record, indent=1) + "\n")
    unfinished.replace(target)


if __name__ == "__main__":
    main()
