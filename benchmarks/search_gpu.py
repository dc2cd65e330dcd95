"""The search on a GPU: kernels against the plain way, where the time of a lone image goes, and how it grows.

    python -m benchmarks.search_gpu --out FOLDER [--tasks 250,…,300000] [--trained 2500,20000] [--disk 100000]
    python -m benchmarks.search_gpu --out FOLDER --disk 100000 --only disk

LeNet 300-100 with 500 outputs on permutations of MNIST, `--steps` batches for each task. A part that fails is told, and
the next goes on. The files and plots of growth belong into results/bench: then `python benchmarks/readme_table.py`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.disk_bank import NETS, Opened, make
from supsup import Recipe, data, nets
from supsup.inference.gradient import Goal, fully_connected_query, lone_query
from supsup.inference.methods import Inference, infer
from supsup.inference.search import dense, short
from supsup.kernels.graphs import Replay
from supsup.masks.bank import Bank
from supsup.masks.frozen import FrozenNet
from supsup_paper.bench import bench_growth, learned, measure_machine
from supsup_paper.bench.measurement import as_record
from supsup_paper.provenance import provenance
from supsup_paper.report import search_plot, write

GPU = torch.device("cuda")
FEW = Inference(layers="first", coordinates=16384)


def kernels_against_plain() -> dict[str, object]:
    """The same through the kernels and through torch alone, with one mask that stands out a little."""
    chance = torch.Generator(GPU).manual_seed(0)
    same = total = 0
    for counts in ([5], [300], [1000, 64, 1, 3000]):
        blocks = [torch.randint(256, (4000, n), dtype=torch.uint8, device=GPU, generator=chance) for n in counts]
        for turn in range(6):
            query = torch.randn(32_000, device=GPU, generator=chance) ** 3
            likely = (query > 0) ^ (torch.rand(32_000, device=GPU, generator=chance) < 0.35)
            powers = 2 ** torch.arange(8, device=GPU)
            blocks[turn % len(blocks)][:, -1] = (likely.view(-1, 8) * powers).sum(1).to(torch.uint8)
            wanted = [(0, 3000, 300), (3000, 4000, 100)]
            alive = None if turn % 2 else torch.rand(sum(counts), device=GPU, generator=chance) < 0.9
            found = [way(query, wanted, blocks, alive) for way in (short.triton_nearest, short.plain_nearest)]
            same, total = same + int(found[0] == found[1]), total + 1
    net = FrozenNet(nets.lenet_300_100(500), 0, GPU)
    means = {name: torch.rand(shape, device=GPU, generator=chance) for name, shape in net.shapes.items()}
    x, names, apart = torch.randn(1, 1, 784, device=GPU, generator=chance), list(net.weights), 0.0
    for goal in (Goal("H", 10), Goal("G", 10)):
        fast, plain = (way(net, x, means, goal, names) or {} for way in (lone_query, fully_connected_query))
        for name in names:
            expected = dense(plain[name])
            apart = max(apart, float((dense(fast[name]) - expected).abs().max() / expected.abs().max()))
    return {"same answers": same, "of": total, "queries apart by": apart}


def lone(tasks: int) -> dict[str, object]:
    """A lone image among random masks: the whole answer, the graph alone, and its kernels."""
    net = FrozenNet(nets.lenet_300_100(500), 0, GPU)
    bank = Bank(net.shapes, GPU)
    bank.add_packed(torch.randint(256, (bank.length, tasks), dtype=torch.uint8, device=GPU))
    x = torch.randn(1, 1, 784, device=GPU)
    replaced: dict[str, object] = {"k": tasks}
    for name, how in {"short": FEW, "exact": Inference(layers="first")}.items():

        def whole(how: Inference = how) -> int:
            return int(infer(net, bank, x, None, 10, how))

        for _ in range(5):
            whole()
        (replay,) = (each for each in bank.replays._by_question.values() if each is not None)

        def graph(replay: Replay = replay) -> None:
            replay.graph.replay()
            torch.cuda.synchronize()

        replaced[name] = {"answer ms": median(whole), "graph ms": median(graph), "kernels": kernels(graph)}
        bank.replays.clear()
    return replaced


def median(work: Callable[[], object]) -> float:
    times = []
    for _ in range(200):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times)


def kernels(work: Callable[[], object], times: int = 20) -> list[str]:
    """Kernels by the µs that each takes in a run, and how often it comes."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(times):
            work()
    rows = sorted(seen.key_averages(), key=lambda row: -row.device_time_total)
    return [f"{row.device_time_total / times:.1f} µs, {row.count / times:.0f} × {row.key[:60]}" for row in rows[:30]]


