"""CIFAR-100: 50,000 training and 10,000 test images of 32×32 in colour, a hundred classes."""

from __future__ import annotations

import io
import os
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from supsup.data.archives import Archive, cache_folder, content, find, locate
from supsup.data.augmentation import Augmentation
from supsup.data.decode import decode_all, needs_pillow
from supsup.data.source import Source
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import path as checked_path

TARBALL = "cifar-100-binary.tar.gz"
CIFAR100 = Archive(
    folders=("cifar100",),
    checksums={TARBALL: "03b5dce01913d631647c71ecec9e9cb8"},
    mirrors=("https://www.cs.toronto.edu/~kriz",),
)
COUNTS = {"train": 50_000, "test": 10_000}
_CLASSES = 100
_SHAPE = (3, 32, 32)
_RECORD = 2 + 3 * 32 * 32  # coarse label, fine label, pixels
_INNER = "cifar-100-binary"
_PICKLED = ("cifar-100-python.tar.gz", "cifar-100-python")
_MOSAIC = re.compile(r"(\d{3})-.+\.webp")
_ROWS, _COLUMNS = 20, 30  # tiles of a mosaic; the last sixth are test images
_MEAN, _STD = (0.491, 0.482, 0.447), (0.247, 0.243, 0.262)

HoldoutSplit = dict[str, tuple[Tensor, Tensor]]


def cifar100(data_dir: str | os.PathLike[str] | None = None) -> Source:
    """Small photographs, normalised as in the paper; training images are cropped from a frame of 4 pixels and flipped.

    Looked for in `data_dir` if given, else in $SUPSUP_DATA/cifar100 and the user's cache, else downloaded. A folder
    may hold train.bin and test.bin, the archive cifar-100-binary.tar.gz, cifar100.npz (train_x, train_y, test_x,
    test_y) or a mosaic NNN-name.webp for each class. Images are kept class by class.
    """
    try:
        halves = _local(data_dir) or _from_archive(locate(CIFAR100))
    except OSError as error:
        raise SupSupError(f"the files of CIFAR-100 cannot be read: {error}") from error
    assert halves is not None
    (train_x, train_y), (test_x, test_y) = (_by_class(*halves[half]) for half in ("train", "test"))
    gain = torch.tensor([1 / (255 * std) for std in _STD])
    offset = torch.tensor([-mean / std for mean, std in zip(_MEAN, _STD)])
    augmentation = Augmentation(padding=4, flip=True)
    return Source("cifar100", train_x, train_y, test_x, test_y, gain, offset, _CLASSES, augmentation)


def _local(data_dir: str | os.PathLike[str] | None) -> HoldoutSplit | None:
    data = os.environ.get("SUPSUP_DATA") if data_dir is None else checked_path(data_dir, "data_dir")
    above = [checked_path(data, "SUPSUP_DATA")] if data else []
    folders = [folder / CIFAR100.folders[0] for folder in above]
    folders += above if data_dir is not None else [cache_folder(CIFAR100)]
    for folder in folders:
        for read in _FORMS:
            halves = read(folder)
            if halves is not None:
                return halves
        pickled = [folder / name for name in _PICKLED if (folder / name).exists()]
        if all((folder / name).is_file() for name in ("meta", "train", "test")):  # what is in cifar-100-python
            pickled.append(folder)
        if pickled:
            raise SupSupError(
                f"{pickled[0]} holds Python pickles, which could run any code and are not read; "
                f"put {TARBALL} (the binary version of CIFAR-100) there in its place"
            )
    if data_dir is not None:
        raise SupSupError(
            f"CIFAR-100 not found in {data_dir} (nor in its folder {CIFAR100.folders[0]}); put {TARBALL} there, "
            f"or train.bin and test.bin, or cifar100.npz, or give no data_dir to have it downloaded"
        )
    return None


def _from_files(folder: Path) -> HoldoutSplit | None:
    for inner in (folder, folder / _INNER):
        paths = {half: inner / f"{half}.bin" for half in COUNTS}
        found = {half: path.is_file() for half, path in paths.items()}
        if all(found.values()):
            return {half: _records(path.read_bytes(), half, str(path)) for half, path in paths.items()}
        for half in COUNTS:
            if any(found.values()) and not found[half]:
                raise SupSupError(f"{paths[half]} is missing beside the other half of CIFAR-100; put both there")
    return None


def _from_archive(folder: Path) -> HoldoutSplit | None:
    path = find(folder, TARBALL)
    if not path.is_file():
        return None
    try:
        with tarfile.open(fileobj=io.BytesIO(content(CIFAR100, path)), mode="r:") as archive:
            return {half: _records(_member(archive, half, path), half, f"{half}.bin in {path}") for half in COUNTS}
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise SupSupError(f"{path} is damaged ({error}); get it again") from error


