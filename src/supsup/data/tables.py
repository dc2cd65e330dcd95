"""Tables from files: CSV, Parquet and NPZ → columns, and rows → tasks."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from supsup.data.formats import LABELS
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import quoted

Columns = Mapping[str, Any]
SUFFIXES = (".csv", ".tsv", ".parquet", ".npz")
_PAIRS = (("x", "y"), ("X", "y"), ("images", "labels"), ("data", "target"), ("train_x", "train_y"))


def columns(path: Path) -> dict[str, Any]:
    """The columns of a CSV, TSV or Parquet file, as numbers where all values are."""
    try:
        return _parquet(path) if path.suffix == ".parquet" else _text(path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SupSupError(f"{path} cannot be read: {error}") from error


def arrays(path: Path) -> dict[str, Any]:
    """The arrays of an NPZ file; pickled ones are refused."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as error:  # numpy raises nearly anything on a damaged file
        raise SupSupError(f"{path} cannot be read as a file of plain arrays: {error}") from error


def pair(found: Mapping[str, Any], path: Path) -> tuple[Any, Any]:
    """Inputs and labels of an NPZ file, by their usual names."""
    for inputs, labels in _PAIRS:
        if inputs in found and labels in found:
            return found[inputs], found[labels]
    ways = " or ".join(f"{inputs} and {labels}" for inputs, labels in _PAIRS[:4])
    raise SupSupError(f"{path} has the arrays {', '.join(found) or 'none'}; give {ways}")


def features(found: Columns, without: tuple[str | None, ...], path: Path) -> Any:
    """float64 [rows, features] of all columns but these; an error that names one that holds text."""
    kept = {name: values for name, values in found.items() if name not in without}
    if not kept:
        raise SupSupError(f"{path} has no column but {', '.join(map(str, found))}; give one for each feature")
    for name, values in kept.items():
        if values.dtype.kind not in "biuf":
            example = next((value for value in values.tolist() if not _is_number(value)), "")
            raise SupSupError(
                f"{path}: column {quoted(name)} holds text ({quoted(example)}); give numbers, or leave it out of the file"
            )
    return np.stack([values.astype(np.float64) for values in kept.values()], 1)


def column(found: Columns, name: str, path: Path) -> Any:
    """One column, or an error that lists those there are."""
    if name not in found:
        raise SupSupError(f"{path} has no column {quoted(name)}; it has {quoted(list(found))}")
    return found[name]


def label_column(found: Columns, label: str | None, path: Path) -> str:
    """The column of the labels: as said, or one with a usual name."""
    if label is not None:
        column(found, label, path)
        return label
    usual = [name for name in found if name.lower() in LABELS]
    if len(usual) != 1:
        raise SupSupError(f"say which column of {path} has the labels: --label COLUMN, one of {quoted(list(found))}")
    return usual[0]


def _text(path: Path) -> dict[str, Any]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ","))
    rows = [row for row in rows if row]
    if len(rows) < 2:
        raise SupSupError(f"{path} has no rows; give a line with the names of the columns and one for each example")
    names, rows = rows[0], rows[1:]
    if len(set(names)) != len(names):
        raise SupSupError(f"{path} has two columns of one name; the first line must name each column")
    wrong = next((number for number, row in enumerate(rows, 2) if len(row) != len(names)), None)
    if wrong is not None:
        raise SupSupError(f"{path}, line {wrong}: {len(rows[wrong - 2])} values for {len(names)} columns")
    return {name: _values([row[index].strip() for row in rows]) for index, name in enumerate(names)}


def _values(texts: list[str]) -> Any:
    """Whole numbers, real numbers or texts, whichever all are."""
    for kind in (np.int64, np.float64):
        try:
            return np.array(texts).astype(kind)
        except (ValueError, OverflowError):
            continue
    return np.array(texts)


def _parquet(path: Path) -> dict[str, Any]:
    if find_spec("polars") is None:
        raise SupSupError(f"{path} is read with polars, which is not installed: pip install 'supsup[tables]'")
    import polars

    try:
        frame = polars.read_parquet(path)
    except Exception as error:  # polars has errors of its own
        raise SupSupError(f"{path} cannot be read as Parquet: {error}") from error
    found = {name: frame[name].to_numpy() for name in frame.columns}
    return {name: values.astype(str) if values.dtype == object else values for name, values in found.items()}


def _is_number(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True
