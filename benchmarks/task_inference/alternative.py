"""SupSup by default beside one linear classifier that is fitted again to all data: the obvious alternative.

    python -m benchmarks alternative --data-dir DIR [--row clinc150 --row tables --row photographs] [--seeds 3]

DIR holds clinc150/, mnist/, tiny-imagenet/ and weights/. Nobody names the task; "given" has it named, and a linear
classifier for each task.
Every row and seed runs both in one process; what was run is not run again (`--again` does). Writes
results/alternative-2-cores.json, from which `python -m benchmarks alternative_table` makes the README's table.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.task_inference.omniglot_commands import supsup
from supsup import SupSup, data, load, nets
from supsup.data.folder import decode_files, list_classes
from supsup_paper.provenance import provenance

ROOT = Path(__file__).parents[2]
OUT = ROOT / "results" / "alternative-2-cores.json"
SHARES = np.linspace(0.01, 0.99, 50)  # of known inputs to reject: points of the curve whose area is measured
FEW_SHARES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.7)  # of photographs, which take longer
HASHED = 2048  # numbers of a hashed sentence
Array = NDArray[np.float32]


class Named(NamedTuple):
    """A task: training and test inputs with labels 0 … classes − 1."""

    name: str
    x: Array
    y: NDArray[np.int64]
    test_x: Array
    test_y: NDArray[np.int64]
    classes: int


def main(
    data_dir: Annotated[Path, typer.Option(envvar="SUPSUP_DATA", help="The folder with the data sets.")],
    row: Annotated[list[str], typer.Option(help="Rows to run (default: all).")] = [],  # noqa: B006
    seeds: Annotated[int, typer.Option(help="Seeds 0 … n − 1.", min=1)] = 3,
    again: Annotated[bool, typer.Option(help="Also run what has been run.")] = False,
    out: Path = OUT,
) -> None:
    measured: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {}
    for name in row or ROWS:
        for seed in range(seeds):
            if again or str(seed) not in measured.get(name, {}):
                found = ROWS[name](data_dir, seed)
                measured.setdefault(name, {})[str(seed)] = found | {"made by": provenance(torch.device("cpu"))}
                out.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
                print(name, seed, json.dumps({way: found[way] for way in ("supsup", "linear classifier")}), flush=True)


def clinc150(folder: Path, seed: int) -> dict[str, Any]:
    """Ten domains of 15 intents; the seed orders the domains."""
    content = json.loads((folder / "clinc150" / "data_full.json").read_text(encoding="utf-8"))
    domains = json.loads((folder / "clinc150" / "domains.json").read_text(encoding="utf-8"))
    tasks = []
    for index in np.random.default_rng(seed).permutation(len(domains)):
        domain, intents = list(domains.items())[index]
        number = {intent: i for i, intent in enumerate(intents)}
        train, test = ([pair for pair in content[part] if pair[1] in number] for part in ("train", "test"))
        x, test_x = (hashed([sentence for sentence, _ in part]) for part in (train, test))
        y, test_y = (np.array([number[intent] for _, intent in part]) for part in (train, test))
        tasks.append(Named(domain, x, y, test_x, test_y, len(intents)))
    strange = hashed([sentence for sentence, _ in content["oos_test"]])
    model = SupSup(nets.FullyConnected((HASHED, 300, 100, 15)), seed=seed, device="cpu")
    return compared(model, tasks, LogisticRegression(C=10, max_iter=1000), strange)


def tables(folder: Path, seed: int) -> dict[str, Any]:
    """Tables of different width, filled up with zeros, as tasks of one model; the seed splits rows."""
    sources = {
        "wine": datasets.load_wine(return_X_y=True),
        "breast cancer": datasets.load_breast_cancer(return_X_y=True),
        "digits": datasets.load_digits(return_X_y=True),
        "iris": datasets.load_iris(return_X_y=True),
        "mnist": _mnist(folder, seed),
    }
    width = max(x.shape[1] for x, _ in sources.values())
    tasks = []
    for name, (x, y) in sources.items():
        rows = np.pad(x, ((0, 0), (0, width - x.shape[1]))).astype(np.float32)
        a, b, c, d = train_test_split(rows, y.astype(np.int64), test_size=0.3, random_state=seed, stratify=y)
        tasks.append(Named(name, a, c, b, d, int(y.max()) + 1))
    model = SupSup(nets.FullyConnected((width, 300, 100, 10)), seed=seed, device="cpu")
    return compared(model, tasks, make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)))


def photographs(folder: Path, seed: int) -> dict[str, Any]:
    """Three tasks of five classes of 32 JPEGs by `supsup learn`, beside MobileNetV2's features at 224 pixels.

    The classes are drawn by the seed from Tiny-ImageNet, 50 validation images of each are asked about, and 20 of each
    of ten other classes. `supsup learn` keeps one more picture of each class to report its accuracy.
    """
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        tasks, strange = _draw_photographs(folder, place, seed)
        begin = time.perf_counter()
        supsup(place, "learn", "model.supsup", "train", "--each", "--test-share", "0.03", "--device", "cpu")
        seconds = time.perf_counter() - begin
        model, size = load(place / "model.supsup", device="cpu"), (place / "model.supsup").stat().st_size
        side = model.image_shape[-1] if model.image_shape else 0
        known = [(task, kind, path) for task, kinds in tasks.items() for kind in kinds for path in kinds[kind]]
        pictures = {split: decode_files(paths, side, side, side) for split, paths in (
            ("known", [str(path) for *_, path in known]), ("strange", list(map(str, strange)))
        )}  # fmt: skip
        answer = model.predict(pictures["known"])
        sure = answer.task_confidence.numpy()
        found = np.array([one == task for one, (task, *_) in zip(answer.tasks, known)])
        right = found & np.array([one == kind for one, (_, kind, _) in zip(answer.names, known)])
        given = [
            one == kind
            for task in tasks
            for rows in [[row for row, each in enumerate(known) if each[0] == task]]
            for one, kind in zip(model.predict(pictures["known"][rows], task).names, [known[row][1] for row in rows])
        ]
        ours = {
            "labels, %": 100 * right.mean(),
            "task, %": 100 * found.mean(),
            "given, %": 100 * np.mean(given),
            "calibration error of tasks, %": 100 * calibration_error(sure, found),
            "seconds": seconds,
            "bytes": size,
            "known rejected, %": 100 * rejected(model, pictures["known"], 0.05),
            "area of strange inputs, %": 100
            * area(lambda share, x: rejected(model, x, share), pictures["known"], pictures["strange"], FEW_SHARES),
        }
        begin = time.perf_counter()
        learned = [(task, kind, path) for task in tasks for kind in tasks[task] for path in _learned(place, task, kind)]
        x = _mobilenet_features([path for *_, path in learned])
        kinds = np.array([kind for _, kind, _ in learned])
        linear = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(x, kinds)
        seconds = time.perf_counter() - begin
        test_x, truth = _mobilenet_features([path for *_, path in known]), np.array([kind for _, kind, _ in known])
        owner = {kind: task for task, some in tasks.items() for kind in some}
        guess = linear.predict(test_x)
        alone = np.concatenate([
            clone(linear).fit(x[rows], kinds[rows]).predict(test_x[asked]) == truth[asked]
            for task in tasks
            for rows, asked in [([owner[kind] == task for kind in kinds], [owner[kind] == task for kind in truth])]
        ])  # fmt: skip
        other = {
            "labels, %": 100 * (guess == truth).mean(),
            "task, %": 100 * np.mean([owner[one] == owner[kind] for one, kind in zip(guess, truth)]),
            "given, %": 100 * alone.mean(),
            "seconds": seconds,
            "bytes": 4 * len(owner) * x.shape[1],
            "area of strange inputs, %": 100
            * float((linear.predict_proba(test_x).max(1)[:, None]
                     > linear.predict_proba(_mobilenet_features(strange)).max(1)[None]).mean()),
        }  # fmt: skip
    rounded = [{key: round(float(value), 3) for key, value in way.items()} for way in (ours, other)]
    return {"tasks": len(tasks), "images": len(known), "supsup": rounded[0], "linear classifier": rounded[1]}


def _draw_photographs(folder: Path, place: Path, seed: int) -> tuple[dict[str, dict[str, list[Path]]], list[Path]]:
    """Training pictures written to train/TASK/CLASS; the test pictures of each task and class, and those of others."""
    archives = [zipfile.ZipFile(path) for path in sorted((folder / "tiny-imagenet").glob("part-*.zip"))]
    files: dict[tuple[str, str], list[tuple[zipfile.ZipFile, str]]] = {}
    for archive in archives:
        for entry in sorted(name for name in archive.namelist() if name.endswith(".JPEG")):
            files.setdefault((entry.split("/")[0], entry.split("/")[1]), []).append((archive, entry))
    draw = np.random.default_rng(seed)
    drawn = draw.permutation(sorted({kind for _, kind in files})).tolist()

    def write(half: str, kind: str, count: int, into: Path) -> list[Path]:
        into.mkdir(parents=True, exist_ok=True)
        every = files[half, kind]
        paths = []
        for number in draw.permutation(len(every))[:count]:
            archive, entry = every[number]
            paths.append(into / Path(entry).name)
            paths[-1].write_bytes(archive.read(entry))
        return paths

    tasks: dict[str, dict[str, list[Path]]] = {}
    for number, kind in enumerate(drawn[:15]):
        task = f"task-{number // 5}"
        write("train", kind, 33, place / "train" / task / kind)
        tasks.setdefault(task, {})[kind] = write("val", kind, 50, place / "val" / kind)
    strange = [path for kind in drawn[15:25] for path in write("val", kind, 20, place / "val" / kind)]
    return tasks, strange


def _learned(place: Path, task: str, kind: str) -> list[Path]:
    """The 32 pictures of a class that `supsup learn` trains on."""
    split = list_classes(place / "train" / task, 0.03, 0)
    return [Path(path) for path in split.paths[: len(split.train_labels)] if Path(path).parent.name == kind]


def _mobilenet_features(paths: Sequence[Path]) -> Array:
    """[n, 1280]: MobileNetV2's, at 224 pixels."""
    net = nets.mobilenet_v2(10, pretrained=True).eval()
    assert net.pixels is not None
    mean, deviation = (torch.tensor(values).view(3, 1, 1) for values in net.pixels)
    found = []
    with torch.no_grad():
        for start in range(0, len(paths), 16):
            pictures = decode_files([str(path) for path in paths[start : start + 16]], 64, 64, 64)
            found.append(net.features(net.fit_images((pictures.float() / 255 - mean) / deviation)).mean((2, 3)))
    features: Array = torch.cat(found).numpy()
    return features


