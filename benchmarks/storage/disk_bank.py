"""Masks that stay on disk: opening time, answers a second, and memory of several processes.

    OMP_NUM_THREADS=1 python -m benchmarks disk_bank [--small 100000] [--lenet 20000]

Random masks, of a small network and of LeNet 300-100 with 500 outputs; each figure from a process of its own, which has
answered from a small model before. Writes results/bench/disk-bank-2-cores.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch
from torch import nn

from supsup import SupSup, load, nets
from supsup.file.task_record import LearnedTask
from supsup.model.state import state_of
from supsup_paper.provenance import provenance

OUT = Path(__file__).parents[2] / "results" / "bench" / "disk-bank-2-cores.json"
PROCESSES = 4
_AT_ONCE = 2000  # masks that are made together
NETS = {"small": lambda: nets.FullyConnected((784, 32, 16)), "lenet": lambda: nets.lenet_300_100(outputs=500)}


def make(path: Path, net: nn.Module, tasks: int) -> None:
    """A model file with random masks."""
    model = SupSup(net, device="cpu")
    chance = torch.Generator().manual_seed(0)
    for start in range(0, tasks, _AT_ONCE):
        learned = [LearnedTask(f"task-{number}", 10) for number in range(start, min(tasks, start + _AT_ONCE))]
        masks = torch.randint(0, 256, (state_of(model).bank.length, len(learned)), dtype=torch.uint8, generator=chance)
        state_of(model).add(learned, masks, {}, (784,))
    model.save(path)


def opened(path: Path, warm: Path, masks: str) -> None:
    """A process that opens a model and answers, then says what it took and waits."""
    image = torch.rand(1, 784, generator=torch.Generator().manual_seed(1))
    load(warm, masks="disk", device="cpu").predict(image)
    begin = time.perf_counter()
    model = load(path, masks=masks, device="cpu")  # type: ignore[arg-type]
    taken = [time.perf_counter() - begin]
    answer: list[str] = []
    for _ in range(3):
        answer = model.predict(image).tasks
        taken.append(time.perf_counter() - begin)
    print(json.dumps({"open": taken[0], "first": taken[1], "later": taken[3] - taken[2], "task": answer}), flush=True)
    sys.stdin.read()


class Opened:
    """Such a process."""

    def __init__(self, path: Path, warm: Path, masks: str) -> None:
        command = [sys.executable, "-m", "benchmarks.storage.disk_bank", "--open", str(path), str(warm), masks]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def replaced(self) -> dict[str, Any]:
        replaced: dict[str, Any] = json.loads(_pipe(self._process.stdout).readline())
        return replaced

    def memory(self, what: str) -> int:
        """Bytes: "Pss" shares pages among those who have them, "Anonymous" are its own."""
        for line in Path(f"/proc/{self._process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(f"{what}:"):
                return 1024 * int(line.split()[1])
        raise KeyError(what)

    def end(self) -> None:
        _pipe(self._process.stdin).close()
        self._process.wait()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def figures(kind: str, tasks: int, folder: Path, warm: Path) -> dict[str, Any]:
    """Of one file."""
    path = folder / kind
    make(path, NETS[kind](), tasks)
    found: dict[str, Any] = {"network": kind, "tasks": tasks, "file, MB": path.stat().st_size / 1e6}
    answers = set()
    for name, masks in (("memory", "memory"), ("disk, blocks made", "disk"), ("disk", "disk")):
        process = Opened(path, warm, masks)
        replaced = process.replaced()
        answers |= set(replaced["task"])
        seconds = {"open": replaced["open"], "open and answer": replaced["first"], "a later answer": replaced["later"]}
        found[name] = {f"{what}, s": round(value, 3) for what, value in seconds.items()}
        found[name]["memory of its own, MB"] = round(process.memory("Anonymous") / 1e6)
        process.end()
    assert len(answers) == 1
    found["shared, MB"] = {str(count): round(sum(shared(path, warm, count)) / 1e6) for count in (1, PROCESSES)}
    return found


def shared(path: Path, warm: Path, count: int) -> Iterator[int]:
    """The memory of so many processes at once, each page counted once among those who share it."""
    processes = [Opened(path, warm, "disk") for _ in range(count)]
    for process in processes:
        process.replaced()
    yield from [process.memory("Pss") for process in processes]
    for process in processes:
        process.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", type=int, default=100_000)
    parser.add_argument("--lenet", type=int, default=20_000)
    parser.add_argument("--open", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    if asked.open:
        opened(Path(asked.open[0]), Path(asked.open[1]), asked.open[2])
        return
    with tempfile.TemporaryDirectory() as folder:
        warm = Path(folder) / "warm"
        make(warm, NETS["small"](), 100)
        rows = [figures(kind, getattr(asked, kind), Path(folder), warm) for kind in NETS if getattr(asked, kind)]
    print(json.dumps(rows, indent=1))
    content = {"rows": rows, "made by": provenance(torch.device("cpu"))}
    asked.out.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
