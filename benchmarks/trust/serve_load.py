"""A server under load: every answer checked, and the gain from batching.

    python -m benchmarks serve_load [--seconds 60] [--clients 16]

A mixed load on a served file: some clients ask (task known, task unknown among all or some), some learn and forget
tasks again and again, some send what must be refused. Every answer is compared with the library's own for a state of
the model that there can have been at that moment. And requests per second: each image for itself against batches, by
turns, over models of several sizes. Writes results/bench/serve-2-cores.json.

    python -m benchmarks serve_load --only costs

What a request costs, part by part, in processor time, which other work on the machine changes little; and the
ratio that follows for batches. Writes results/bench/serve-costs-2-cores.json.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from PIL import Image

import supsup
from supsup import Inference, Recipe, SupSup, data, nets
from supsup.file.task_record import LearnedTask
from supsup.model.state import state_of
from supsup.serve.requests import LearnRequest, PredictRequest
from supsup.serve.service import ModelService
from supsup_paper.provenance import provenance

OUT = Path("results") / "bench" / "serve-2-cores.json"
COSTS = OUT.with_name("serve-costs-2-cores.json")
KEPT = ("digits", "negatives", "turned", "upside down")
COMING = ("a/b", "c?d", "e & f", "50 %")  # names that are hard on URLs
IMAGES = 24
Pixels = np.ndarray[Any, np.dtype[np.uint8]]


class Connection:
    """One client: requests one after the other over a connection that stays open."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: bytes = b"", kind: str = "application/json") -> tuple[int, Any]:
        """The status of an answer and what it says."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        lines = [
            f"{method} {path} HTTP/1.1",
            "Host: 127.0.0.1",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        lines = answer.decode("latin-1").lower().split("\r\n")
        length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length:"))
        content = await reader.readexactly(length)
        if "connection: close" in lines:
            self.close()
        said = json.loads(content) if "content-type: application/json" in lines else content.decode()
        return int(lines[0].split()[1]), said

    def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


@contextmanager
def server(path: Path, *options: str) -> Iterator[tuple[int, int]]:
    """`supsup serve` in a process of its own: its port and its process."""
    command = [sys.executable, "-m", "supsup", "serve", str(path), "--port", "0", "--device", "cpu", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"COLUMNS": "500"}) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if "http://" not in line:
            raise SystemExit(f"the server did not start: {line}")
        try:
            yield int(line.strip().rpartition(":")[2]), process.pid
        finally:
            process.terminate()
            process.stdout.read()


def png(pixels: Pixels) -> bytes:
    """The bytes of a PNG file."""
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    return content.getvalue()


def form(files: Sequence[tuple[str, bytes]]) -> tuple[bytes, str]:
    """A multipart form of image files, and its type."""
    parts = [
        f'--edge\r\nContent-Disposition: form-data; name="images"; filename="{name}"\r\n'.encode()
        + b"Content-Type: image/png\r\n\r\n" + content + b"\r\n"
        for name, content in files
    ]  # fmt: skip
    return b"".join(parts) + b"--edge--\r\n", "multipart/form-data; boundary=edge"


def folder_of(lesson: LearnRequest) -> list[tuple[str, bytes]]:
    """A task as files in class folders."""
    pairs = enumerate(zip(lesson.images, lesson.labels))
    return [(f"all/{label}/{number}.png", png(image[0])) for number, (image, label) in pairs]


def bomb() -> bytes:
    """A PNG of a few kilobytes that says it has a thousand million pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")

    size = (32_000).to_bytes(4, "big")
    rows = zlib.compress(bytes(1 << 20))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size + size + b"\1\0\0\0\0") + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    )


