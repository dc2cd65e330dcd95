"""Data as people have it: every form gives the same numbers, and every wrong one an error that says what to give."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from supsup import SupSupError
from supsup.data.user_data import input_tensor, read_data

X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
Y = ["a", "b", "c", "a", "b", "c"]
PIXELS = np.random.default_rng(1).integers(0, 256, (6, 5, 7, 3), dtype=np.uint8)
COLUMNS = {"one": X[:, 0], "two": X[:, 1], "three": X[:, 2]}


class Pairs(Dataset[tuple[torch.Tensor, str]]):
    """A data set of torch's kind."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[torch.Tensor, str]:
        return torch.from_numpy(X[index]), Y[index]


class Stream(IterableDataset[tuple[torch.Tensor, str]]):
    """One that only goes on."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, str]]:
        return iter([(torch.from_numpy(x), y) for x, y in zip(X, Y)])


class LikeHuggingFace:
    """What `datasets.Dataset` can do: a dict for each row, with an image and the number of a class."""

    column_names: tuple[str, ...] = ("image", "label")

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": Image.fromarray(PIXELS[index]), "label": index % 3, "id": index}


def batches(size: int = 4) -> Iterator[tuple[np.ndarray[Any, Any], list[str]]]:
    for start in range(0, 6, size):
        yield X[start : start + size], Y[start : start + size]


@pytest.mark.parametrize(
    ("make", "label"),
    [
        (lambda: (X, Y), None),
        (lambda: (torch.from_numpy(X), np.array(Y)), None),
        (lambda: [X.tolist(), Y], None),
        (lambda: (list(X), tuple(Y)), None),
        (lambda: (pd.DataFrame(X), pd.Series(Y)), None),
        (lambda: (pd.DataFrame(X), pd.Series(Y, dtype="category")), None),
        (lambda: (pl.DataFrame(X), pl.Series(Y)), None),
        (lambda: pd.DataFrame(COLUMNS | {"label": Y}), None),
        (lambda: pd.DataFrame({"kind": Y} | COLUMNS), "kind"),
        (lambda: pd.DataFrame({7: Y} | COLUMNS), 7),
        (lambda: pl.DataFrame(COLUMNS | {"kind": Y}), "kind"),
        (lambda: {"x": X, "y": Y}, None),
        (Pairs, None),
        (Stream, None),
        (lambda: TensorDataset(torch.from_numpy(X), torch.tensor([0, 1, 2, 0, 1, 2])), None),
        (lambda: DataLoader(Pairs(), batch_size=4), None),
        (lambda: DataLoader(Pairs(), batch_size=None), None),
        (lambda: list(zip(X, Y)), None),
        (lambda: zip(X, Y), None),
        (batches, None),
        (lambda: ({"input": x, "target": y} for x, y in batches()), None),
        (lambda: [{"x": x, "kind": y} for x, y in zip(X, Y)], "kind"),
    ],
)
def test_every_form_gives_the_same(make: Callable[[], Any], label: Any) -> None:
    inputs, labels = read_data(make(), label)
    assert inputs.dtype == torch.float32
    assert torch.equal(inputs, torch.from_numpy(X))
    numbers = np.unique(np.array(list(labels)), return_inverse=True)[1]
    assert numbers.tolist() == [0, 1, 2, 0, 1, 2]


def test_images_of_a_hub_data_set() -> None:
    inputs, labels = read_data(LikeHuggingFace())
    assert inputs.dtype == torch.uint8
    assert torch.equal(inputs, torch.from_numpy(PIXELS))
    assert list(labels) == [0, 1, 2, 0, 1, 2]


def test_a_column_may_hold_whole_images() -> None:
    frame = pd.DataFrame({"image": list(PIXELS), "label": Y})
    assert torch.equal(read_data(frame)[0], torch.from_numpy(PIXELS))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (X.astype(np.float64), torch.float32),
        (X.astype(np.float16), torch.float32),
        (X > 0, torch.float32),
        (PIXELS, torch.uint8),
        (PIXELS.astype(np.int32), torch.int64),
        (PIXELS.astype(">u2"), torch.int64),
        ([[1, 2], [3, 4]], torch.int64),
        ([[1, 2.5], [3, 4]], torch.float32),
        (pd.DataFrame({"a": [1, 2], "b": [3, 4]}), torch.int64),
        (pd.DataFrame({"a": [1, 2], "b": [3.5, 4]}), torch.float32),
        ([torch.tensor([1, 2]), torch.tensor([1.5, 2])], torch.float32),
    ],
)
def test_kinds_of_numbers(values: Any, kind: torch.dtype) -> None:
    assert input_tensor(values).dtype == kind


class Broken:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        raise OSError("the disk is gone")


@pytest.mark.parametrize(
    ("data", "label", "message"),
    [
        (3, None, "give a pair"),
        ("images", None, "no labels; give a pair"),
        (X, None, "no labels; give a pair"),
        (pd.Series(Y), None, "no labels; give a pair"),
        ((X,), None, "a tuple of 1"),
        ((X, Y, Y), None, "a tuple of 3"),
        ((X, Y[:5]), None, "6 inputs and 5 labels"),
        ((X, None), None, "one label for each"),
        ((X[0], Y), None, "give a batch"),
        ((X[:0], []), None, "at least one"),
        (([[1.0], [1.0, 2.0]], [0, 1]), None, "differ in shape"),
        (([np.zeros(2), np.zeros(3)], [0, 1]), None, r"differ in shape \(\(2,\), \(3,\)"),
        (([[1.0, float("nan")], [0.0, 1.0]], [0, 1]), None, "1 of 2 inputs hold NaN"),
        ((np.full((2, 2), np.inf), [0, 1]), None, "2 of 2 inputs"),
        ((np.full((2, 2), 1e300), [0, 1]), None, "float32"),
        ((np.array([["a"], ["b"]]), [0, 1]), None, "array of numbers"),
        (pd.DataFrame({"town": ["x", "y"], "size": [1, 2], "label": [0, 1]}), None, "column 'town' must be .* numbers"),
        (pd.DataFrame({"size": [1, None], "label": [0, 1]}), None, "NaN"),
        (pd.DataFrame({"size": pd.array([1, None], "Int64"), "label": [0, 1]}), None, "NaN"),
        (pl.DataFrame({"size": [1, None], "label": [0, 1]}), None, "NaN"),
        (pd.DataFrame({"size": [1, 2]}), None, "say which of .* label=NAME"),
        (pd.DataFrame({"size": [1, 2], "label": [0, 1], "y": [0, 1]}), None, "label=NAME"),
        (pd.DataFrame({"label": [0, 1]}), None, "no column but the labels"),
        (pd.DataFrame({"size": [1, 2], "label": [0, 1]}), "kind", "no column or key 'kind'"),
        ({"x": X}, None, "label=NAME"),
        ({"left": X, "right": X, "label": Y}, None, "say which of .* holds the inputs"),
        ([], None, "no input"),
        (iter([]), None, "no input"),
        ([(X[0], 0), (X[1], [0])], None, "some entries of the data are batches"),
        ([(X[:2], [0, 1]), (X[:2, :2], [0, 1])], None, "differ in shape"),
        ([(X[:2], [0, 1, 2])], None, "2 inputs and 3 labels"),
        ([1, 2, 3], None, "neither a pair nor a dict"),
        (Broken(), None, "OSError: the disk is gone"),
    ],
)
def test_wrong_ones_say_what_to_give(data: Any, label: Any, message: str) -> None:
    with pytest.raises(SupSupError, match=message):
        read_data(data, label)


def test_nothing_is_imported_for_it(tmp_path: Any) -> None:
    """Who has no frames does not pay for the libraries that make them."""
    import subprocess
    import sys

    code = "import sys, numpy as np, supsup; supsup.data.task((np.eye(4), [0, 1, 0, 1]), 't'); " + (
        "print([name for name in ('pandas', 'polars', 'datasets', 'PIL') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