def _member(archive: tarfile.TarFile, half: str, path: Path) -> bytes:
    """One file of the archive, read into memory; nothing is written to disk."""
    name = f"{_INNER}/{half}.bin"
    member = next((member for member in archive.getmembers() if member.name.removeprefix("./") == name), None)
    stream = archive.extractfile(member) if member is not None and member.isfile() else None
    if stream is None:
        raise SupSupError(f"{path} has no file {name}; get {TARBALL} again")
    return stream.read(COUNTS[half] * _RECORD + 1)


def _records(stored: bytes, half: str, where: str) -> tuple[Tensor, Tensor]:
    expected = COUNTS[half] * _RECORD
    if len(stored) != expected:
        fault = "is cut short" if len(stored) < expected else "goes on after its end"
        raise SupSupError(
            f"{where} {fault}: {len(stored):,} bytes read, {COUNTS[half]:,} images have {expected:,}; get it again"
        )
    table = np.frombuffer(stored, np.uint8).reshape(-1, _RECORD)
    return _checked(table[:, 2:].reshape(-1, *_SHAPE), table[:, 1], half, where)


def _from_npz(folder: Path) -> HoldoutSplit | None:
    path = folder / "cifar100.npz"
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for half in COUNTS for name in (f"{half}_x", f"{half}_y")}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise SupSupError(
            f"{path} cannot be read ({error}); it must hold train_x, train_y, test_x and test_y as uint8"
        ) from error
    halves = {}
    for half in COUNTS:
        images = arrays[f"{half}_x"]
        if images.ndim == 4 and images.shape[-1] == 3:
            images = images.transpose(0, 3, 1, 2)
        halves[half] = _checked(images, arrays[f"{half}_y"], half, f"{half} in {path}")
    return halves


def _from_mosaics(folder: Path) -> HoldoutSplit | None:
    """One lossless picture for each class: 20 rows of 30 tiles, the first 500 to train on, the last 100 to test."""
    found = {int(match[1]): path for path in folder.glob("*.webp") if (match := _MOSAIC.fullmatch(path.name))}
    if not found:
        return None
    missing = [f"{label:03}" for label in range(_CLASSES) if label not in found]
    if missing:
        raise SupSupError(f"{folder} lacks the mosaics {', '.join(missing)} of {_CLASSES}; put them there")
    needs_pillow("the mosaics of CIFAR-100")
    paths = [found[label] for label in range(_CLASSES)]
    size = (_ROWS * 32, _COLUMNS * 32)
    mosaics = decode_all([str(path) for path in paths], *size)
    tiles = mosaics.view(_CLASSES, 3, _ROWS, 32, _COLUMNS, 32).permute(0, 2, 4, 1, 3, 5)
    by_class = tiles.reshape(_CLASSES, _ROWS * _COLUMNS, *_SHAPE)
    start, halves = 0, {}
    for half, count in COUNTS.items():
        each = count // _CLASSES
        labels = torch.arange(_CLASSES).repeat_interleave(each)
        halves[half] = (by_class[:, start : start + each].reshape(-1, *_SHAPE), labels)
        start += each
    return halves


_FORMS: tuple[Callable[[Path], HoldoutSplit | None], ...] = (_from_files, _from_archive, _from_npz, _from_mosaics)


def _checked(
    images: np.ndarray[tuple[int, ...], np.dtype[np.uint8]],
    labels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]],
    half: str,
    where: str,
) -> tuple[Tensor, Tensor]:
    shape = (COUNTS[half], *_SHAPE)
    if images.shape != shape or images.dtype != np.uint8 or labels.shape != shape[:1] or labels.dtype.kind not in "iu":
        raise SupSupError(
            f"{where} holds images {list(images.shape)} {images.dtype} and labels {list(labels.shape)} {labels.dtype}, "
            f"not {list(shape)} uint8 and as many whole numbers; put the right file there"
        )
    if labels.min() < 0 or labels.max() >= _CLASSES:
        raise SupSupError(
            f"{where} has labels from {labels.min()} to {labels.max()}, but there are {_CLASSES} classes; get it again"
        )
    return torch.from_numpy(np.array(images, order="C")), torch.from_numpy(labels.astype(np.int64))


def _by_class(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """In the order of the classes, so that a task has the same images in the same order whatever form they came in."""
    order = labels.argsort(stable=True)
    return images[order], labels[order]