def lessons() -> dict[str, LearnRequest]:
    """Eight tasks made of real digits: four to be kept, four that come and go."""
    digits = data.digits()
    images, labels = digits.train_images[:400].numpy(), [str(label) for label in digits.train_labels[:400].tolist()]
    chance = np.random.default_rng(0)
    kept: list[Pixels] = [images, 255 - images, np.rot90(images, 1, (2, 3)).copy(), images[:, :, ::-1].copy()]
    coming = [images.reshape(400, 784)[:, chance.permutation(784)].reshape(images.shape) for _ in COMING]
    return {name: LearnRequest(name, pixels, labels) for name, pixels in zip((*KEPT, *COMING), kept + coming)}


@dataclass
class Load:
    """What the clients of the mixed load know and have seen.

    present  the tasks that come and go, as far as anybody can know: True, False, or None while that changes
    turns    how often each has changed
    """

    expected: dict[tuple[object, ...], list[tuple[str, str, float]]]
    present: dict[str, bool | None] = field(default_factory=lambda: dict.fromkeys(COMING, False))
    turns: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)

    def seen(self) -> tuple[dict[str, bool | None], Counter[str]]:
        """What is known at this moment."""
        return dict(self.present), Counter(self.turns)

    def states(self, before: tuple[Any, Any], after: tuple[Any, Any]) -> Iterator[tuple[str, ...]]:
        """The tasks that there can have been between two moments."""
        choices = []
        for name in COMING:
            steady = before[0][name] is not None and before[1][name] == after[1][name]
            choices.append([before[0][name]] if steady else [True, False])
        for chosen in product(*choices):
            yield tuple(name for name, there in zip(COMING, chosen) if there)

    def check(self, image: int, kind: object, answer: Any, states: Iterator[tuple[str, ...]]) -> None:
        """Note an answer that is not the library's own for any of these states."""
        said = (answer["task"], answer["name"], answer["confidence"])
        for state in states:
            task, name, confidence = self.expected[kind, *state][image]
            if (task, name) == said[:2] and abs(confidence - said[2]) < 1e-3:
                return
        self.problems.append(f"image {image}, {kind}: {said}")


def expected(path: Path, asked: Pixels) -> dict[tuple[object, ...], list[tuple[str, str, float]]]:
    """The library's own answers, by what is asked and which of the tasks that come and go are there."""
    reference = ModelService(supsup.load(path, device="cpu"), path)
    found: dict[tuple[object, ...], list[tuple[str, str, float]]] = {}

    def note(kind: object, state: tuple[str, ...], question: PredictRequest) -> None:
        (answer,) = reference.predict([question])
        if isinstance(answer, Exception):
            raise answer
        found[kind, *state] = [(each["task"], each["name"], each["confidence"]) for each in answer["answers"]]

    for name in KEPT:
        note(name, (), PredictRequest(asked, name))
    note("among", (), PredictRequest(asked, None, KEPT[:3]))
    for chosen in product((False, True), repeat=len(COMING)):
        state = tuple(name for name, there in zip(COMING, chosen) if there)
        note("all", state, PredictRequest(asked, None, (*KEPT, *state)))
    return found


async def asking(load: Load, port: int, files: Sequence[bytes], until: float, seed: int) -> None:
    """A client that asks: task known, among some tasks, or among all that there are."""
    client, chance = Connection(port), random.Random(seed)
    while time.monotonic() < until:
        image = chance.randrange(len(files))
        kind = chance.choice([*KEPT, "among", "all", "all", "all"])
        query = {"all": "", "among": "?" + "&".join(f"among={quote(name)}" for name in KEPT[:3])}
        before = load.seen()
        path = "/predict" + query.get(kind, f"?task={quote(kind)}")
        status, said = await client.ask("POST", path, files[image], "image/png")
        if status != 200:
            load.problems.append(f"{path}: {status} {said}")
            continue
        load.counts["asked"] += 1
        states = load.states(before, load.seen()) if kind == "all" else iter([()])
        load.check(image, kind, said["answers"][0], states)
    client.close()