def _mnist(folder: Path, seed: int) -> tuple[Array, NDArray[np.int64]]:
    """10,000 digits of 14 × 14 pixels."""
    source = data.mnist(folder)
    chosen = torch.randperm(len(source.train_images), generator=torch.Generator().manual_seed(seed))[:10_000]
    small = torch.nn.functional.avg_pool2d(source.train_images[chosen].view(-1, 1, 28, 28).float(), 2)
    return small.flatten(1).numpy(), source.train_labels[chosen].numpy()


def hashed(sentences: Sequence[str]) -> Array:
    """Words, pairs of words and pieces of four letters as 2,048 signed counts: their roots, of length 1."""
    x = np.zeros((len(sentences), HASHED), np.float32)
    for row, sentence in enumerate(sentences):
        words = re.findall(r"\w+", sentence.lower())
        padded = f" {' '.join(words)} "
        grams = [f"w:{word}" for word in words] + [f"b:{one} {other}" for one, other in pairwise(words)]
        for gram in grams + [f"c:{padded[i : i + 4]}" for i in range(len(padded) - 3)]:
            number = zlib.crc32(gram.encode())
            x[row, (number >> 1) % HASHED] += 1 if number & 1 else -1
    x = np.sign(x) * np.sqrt(np.abs(x))
    found: Array = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-9)
    return found


