"""Hashes of masks, answers and model files: run before and after a refactoring, and compare.

`--out before.json` in one tree, `--compare before.json` in the other. Hashes depend on the machine (its matrix products
round in their own way), so they are compared between two trees on one machine and are not kept in results/.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

import supsup
from supsup import AutoRecipe, HopSupSup, Inference, NewTaskRule, Recipe, SupSup, UnitRecipe, data, nets
from supsup.runtime import clock

Hashes = dict[str, str]
_SETTINGS = (
    Inference("auto"),
    Inference("features"),
    Inference("one-shot"),
    Inference("one-shot", objective="G", layers="first"),
    Inference("one-shot", coordinates=512),
    Inference("binary"),
    Inference("gamma", gamma=0.4),
    Inference("descent", steps=5),
    Inference("exhaustive"),
    Inference("exhaustive", objective="energy"),
    Inference("exhaustive", objective="mixture"),
)


def digest(*values: object) -> str:
    """One hash of tensors, arrays, bytes, names and numbers."""
    made = hashlib.sha256()
    for value in values:
        if isinstance(value, Tensor):
            value = value.detach().cpu().contiguous().numpy()
        made.update(value.tobytes() if isinstance(value, np.ndarray) else value if isinstance(value, bytes) else b"")
        if not isinstance(value, np.ndarray | bytes):
            made.update(repr(value).encode())
    return made.hexdigest()[:16]


def model_hashes(model: SupSup, x: Tensor, folder: Path) -> Iterator[tuple[str, str]]:
    """Of a learned model: each mask, answers by every method, and the file."""
    for name in model.tasks:
        yield f"mask of {name}", digest(*(bits for _, bits in sorted(model.mask(name).items())))
        yield f"subnetwork of {name}", digest(*(value for _, value in sorted(model.subnetwork(name).items())))
        given = model.predict(x, task=name)
        yield f"answers as {name}", digest(given.labels, given.confidence)
    for how in _SETTINGS:
        if how.objective == "G" and not isinstance(model.module, nets.FullyConnected):
            continue
        try:
            answer = model.predict(x, inference=how)
            batch = model.infer_task(x, per="batch", **vars(how))
            yield f"by {how}", digest(answer.labels, answer.tasks, answer.confidence, batch)
            yield f"scores by {how}", digest(model.task_scores(x, inference=how))
        except supsup.SupSupError as error:
            yield f"by {how}", f"error: {type(error).__name__}"
    try:
        refused = model.predict(x, unknown=True)
        yield "unknown", digest(refused.labels, refused.tasks)
    except supsup.SupSupError as error:
        yield "unknown", f"error: {type(error).__name__}"
    path = folder / "model.supsup"
    path.unlink(missing_ok=True)
    model.save(path)
    yield "file", digest(path.read_bytes())
    path.unlink()


class _Convolutions(nn.Module):
    """A network of somebody's own: convolutions, normalisation, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, 2, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.ReLU()
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(16 * 36, 10))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.body(x))
        return found


def _first(task: data.Task, count: int) -> tuple[Tensor, Tensor]:
    return task.train.batch(torch.arange(count))


def permutations(folder: Path) -> Iterator[tuple[str, str]]:
    """Fully connected, many at once, by an explicit recipe."""
    stream = data.permuted(data.digits(), tasks=5, seed=0)
    model = SupSup(nets.lenet_300_100(outputs=50), recipe=Recipe(steps=60), device="cpu")
    model.learn_many(stream, show_progress=False)
    yield from model_hashes(model, stream[1].test.batch(torch.arange(60))[0], folder)
    model.forget("permutation-2")
    yield from (
        (f"{name}, after forgetting", found) for name, found in model_hashes(model, _first(stream[3], 20)[0], folder)
    )


def splits(folder: Path) -> Iterator[tuple[str, str]]:
    """By default settings: recipe and inference are chosen."""
    model = SupSup(nets.lenet_300_100(outputs=10), device="cpu")
    stream = data.split(data.digits(), 5)
    for task in stream[:3]:
        model.learn(_first(task, 300), task=task.name, show_progress=False)
    yield from model_hashes(model, _first(stream[1], 400)[0][300:], folder)


def edge_popup(folder: Path) -> Iterator[tuple[str, str]]:
    """Edge-popup, transfer of masks, all optimisers, one task at a time and together."""
    stream = data.split(data.digits(), 5)
    for number, recipe in enumerate(
        (
            Recipe("adam", 1e-2, steps=15, selection="edge-popup", budget=4, schedule="cosine", warm_up=0.2),
            Recipe("sgd", 0.1, steps=15, momentum=0.9, weight_decay=1e-4, transfer="masks"),
            Recipe(steps=15, transfer="scores"),
        )
    ):
        model = SupSup(nets.FullyConnected((784, 60, 20)), recipe=recipe, inference=Inference(), device="cpu")
        model.learn_many(stream[:3], show_progress=False)
        yield from (
            (f"{number}: {name}", found) for name, found in model_hashes(model, _first(stream[1], 30)[0], folder)
        )


