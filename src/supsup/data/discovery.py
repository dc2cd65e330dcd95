"""What lies at a path, as tasks: folders of images, tables, arrays. Each is found first and read in its turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from supsup.data import tables
from supsup.data.augmentation import Augmentation
from supsup.data.decode import decode_all, needs_pillow, sizes_of
from supsup.data.folder import IN_MEMORY, Listing, held_back, images_in, listing, one_size
from supsup.data.formats import Read
from supsup.data.task import Task
from supsup.data.task_builder import made
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import quoted

SMALL = 64  # pixels along a side that images may have as they are
USUAL = 32  # to which larger ones are brought
_LOOKED_AT = 16  # images that say what the others are like
_COLOURED = 8.0  # levels of 256 by which the colours of a photograph differ at least, on average


@dataclass(frozen=True)
class Reading:
    """How files become tasks.

    each         every folder in the folder is a task
    label        the column of the labels, and `task_column` that of the tasks, in a table
    size         images are brought to size × size; None: as they are if all have one size and are small, else `usual`
    test_share   of each class, chosen by `seed`, that is held back to test on
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
    usual: int = USUAL


@dataclass(frozen=True)
class Found:
    """A task that lies at a path and has not been read yet; `folder` where it is one of image files."""

    name: str
    read: Callable[[Reading], Task]
    folder: Path | None = None

    def shows_photographs(self) -> bool:
        """Whether its pictures, by a few of them, have colours and are not tiny; drawings, scans and icons are not."""
        files = [] if self.folder is None else images_in(self.folder)
        some = files[:: -(-len(files) // _LOOKED_AT)] if files else []
        if not some or int(sizes_of(some).min()) < USUAL:
            return False
        colours = decode_all(some, USUAL, USUAL, USUAL).float()
        return float((colours.amax(1) - colours.amin(1)).mean()) >= _COLOURED


def tasks_at(path: Path, reading: Reading, name: str | None = None) -> list[Found]:
    """All tasks at a path; `name` is that of the only one."""
    if name == "":
        raise SupSupError("--task is empty; give the task a name, or leave it out for that of the folder or file")
    if not path.exists():
        raise SupSupError(
            f"there is nothing at {path}; give a folder of images, or a .csv, .tsv, .parquet or .npz file"
        )
    if path.is_dir():
        return _folders(path, reading, name)
    if reading.each:
        raise SupSupError(f"{path} is a file, and --each is for a folder of folders; use --task-column for a table")
    if path.suffix == ".npz":
        return [Found(name or path.stem, lambda how: _arrays(path, name or path.stem, how))]
    if path.suffix in tables.SUFFIXES:
        return _table(path, reading, name)
    raise SupSupError(f"{path} is no table ({' '.join(tables.SUFFIXES)}); images lie in folders, one for each class")


def pictures(paths: Sequence[str], shape: tuple[int, ...]) -> torch.Tensor:
    """uint8 images as a model of this image shape learned them; an error where it did not learn pictures."""
    if len(shape) != 3 or shape[0] != 3 or shape[1] != shape[2]:
        raise SupSupError(f"the model learned inputs of shape {list(shape)}, not square colour images")
    return decode_all(paths, shape[1], shape[2], shape[2])


def _folders(path: Path, reading: Reading, name: str | None) -> list[Found]:
    needs_pillow("image files")
    inner = sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if reading.each:
        if name is not None:
            raise SupSupError("--task names one task; with --each every folder is a task of its own name")
        if not inner:
            raise SupSupError(f"{path} holds no folders; with --each every folder in it is a task")
        return [Found(entry.name, _reader(entry, entry.name), entry) for entry in inner]
    if inner and all(_holds_folders_alone(entry) for entry in inner) and not (path / "train").is_dir():
        raise SupSupError(f"{path} looks like a folder of tasks: its folders hold folders and no images; add --each")
    called = name or path.resolve().name
    return [Found(called, _reader(path, called), path)]


def _holds_folders_alone(folder: Path) -> bool:
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    return bool(entries) and all(entry.is_dir() for entry in entries)


def _reader(folder: Path, name: str) -> Callable[[Reading], Task]:
    return lambda reading: _pictures(listing(folder, reading.test_share, reading.seed), name, reading)


def _pictures(found: Listing, name: str, reading: Reading) -> Task:
    paths = [*found.train, *found.test]
    sizes, size = sizes_of(paths), reading.size
    if size is None and (int(sizes.max()) > SMALL or bool((sizes != sizes[0, 0]).any())):
        size = reading.usual
    height, width = (size, size) if size is not None else one_size(paths, sizes)
    if len(paths) * 3 * height * width > IN_MEMORY:
        raise SupSupError(
            f"{len(paths):,} images of {width}×{height} take more than {IN_MEMORY >> 30} GiB; give a smaller --size, "
            "or learn them from Python: data.image_folder(…, stream=True)"
        )
    images = decode_all(paths, height, width, size)
    names = np.array(found.names)
    train = Read(images[: len(found.train)], names[found.train_labels.numpy()])
    test = Read(images[len(found.train) :], names[found.test_labels.numpy()])
    task = made(train, name, test, None, True, False)
    if not reading.crop and not reading.flip:
        return task
    padding = min(height, width) // 8 if reading.crop else 0
    return replace(task, train=replace(task.train, augmentation=Augmentation(padding=padding, flip=reading.flip)))


def _table(path: Path, reading: Reading, name: str | None) -> list[Found]:
    found = tables.columns(path)
    label, group = tables.label_column(found, reading.label, path), reading.task_column
    inputs, labels = tables.features(found, (label, group), path), found[label]
    if group is None:
        return [Found(name or path.stem, lambda how: _rows(inputs, labels, name or path.stem, how))]
    if name is not None:
        raise SupSupError("--task names one task; with --task-column every value of the column is a task of its own")
    owners = tables.column(found, group, path).astype(str)

    def reader(owner: str) -> Callable[[Reading], Task]:
        mine = owners == owner
        return lambda how: _rows(inputs[mine], labels[mine], owner, how)

    return [Found(owner, reader(owner)) for owner in dict.fromkeys(owners.tolist())]


def _arrays(path: Path, name: str, reading: Reading) -> Task:
    found = tables.arrays(path)
    if all(part in found for part in ("train_x", "train_y", "test_x", "test_y")):
        train, test = (Read(as_numbers(found[f"{half}_x"]), found[f"{half}_y"]) for half in ("train", "test"))
        return made(train, name, test, None, True, False)
    return _rows(*tables.pair(found, path), name, reading)


def _rows(inputs: Any, labels: Any, name: str, reading: Reading) -> Task:
    """A share of every class is held back."""
    if len(inputs) != len(labels):
        raise SupSupError(f"there are {len(inputs)} inputs and {len(labels)} labels; give one label each")
    train: list[int] = []
    test: list[int] = []
    for value in np.unique(labels):
        mine = np.flatnonzero(labels == value)
        if len(mine) < 2:
            raise SupSupError(f"class {quoted(value.item())} of {name} has 1 example; give 2 or more, one to test on")
        trained, tested = held_back(len(mine), reading.test_share, reading.seed, f"rows/{value}")
        train += mine[trained].tolist()
        test += mine[tested].tolist()
    x = as_numbers(inputs)
    halves = [Read(x[rows], labels[rows]) for rows in (sorted(train), sorted(test))]
    return made(halves[0], name, halves[1], None, True, False)


def as_numbers(inputs: Any) -> torch.Tensor:
    """An array as a model takes it: bytes as they are, other numbers as float32."""
    array = np.asarray(inputs)
    if array.dtype.kind not in "biuf":
        raise SupSupError(f"inputs are {array.dtype}; give numbers")
    return torch.from_numpy(array if array.dtype == np.uint8 else array.astype(np.float32))


def image_files(path: Path) -> list[str]:
    """One image file, or all in a folder and the folders in it."""
    if not path.exists():
        raise SupSupError(f"there is nothing at {path}; give an image, a folder of images or a table")
    found = images_in(path) if path.is_dir() else [str(path)]
    if not found:
        raise SupSupError(f"{path} holds no images")
    return found
