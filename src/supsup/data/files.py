"""Tasks from files: folders of images, tables (CSV, TSV, Parquet), arrays (NPZ). They are found first, read later."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from supsup.data.augmentation import Augmentation
from supsup.data.folder import (
    MEMORY_LIMIT,
    common_size,
    decode_files,
    image_sizes,
    list_classes,
    list_images,
    require_pillow,
    split_class,
)
from supsup.data.task import Task
from supsup.data.user_data import LABEL_NAMES
from supsup.data.user_data import task as task_of
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import quoted

Columns = Mapping[str, Any]
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet", ".npz")
DEFAULT_SIZE = 32  # pixels along a side, after resizing
_SMALL_SIDE = 64  # images up to this size are kept as they are
_SAMPLED_IMAGES = 16  # to tell photographs from drawings
_COLOURED = 8.0  # levels of 256: the mean difference of colours in a photograph, at least
_ARRAY_NAMES = (("x", "y"), ("X", "y"), ("images", "labels"), ("data", "target"), ("train_x", "train_y"))


@dataclass(frozen=True)
class ReadOptions:
    """How files become tasks.

    each         every folder in the folder is a task
    label        the column of the labels in a table, and `task_column` that of the tasks
    size         resize images to size × size; None: keep them if all have one small size, else `default_size`
    test_share   of each class, chosen by `seed`, held back to test on
    crop, flip   vary training images: random crops from a frame of an eighth of the image, mirror images
    """

    each: bool = False
    label: str | None = None
    task_column: str | None = None
    size: int | None = None
    test_share: float = 0.2
    seed: int = 0
    crop: bool = True
    flip: bool = False
    default_size: int = DEFAULT_SIZE


@dataclass(frozen=True)
class TaskFile:
    """A task in files that are not read yet; `folder` where they are images."""

    name: str
    read: Callable[[ReadOptions], Task]
    folder: Path | None = None

    def has_photographs(self) -> bool:
        """Whether a sample of its images is in colour and not tiny; drawings, scans and icons are not photographs."""
        files = [] if self.folder is None else list_images(self.folder)
        some = files[:: -(-len(files) // _SAMPLED_IMAGES)] if files else []
        if not some or int(image_sizes(some).min()) < DEFAULT_SIZE:
            return False
        colours = decode_files(some, DEFAULT_SIZE, DEFAULT_SIZE, DEFAULT_SIZE).float()
        return float((colours.amax(1) - colours.amin(1)).mean()) >= _COLOURED


def find_tasks(path: Path, options: ReadOptions, name: str | None = None) -> list[TaskFile]:
    """All tasks at a path; `name` replaces the name of a single one."""
    if name == "":
        raise SupSupError("--task is empty; give the task a name, or leave it out for that of the folder or file")
    if not path.exists():
        raise SupSupError(f"{path} does not exist; give a folder of images, or a .csv, .tsv, .parquet or .npz file")
    if path.is_dir():
        return _find_folders(path, options, name)
    if options.each:
        raise SupSupError(f"{path} is a file, and --each is for a folder of folders; use --task-column for a table")
    called = name or path.stem
    if path.suffix == ".npz":
        return [TaskFile(called, partial(_npz_task, path, called))]
    if path.suffix not in TABLE_SUFFIXES:
        raise SupSupError(f"{path} is no table ({' '.join(TABLE_SUFFIXES)}); images lie in folders, one for each class")
    table = read_columns(path)
    label, group = _label_column(table, options.label, path), options.task_column
    inputs, labels = feature_matrix(table, (label, group), path), table[label]
    if group is None:
        return [TaskFile(called, partial(_split_rows, inputs, labels, called))]
    if name is not None:
        raise SupSupError("--task names one task; with --task-column every value of the column is a task of its own")
    tasks = select_column(table, group, path).astype(str)
    return [
        TaskFile(task, partial(_split_rows, inputs, labels, task, rows=tasks == task))
        for task in dict.fromkeys(tasks.tolist())
    ]


def _find_folders(path: Path, options: ReadOptions, name: str | None) -> list[TaskFile]:
    require_pillow("image files")
    inner = sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if options.each:
        if name is not None:
            raise SupSupError("--task names one task; with --each every folder is a task of its own name")
        if not inner:
            raise SupSupError(f"{path} holds no folders; with --each every folder in it is a task")
        return [TaskFile(entry.name, partial(_read_folder, entry, entry.name), entry) for entry in inner]
    if inner and all(_holds_only_folders(entry) for entry in inner) and not (path / "train").is_dir():
        raise SupSupError(f"{path} looks like a folder of tasks: its folders hold folders and no images; add --each")
    called = name or path.resolve().name
    return [TaskFile(called, partial(_read_folder, path, called), path)]


def _holds_only_folders(folder: Path) -> bool:
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    return bool(entries) and all(entry.is_dir() for entry in entries)


def _read_folder(folder: Path, name: str, options: ReadOptions) -> Task:
    listing = list_classes(folder, options.test_share, options.seed)
    paths, size = listing.paths, options.size
    sizes = image_sizes(paths)
    if size is None and (int(sizes.max()) > _SMALL_SIDE or bool((sizes != sizes[0, 0]).any())):
        size = options.default_size
    height, width = (size, size) if size is not None else common_size(paths, sizes)
    if len(paths) * 3 * height * width > MEMORY_LIMIT:
        raise SupSupError(
            f"{len(paths):,} images of {width}×{height} take more than {MEMORY_LIMIT >> 30} GiB; give a smaller "
            "--size, or learn them from Python: data.image_folder(…, stream=True)"
        )
    train, test = listing.decode(height, width, size)
    names = np.array(listing.names)
    train_labels, test_labels = names[listing.train_labels.numpy()], names[listing.test_labels.numpy()]
    task = task_of((train, train_labels), name, test=(test, test_labels))
    if not options.crop and not options.flip:
        return task
    padding = min(height, width) // 8 if options.crop else 0
    return replace(task, train=replace(task.train, augmentation=Augmentation(padding=padding, flip=options.flip)))


def _npz_task(path: Path, name: str, options: ReadOptions) -> Task:
    stored = read_npz(path)
    if not all(part in stored for part in ("train_x", "train_y", "test_x", "test_y")):
        both = next((pair for pair in _ARRAY_NAMES if all(each in stored for each in pair)), None)
        if both is None:
            usual = " or ".join(f"{inputs} and {labels}" for inputs, labels in _ARRAY_NAMES[:4])
            raise SupSupError(f"{path} has the arrays {', '.join(stored) or 'none'}; give {usual}")
        return _split_rows(stored[both[0]], stored[both[1]], name, options)
    train, test = ((to_tensor(stored[f"{half}_x"]), stored[f"{half}_y"]) for half in ("train", "test"))
    return task_of(train, name, test=test)


def _split_rows(inputs: Any, labels: Any, name: str, options: ReadOptions, rows: Any = slice(None)) -> Task:
    """A task of these rows of arrays, with a share of every class held back to test on."""
    inputs, labels = inputs[rows], labels[rows]
    if len(inputs) != len(labels):
        raise SupSupError(f"there are {len(inputs)} inputs and {len(labels)} labels; give one label each")
    held_out = np.zeros(len(labels), bool)
    for value in np.unique(labels):
        examples = np.flatnonzero(labels == value)
        if len(examples) < 2:
            raise SupSupError(f"class {quoted(value.item())} of {name} has 1 example; give 2 or more, one to test on")
        _, tested = split_class(len(examples), options.test_share, options.seed, f"rows/{value}")
        held_out[examples[tested]] = True
    x = to_tensor(inputs)
    train, test = ((x[torch.from_numpy(chosen)], labels[chosen]) for chosen in (~held_out, held_out))
    return task_of(train, name, test=test)


def find_images(path: Path) -> list[str]:
    """One image file, or all in a folder and its subfolders."""
    if not path.exists():
        raise SupSupError(f"{path} does not exist; give an image, a folder of images or a table")
    found = list_images(path) if path.is_dir() else [str(path)]
    if not found:
        raise SupSupError(f"{path} holds no images")
    return found


def decode_for_model(paths: Sequence[str], shape: tuple[int, ...]) -> torch.Tensor:
    """uint8 images as a model with this image shape learned them; an error if it did not learn pictures."""
    if len(shape) != 3 or shape[0] != 3 or shape[1] != shape[2]:
        raise SupSupError(f"the model learned inputs of shape {list(shape)}, not square colour images")
    return decode_files(paths, shape[1], shape[2], shape[2])


def to_tensor(inputs: Any) -> torch.Tensor:
    """An array as a model takes it: bytes unchanged, other numbers as float32."""
    array = np.asarray(inputs)
    if array.dtype.kind not in "biuf":
        raise SupSupError(f"inputs are {array.dtype}; give numbers")
    return torch.from_numpy(array if array.dtype == np.uint8 else array.astype(np.float32))


def read_npz(path: Path) -> dict[str, Any]:
    """The arrays of an NPZ file; pickled ones are refused."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as error:  # numpy raises nearly anything for a damaged file
        raise SupSupError(f"{path} cannot be read as a file of plain arrays: {error}") from error