def compared(model: SupSup, tasks: Sequence[Named], linear: Any, strange: Array | None = None) -> dict[str, Any]:
    """Both ways on the same tasks, one after the other."""
    begin = time.perf_counter()
    for task in tasks:
        model.learn((task.x, task.y), task=task.name, show_progress=False)
    seconds = time.perf_counter() - begin
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        size = (Path(folder) / "model").stat().st_size
    x = torch.tensor(np.concatenate([task.test_x for task in tasks]))
    owner = np.repeat(np.arange(len(tasks)), [len(task.test_y) for task in tasks])
    labels = np.concatenate([task.test_y for task in tasks])
    answer = model.predict(x)
    found = np.array([model.tasks.index(name) for name in answer.tasks])
    given = np.concatenate([model.predict(torch.tensor(t.test_x), t.name).labels.numpy() == t.test_y for t in tasks])
    right = (found == owner) & (answer.labels.numpy() == labels)
    ours: dict[str, float] = {
        "labels, %": 100 * right.mean(),
        "task, %": 100 * (found == owner).mean(),
        "given, %": 100 * given.mean(),
        "calibration error of tasks, %": 100 * calibration_error(answer.task_confidence.numpy(), found == owner),
        "seconds": seconds,
        "bytes": size,
        "known rejected, %": 100 * rejected(model, x, 0.05),
    }
    if strange is not None:
        ours["area of strange inputs, %"] = 100 * area(lambda share, inputs: rejected(model, inputs, share), x, strange)
    first = np.cumsum([0, *(task.classes for task in tasks)])
    begin = time.perf_counter()
    linear.fit(
        np.concatenate([task.x for task in tasks]),
        np.concatenate([task.y + start for task, start in zip(tasks, first)]),
    )
    seconds = time.perf_counter() - begin
    p = linear.predict_proba(x.numpy())
    classes = linear.classes_
    best = classes[p.argmax(1)]
    truth = labels + first[owner]
    alone = np.concatenate([clone(linear).fit(t.x, t.y).predict(t.test_x) == t.test_y for t in tasks])
    other: dict[str, float] = {
        "labels, %": 100 * (best == truth).mean(),
        "task, %": 100 * (np.searchsorted(first, best, side="right") - 1 == owner).mean(),
        "given, %": 100 * alone.mean(),  # one classifier for each task
        "seconds": seconds,
        "bytes": 4 * len(classes) * x.shape[1],
    }
    if strange is not None:
        known, unknown = p.max(1), linear.predict_proba(strange).max(1)
        other["area of strange inputs, %"] = 100 * float((known[:, None] > unknown[None]).mean())
    rounded = [{name: round(float(value), 3) for name, value in way.items()} for way in (ours, other)]
    return {"tasks": len(tasks), "images": len(x), "supsup": rounded[0], "linear classifier": rounded[1]}


def rejected(model: SupSup, x: torch.Tensor | Array, share: float) -> float:
    """The share of inputs that are rejected where this share of known ones may be."""
    unknown = model.predict(torch.as_tensor(x), unknown=share).unknown
    assert unknown is not None
    return float(unknown.float().mean())


def area(
    rejecting: Callable[[float, Any], float], known: Any, strange: Any, shares: Sequence[float] = tuple(SHARES)
) -> float:
    """The area under the curve of strange inputs rejected against known ones."""
    points = [(0.0, 0.0), *((rejecting(share, known), rejecting(share, strange)) for share in shares), (1.0, 1.0)]
    return float(sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(points)))


def calibration_error(confidence: NDArray[np.float32], right: NDArray[np.bool_], bins: int = 10) -> float:
    """The mean distance between confidence and accuracy, in bins of confidence."""
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    return float(
        sum(
            (place == i).mean() * abs(confidence[place == i].mean() - right[place == i].mean())
            for i in range(bins)
            if (place == i).any()
        )
    )


ROWS = {"clinc150": clinc150, "tables": tables, "photographs": photographs}

if __name__ == "__main__":
    typer.run(main)