def growth(tasks: str, steps: int, images: int, coordinates: Sequence[int], out: Path) -> dict[str, object]:
    """As `supsup bench infer`, for several numbers of coordinates with the same masks; a file for each."""
    counts, machine = [int(word) for word in tasks.split(",")], measure_machine(GPU)
    stream = data.permuted(data.mnist(), max(counts))
    model, taken = learned(nets.lenet_300_100(500), stream, Recipe(steps=steps), GPU)
    replaced: dict[str, object] = {
        "learning seconds": taken,
        "steps": steps,
        "memory, GB": torch.cuda.max_memory_allocated() / 1e9,
    }
    for number in coordinates:
        begin = time.perf_counter()
        how = Inference(layers="first", coordinates=number)
        rows = [as_record(row) for row in bench_growth(model, stream, counts, images, machine, how)]
        record = {"what": "a lone image among k tasks", "net": "lenet_300_100", "outputs": 500, "steps": steps}
        record |= {"coordinates": number, "layers": "first", "tasks learned": max(counts), "learning seconds": taken}
        record |= {"machine": vars(machine), "rows": rows, "made by": provenance(GPU)}
        file = out if number == coordinates[0] else out.with_name(f"{out.stem}-{number}.json")
        file.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        write(
            file.with_suffix(".svg"), search_plot(f"LeNet 300-100, a lone image among k tasks, {steps} batches", rows)
        )
        replaced[f"{number} coordinates"] = {"seconds": time.perf_counter() - begin}
        for row in rows:
            print(", ".join(f"{key} {value:.5g}" for key, value in row.items() if isinstance(value, int | float)))
    return replaced


def from_disk(tasks: int) -> dict[str, object]:
    """A file of so many LeNet tasks: written, its blocks made, opened from them, and the first answer, on the CPU."""
    replaced: dict[str, object] = {"tasks": tasks}
    with tempfile.TemporaryDirectory() as folder:
        path, warm = Path(folder) / "model", Path(folder) / "warm"
        make(warm, NETS["small"](), 100)
        begin = time.perf_counter()
        make(path, NETS["lenet"](), tasks)
        replaced |= {"written, s": time.perf_counter() - begin, "file, MB": path.stat().st_size / 1e6}
        for name in ("blocks made", "blocks there"):
            process = Opened(path, warm, "disk")
            replaced[name] = process.replaced() | {"memory of its own, MB": process.memory("Anonymous") / 1e6}
            process.end()
    return replaced


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", default="250,1000,2500,10000,20000")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--coordinates", type=int, nargs="+", default=[16384, 32768])
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--trained", help="so many tasks with 1,000 batches each")
    parser.add_argument("--disk", type=int, help="a file of so many tasks")
    parser.add_argument("--only", help="one of the parts: growth, trained, disk, …")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    parts: dict[str, Callable[[], dict[str, object]]] = {"kernels against plain": kernels_against_plain}
    counts = [int(word) for word in asked.tasks.split(",")]
    parts |= {f"lone {count}": lambda count=count: lone(count) for count in counts if count in (2500, 100_000)}  # type: ignore[misc]
    how = (asked.images, asked.coordinates)
    parts["growth"] = lambda: growth(asked.tasks, asked.steps, *how, asked.out / "search-growth-h200.json")
    if asked.trained:
        file = asked.out / "search-trained-h200.json"
        parts["trained"] = lambda: growth(asked.trained, 1000, *how, file)
    if asked.disk:
        parts["disk"] = lambda: from_disk(asked.disk)
    replaced: dict[str, object] = {"made by": provenance(GPU)}
    for name, part in parts.items():
        if asked.only not in (None, name):
            continue
        begin = time.perf_counter()
        try:
            replaced[name] = part()
        except Exception:
            traceback.print_exc()
            replaced[name] = {"failed": traceback.format_exc()}
        print(f"{name}: {time.perf_counter() - begin:.1f} s", json.dumps(replaced[name], indent=1, ensure_ascii=False))
        (asked.out / "search-gpu.json").write_text(json.dumps(replaced, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