def read_columns(path: Path) -> dict[str, Any]:
    """The columns of a CSV, TSV or Parquet file, as numbers where all values are."""
    if path.suffix == ".parquet":
        return _read_parquet(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ",") if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SupSupError(f"{path} cannot be read: {error}") from error
    if len(rows) < 2:
        raise SupSupError(f"{path} has no rows; give a line with the names of the columns and one for each example")
    names, rows = rows[0], rows[1:]
    if len(set(names)) != len(names):
        raise SupSupError(f"{path} has two columns of one name; the first line must name each column")
    wrong = next((number for number, row in enumerate(rows, 2) if len(row) != len(names)), None)
    if wrong is not None:
        raise SupSupError(f"{path}, line {wrong}: {len(rows[wrong - 2])} values for {len(names)} columns")
    return {name: _parse_values([row[index].strip() for row in rows]) for index, name in enumerate(names)}


def feature_matrix(table: Columns, without: tuple[str | None, ...], path: Path) -> Any:
    """float64 [rows, features] of all columns but these; an error names a column that holds text."""
    kept = {name: values for name, values in table.items() if name not in without}
    if not kept:
        raise SupSupError(f"{path} has no column but {', '.join(map(str, table))}; give one for each feature")
    for name, values in kept.items():
        if values.dtype.kind not in "biuf":
            example = next((each for each in values.tolist() if _parse_values([str(each)]).dtype.kind == "U"), "")
            raise SupSupError(
                f"{path}: column {quoted(name)} holds text ({quoted(example)}); "
                "give numbers, or leave it out of the file"
            )
    return np.stack([values.astype(np.float64) for values in kept.values()], 1)