def own_network(folder: Path) -> Iterator[tuple[str, str]]:
    """A module of somebody's own, by default and by an explicit recipe; and with its weights kept."""
    stream = data.split(data.digits(), 5)
    torch.manual_seed(0)
    for number, settings in enumerate(
        (
            {"recipe": Recipe(steps=10)},
            {"recipe": AutoRecipe(rounds=1)},
            {"pretrained": True, "recipe": Recipe(steps=6)},
        )
    ):
        model = SupSup(_Convolutions(), device="cpu", **settings)  # type: ignore[arg-type]
        for task in stream[:2]:
            x, y = _first(task, 120)
            model.learn((x.reshape(-1, 1, 28, 28), y), task=task.name, show_progress=False)
        x = _first(stream[1], 30)[0].reshape(-1, 1, 28, 28)
        yield from ((f"{number}: {name}", found) for name, found in model_hashes(model, x, folder))


def residual(folder: Path) -> Iterator[tuple[str, str]]:
    """A small residual network with rotations as labels, on colour images that are varied."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (80, 3, 16, 16), generator=generator).to(torch.uint8)
    y = torch.arange(80) % 2
    recipe = Recipe("adam", 1e-2, steps=4, batch_size=16, selection="edge-popup", budget=8, self_labels="rotations")
    model = SupSup(nets.small_resnet(8), recipe=recipe, device="cpu")
    for name in ("a", "b"):
        model.learn((x, y), task=name, show_progress=False)
        x = 255 - x
    yield from model_hashes(model, x[:12], folder)


def unannounced(folder: Path) -> Iterator[tuple[str, str]]:
    """`observe` on two tasks."""
    stream = data.permuted(data.digits(), tasks=2, seed=3)
    rule = NewTaskRule(every=5)
    model = SupSup(nets.FullyConnected((784, 50, 40)), recipe=Recipe(steps=20), new_task_rule=rule, device="cpu")
    for task in stream:
        for batch in range(10):
            x, y = task.train.batch(torch.arange(batch * 64, batch * 64 + 64))
            yield f"{task.name} {batch}", digest(model.observe(x, y))
    yield from model_hashes(model, _first(stream[1], 30)[0], folder)


def table(folder: Path) -> Iterator[tuple[str, str]]:
    """A table with names for its classes."""
    generator = np.random.default_rng(0)
    model = SupSup(nets.FullyConnected((6, 64, 64, 4)), device="cpu")
    for name in ("first", "second"):
        x = generator.normal(size=(150, 6))
        y = np.array(["low", "middle", "high"])[np.digitize(x[:, 0] + x[:, 1], [-0.5, 0.5])]
        model.learn((x, y), task=name, show_progress=False)
    yield from model_hashes(model, torch.from_numpy(x[:20]), folder)


def hopfield(folder: Path) -> Iterator[tuple[str, str]]:
    """HopSupSup: the memory, a recovered mask, the file."""
    stream = data.split(data.digits(), 5)
    model = HopSupSup(nets.HopMLP((784, 64, 64, 10)), recipe=UnitRecipe(), device="cpu")
    for task in stream[:2]:
        model.learn(task)
    for task in stream[:2]:
        x = task.test.batch(torch.arange(60))[0]
        yield task.name, digest(model.predict(x, task=task.name).labels)
        yield f"{task.name}, task unknown", digest(model.predict(x).labels)
    path = folder / "hop.supsup"
    path.unlink(missing_ok=True)
    model.save(path)
    yield "file", digest(path.read_bytes())


CASES: tuple[Callable[[Path], Iterator[tuple[str, str]]], ...] = (
    permutations,
    splits,
    edge_popup,
    own_network,
    residual,
    unannounced,
    table,
    hopfield,
)


def fingerprints(only: str | None = None) -> Hashes:
    """All hashes, by case and what is hashed."""
    found: Hashes = {}
    frozen = SimpleNamespace(now=lambda zone: datetime(2020, 1, 1, tzinfo=zone))
    with tempfile.TemporaryDirectory() as folder, patch.object(clock, "datetime", frozen):
        for case in CASES:
            if only in (None, case.__name__):
                print(case.__name__, file=sys.stderr)
                found |= {f"{case.__name__}: {name}": value for name, value in case(Path(folder))}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write the hashes to this file")
    parser.add_argument("--compare", type=Path, help="hashes of another tree; exit code 1 if any differs")
    parser.add_argument("--case", choices=[case.__name__ for case in CASES], help="this case alone")
    options = parser.parse_args()
    torch.set_num_threads(2)
    found = fingerprints(options.case)
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    if options.compare is None:
        print(f"{len(found)} hashes")
        return 0
    before: dict[str, Any] = json.loads(options.compare.read_text())
    differing = [name for name in found if before.get(name) != found[name]]
    print(*differing, f"{len(found) - len(differing)} of {len(found)} hashes are the same", sep="\n")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