async def changing(load: Load, port: int, body: tuple[bytes, str], name: str, until: float) -> None:
    """A client that learns one task and forgets it, again and again."""
    client, path = Connection(port), f"/tasks/{quote(name, safe='')}"

    async def ended(status: int, job: Any) -> None:
        while status in (200, 202) and job["state"] in ("waiting", "running"):
            await asyncio.sleep(0.05)
            status, job = await client.ask("GET", f"/jobs/{job['id']}")
        if status not in (200, 202) or job["state"] != "done":
            load.problems.append(f"{path}: {status} {job}")

    while time.monotonic() < until:
        for method, there in (("POST", True), ("DELETE", False)):
            load.present[name] = None
            load.turns[name] += 1
            await ended(*await client.ask(method, path, *(body if method == "POST" else ())))
            load.counts["learned" if there else "forgotten"] += 1
            load.present[name] = there
            load.turns[name] += 1
            await asyncio.sleep(0.2)
    client.close()


def bad_requests(good: bytes) -> list[tuple[int, str, str, bytes, str]]:
    """Requests that must be refused, each with the status that is meant."""
    return [
        (400, "POST", "/predict", b"this is no image", "image/png"),
        (400, "POST", "/predict", good[: len(good) // 2], "image/png"),
        (413, "POST", "/predict", bomb(), "image/png"),
        (400, "POST", "/predict", b'{"image": "@@@"}', "application/json"),
        (400, "POST", "/predict", b'{"arrays": [[1, 2, 3]]}', "application/json"),
        (400, "POST", "/predict", b'{"arrays": [[1], [2, 3]]}', "application/json"),
        (400, "POST", "/predict", b"[" * 5000, "application/json"),
        (400, "POST", "/predict?task=nobody", good, "image/png"),
        (415, "POST", "/predict", good, "text/plain"),
        (400, "POST", "/predict", b"--edge\r\nbroken", "multipart/form-data; boundary=edge"),
        (409, "POST", f"/tasks/{KEPT[0]}", *form([("a/1.png", good), ("b/1.png", good)])),
        (400, "POST", "/tasks/new", *form([("1.png", good)])),
        (400, "POST", "/tasks/new", *form([("a/1.png", good)])),
        (400, "POST", "/tasks/new", *form([("a/1.png", good), ("b/1.png", b"no image")])),
        (404, "DELETE", "/tasks/nobody", b"", "application/json"),
        (404, "GET", "/tasks/nobody", b"", "application/json"),
        (404, "GET", "/jobs/none", b"", "application/json"),
        (404, "GET", "/nowhere", b"", "application/json"),
        (405, "DELETE", "/predict", b"", "application/json"),
        (400, "GET", "/tasks?limit=-1", b"", "application/json"),
    ]


async def misusing(load: Load, port: int, good: bytes, until: float) -> None:
    """A client that sends what must be refused."""
    client = Connection(port)
    while time.monotonic() < until:
        for meant, method, path, body, kind in bad_requests(good):
            status, said = await client.ask(method, path, body, kind)
            load.counts["refused"] += 1
            if status != meant or not said.get("error"):
                load.problems.append(f"{method} {path} {body[:40]!r}: {status} {said}, meant was {meant}")
            await asyncio.sleep(0.01)
    client.close()


async def watching(load: Load, port: int, until: float) -> None:
    """The server's memory, once in a while, in MB."""
    client = Connection(port)
    while time.monotonic() < until:
        _, text = await client.ask("GET", "/metrics")
        line = next(line for line in text.splitlines() if line.startswith("process_resident_memory_bytes "))
        load.memory.append(float(line.split()[1]) / 1e6)
        await asyncio.sleep(0.5)
    client.close()


def mixed(folder: Path, seconds: float, clients: int) -> Load:
    """The mixed load, on a file made for it; half as many seconds beforehand, to get warm."""
    every, path = lessons(), folder / "mixed.supsup"
    recipe = Recipe(steps=60, learning_rate=1e-3, batch_size=64)
    SupSup(nets.FullyConnected((784, 100, 20)), recipe=recipe, inference=Inference(), device="cpu").save(path)
    reference = folder / "reference.supsup"
    with supsup.load(path, in_place=True, device="cpu") as model:
        served = ModelService(model, path)
        for name in KEPT:
            served.learn(every[name], lambda share: None)
        model.save(reference)
    with supsup.load(reference, in_place=True, device="cpu") as model:
        served = ModelService(model, reference)
        for name in COMING:
            served.learn(every[name], lambda share: None)
    asked = np.concatenate([every[name].images[: IMAGES // 8] for name in (*KEPT, *COMING)])
    files = [png(image[0]) for image in asked]
    load = Load(expected(reference, asked))
    bodies = {name: form(folder_of(every[name])) for name in COMING}

    async def work(port: int, until: float) -> None:
        some = max(1, clients // 8)
        jobs: list[Awaitable[None]] = [watching(load, port, until)]
        jobs += [changing(load, port, bodies[name], name, until) for name in COMING[: 2 * some]]
        jobs += [misusing(load, port, files[0], until) for _ in range(some)]
        jobs += [asking(load, port, files, until, seed) for seed in range(clients - len(jobs) + 1)]
        await asyncio.gather(*jobs)

    with server(path) as (port, _):
        asyncio.run(work(port, time.monotonic() + seconds))
    left = supsup.load(path, device="cpu").tasks
    if sorted(left) != sorted(KEPT):
        load.problems.append(f"the file holds {left}")
    return load


def random_model(path: Path, tasks: int) -> None:
    """A LeNet of so many random masks of density one half, as threshold masks are: as fast as a learned one."""
    model = SupSup(nets.lenet_300_100(outputs=100), inference=Inference(), device="cpu")
    chance = torch.Generator().manual_seed(0)
    length = len(
        state_of(model).bank.pack({name: torch.zeros(shape) for name, shape in state_of(model).net.shapes.items()})
    )
    packed = torch.randint(256, (length, tasks), dtype=torch.uint8, generator=chance)
    state_of(model).add([LearnedTask(f"task {number}", 10) for number in range(tasks)], packed, {}, (1, 28, 28))
    model.save(path)


def learned_model(path: Path, tasks: int) -> None:
    """A LeNet that learned so many permutations of digits, and finds them in its own way."""
    model = SupSup(nets.lenet_300_100(outputs=100), recipe=Recipe(steps=100), device="cpu")
    model.learn_many(data.permuted(data.digits(), tasks))
    model.save(path)


async def throughput(port: int, files: Sequence[bytes], clients: int, seconds: float, query: str) -> float:
    """Requests per second that so many clients get answered."""
    until, done = time.monotonic() + seconds, 0

    async def one(number: int) -> None:
        nonlocal done
        client = Connection(port)
        while time.monotonic() < until:
            status, said = await client.ask("POST", f"/predict{query}", files[number % len(files)], "image/png")
            if status != 200:
                raise SystemExit(f"{status}: {said}")
            done += 1
            number += clients
        client.close()

    begin = time.monotonic()
    await asyncio.gather(*(one(number) for number in range(clients)))
    return done / (time.monotonic() - begin)


def batching(
    folder: Path, tasks: int, clients: int, seconds: float, query: str = "", turns: int = 3, learned: bool = False
) -> dict[str, Any]:
    """Requests per second, each image for itself and in batches, by turns; medians."""
    path = folder / f"{'learned' if learned else 'random'}-{tasks}.supsup"
    if not path.exists():
        (learned_model if learned else random_model)(path, tasks)
    files = [png(image[0].numpy()) for image in data.digits().test_images[:64]]
    with server(path, "--read-only", "--max-batch", "1") as (alone, _), server(path, "--read-only") as (together, _):

        def rate(port: int, many: int) -> float:
            return asyncio.run(throughput(port, files, many, seconds, query))

        for port in (alone, together):
            rate(port, clients)
        rates = [(rate(alone, clients), rate(together, clients)) for _ in range(turns)]
    one, many = (statistics.median(column) for column in zip(*rates))
    return {
        "tasks": tasks,
        "clients": clients,
        "masks": "learned, the default way" if learned else "random, One-Shot",
        "task": "known" if query else "unknown",
        "one by one, requests/s": round(one, 1),
        "in batches, requests/s": round(many, 1),
        "ratio": round(many / one, 2),
    }


def processor_seconds(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def least(work: Callable[[], object], times: int) -> float:
    """Milliseconds of processor time, the least of some runs."""
    work()
    found = []
    for _ in range(times):
        begin = time.process_time()
        work()
        found.append(time.process_time() - begin)
    return 1e3 * min(found)


def costs(folder: Path, tasks: int, seconds: float = 2) -> dict[str, Any]:
    """Milliseconds of processor time for each request: HTTP, decoding, JSON; and the answer, alone and in batches."""
    path = folder / f"random-{tasks}.supsup"
    random_model(path, tasks)
    images = data.digits().test_images[:64].numpy()
    files = [png(image[0]) for image in images]
    torch.set_num_threads(1)
    served = ModelService.open(path, read_only=True, device="cpu")

    def answer(count: int, task: str | None = None) -> float:
        questions = [PredictRequest(images[number : number + 1], task) for number in range(count)]
        return least(lambda: served.predict(questions), 4) / count

    with server(path, "--read-only") as (port, pid):
        query = f"?task={quote('task 0')}"
        asyncio.run(throughput(port, files, 16, seconds, query))
        begin, start = processor_seconds(pid), time.monotonic()
        rate = asyncio.run(throughput(port, files, 16, seconds, query))
        each = 1e3 * (processor_seconds(pid) - begin) / (rate * (time.monotonic() - start))
    around = max(0.0, each - answer(16, "task 0"))
    alone, some, many = answer(1), answer(16), answer(64)
    return {
        "tasks": tasks,
        "HTTP, decoding and JSON, ms": round(around, 2),
        "answer alone, ms": round(alone, 2),
        "answer in a batch of 16, ms": round(some, 2),
        "answer in a batch of 64, ms": round(many, 2),
        "ratio by this, batches of 16": round((alone + around) / (some + around), 2),
        "ratio by this, batches of 64": round((alone + around) / (many + around), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--only", choices=["mixed", "batching", "costs"])
    chosen = parser.parse_args()
    if chosen.only == "costs":
        with tempfile.TemporaryDirectory() as name:
            rows = [costs(Path(name), tasks) for tasks in (20, 250, 2500)]
        print(*rows, sep="\n")
        COSTS.write_text(json.dumps({"rows": rows, "made by": provenance(torch.device("cpu"))}, indent=1) + "\n")
        return
    record: dict[str, Any] = json.loads(OUT.read_text()) if chosen.only and OUT.exists() else {}
    with tempfile.TemporaryDirectory() as name:
        if chosen.only != "mixed":
            rows = []
            sizes = ((20, 16, False), (250, 16, False), (2500, 16, False), (2500, 64, False))
            for tasks, clients, learned in (*sizes, (20, 16, True), (20, 64, True), (100, 64, True)):
                rows.append(batching(Path(name), tasks, clients, 4, learned=learned))
                print(rows[-1], flush=True)
            record["batching"] = rows
        if chosen.only != "batching":
            load = mixed(Path(name), chosen.seconds, chosen.clients)
            quarter = max(1, len(load.memory) // 4)
            record["mixed load"] = {
                "seconds": chosen.seconds,
                "clients": chosen.clients,
                **load.counts,
                "wrong answers and errors": len(load.problems),
                "memory, MB": {
                    "second quarter": round(statistics.median(load.memory[quarter : 2 * quarter]), 1),
                    "last quarter": round(statistics.median(load.memory[-quarter:]), 1),
                },
            }
            print(record["mixed load"], *load.problems[:20], sep="\n")
    record["cores"] = os.cpu_count()
    record["made by"] = provenance(torch.device("cpu"))
    OUT.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