def select_column(table: Columns, name: str, path: Path) -> Any:
    """One column, or an error that lists the columns."""
    if name not in table:
        raise SupSupError(f"{path} has no column {quoted(name)}; it has {quoted(list(table))}")
    return table[name]


def _label_column(table: Columns, label: str | None, path: Path) -> str:
    """The column of the labels: the given one, or one with a usual name."""
    if label is not None:
        select_column(table, label, path)
        return label
    usual = [name for name in table if name.lower() in LABEL_NAMES]
    if len(usual) != 1:
        raise SupSupError(f"say which column of {path} has the labels: --label COLUMN, one of {quoted(list(table))}")
    return usual[0]


def _parse_values(texts: list[str]) -> Any:
    """Whole numbers, real numbers or texts: the first that all of them are."""
    for kind in (np.int64, np.float64):
        try:
            return np.array(texts).astype(kind)
        except (ValueError, OverflowError):
            continue
    return np.array(texts)


def _read_parquet(path: Path) -> dict[str, Any]:
    if find_spec("polars") is None:
        raise SupSupError(f"{path} is read with polars, which is not installed: pip install 'supsup[tables]'")
    import polars

    try:
        frame = polars.read_parquet(path)
    except Exception as error:  # polars has its own errors
        raise SupSupError(f"{path} cannot be read as Parquet: {error}") from error
    found = {name: frame[name].to_numpy() for name in frame.columns}
    return {name: values.astype(str) if values.dtype == object else values for name, values in found.items()}
