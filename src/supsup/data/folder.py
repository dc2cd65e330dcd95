"""Image files in one folder for each class: listed, decoded in threads, and as a source."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeVar, get_args

import torch
from torch import Tensor

from supsup.data.augmentation import Augmentation, ResizedCrop
from supsup.data.inputs import measure_channels
from supsup.data.source import Source
from supsup.masks import philox
from supsup.runtime import progress
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import choice, flag, optional, real, text, whole
from supsup.runtime.validation import path as checked_path

Normalisation = Literal["measured", "imagenet"]
T = TypeVar("T")
IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
MEMORY_LIMIT = 2 << 30  # bytes of pixels kept in memory
_LARGEST_SIDE = 1 << 16  # pixels
_TEST_FOLDERS = ("test", "val", "valid", "validation")
_MEASURED_IMAGES = 2000  # where not all are in memory
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # mean and standard deviation of pixel / 255
_FILES_NAMED = 3  # bad files that an error names
_BLOCK = 16  # files that a thread takes at a time


def image_folder(
    path: str | os.PathLike[str],
    *,
    size: int | None = None,
    test_share: float = 0.2,
    seed: int = 0,
    augment: bool = True,
    flip: bool = True,
    normalisation: Normalisation = "measured",
    stream: bool | None = None,
    workers: int | None = None,
    name: str | None = None,
) -> Source:
    """A source from image files: path/train/CLASS/… and path/test/CLASS/… (or val), or path/CLASS/….

    size           resize images to size × size: the shorter side to size · 256 / 224, then the centre is cropped;
                   required unless all images have one size
    test_share     of each class, chosen by `seed`, where there is no test folder
    augment        vary training images. In memory: random crops from a frame of an eighth of the image; while
                   streaming: boxes of random area and shape, resized. `flip` also mirrors half of them
    normalisation  by mean and standard deviation measured on training images, or those of ImageNet
    stream         read files while training, with `workers` processes (by default one for each core); None: if the
                   pixels take more than 2 GiB. Without streaming everything is decoded now

    Any image becomes RGB. Files without an image suffix are skipped; a file that cannot be read is an error.
    """
    require_pillow("image files")
    root = checked_path(path, "path")
    size, workers = optional(whole(1, _LARGEST_SIDE))(size, "size"), optional(whole(1))(workers, "workers")
    test_share, seed = real(above=0, below=1)(test_share, "test_share"), whole()(seed, "seed")
    augment, flip, stream = flag(augment, "augment"), flag(flip, "flip"), optional(flag)(stream, "stream")
    name = optional(text)(name, "name") or root.resolve().name
    choice(*get_args(Normalisation))(normalisation, "normalisation")
    listing = list_classes(root, test_share, seed)
    paths = [*listing.train, *listing.test]
    sizes = image_sizes(paths)
    height, width = (size, size) if size is not None else common_size(paths, sizes)
    if stream or (stream is None and len(paths) * 3 * height * width > MEMORY_LIMIT):
        if size is None:
            raise SupSupError("images are read while training (stream=True, or too many for memory); give size=224")
        crop = ResizedCrop(flip=flip) if augment else None
        return _streamed_source(name, listing, sizes, size, normalisation, crop, workers)
    images = decode_files(paths, height, width, size)
    train, test = images[: len(listing.train)], images[len(listing.train) :]
    gain, offset = measure_channels(train) if normalisation == "measured" else _imagenet_scale()
    augmentation = Augmentation(padding=min(height, width) // 8, flip=flip) if augment else None
    labels, classes = (listing.train_labels, listing.test_labels), len(listing.classes)
    return Source(name, train, labels[0], test, labels[1], gain, offset, classes, augmentation, listing.names)


@dataclass(frozen=True)
class ClassListing:
    """Image files with their class numbers."""

    classes: list[str]
    train: list[str]
    train_labels: Tensor
    test: list[str]
    test_labels: Tensor

    @property
    def names(self) -> tuple[str, ...]:
        """Class names, as text that a file can hold."""
        return tuple(name.encode(errors="replace").decode() for name in self.classes)


def _streamed_source(
    name: str,
    listing: ClassListing,
    sizes: Tensor,
    size: int,
    normalisation: Normalisation,
    crop: ResizedCrop | None,
    workers: int | None,
) -> Source:
    from supsup.data.streaming import DecoderPool, ImageFiles, StreamedSource

    gain, offset = _imagenet_scale()
    if normalisation == "measured":
        sample = listing.train[:: -(-len(listing.train) // _MEASURED_IMAGES)]
        gain, offset = measure_channels(decode_files(sample, size, size, size))
    pool, count = DecoderPool(workers or available_cores()), len(listing.train)
    train = ImageFiles(listing.train, sizes[:count], size, pool)
    test = ImageFiles(listing.test, sizes[count:], size, pool)
    return StreamedSource(
        name,
        train.meta_tensor(),
        listing.train_labels,
        test.meta_tensor(),
        listing.test_labels,
        gain,
        offset,
        len(listing.classes),
        names=listing.names,
        train_files=train,
        test_files=test,
        crop=crop,
    )


def _imagenet_scale() -> tuple[Tensor, Tensor]:
    mean, std = (torch.tensor(numbers) for numbers in _IMAGENET)
    return 1 / (255 * std), -mean / std


def common_size(paths: Sequence[str], sizes: Tensor) -> tuple[int, int]:
    """Height and width of all the images, or an error that shows two that differ."""
    other = (sizes != sizes[0]).any(1).nonzero()
    if len(other):
        first, second = (f"{sizes[i, 0]}×{sizes[i, 1]} ({paths[i]})" for i in (0, int(other[0])))
        raise SupSupError(f"images have sizes {first} and {second}; give size=… to bring them to one")
    width, height = sizes[0].tolist()
    return height, width


def list_classes(root: Path, test_share: float, seed: int) -> ClassListing:
    """The training and test images of each class."""
    try:
        if not root.is_dir():
            raise SupSupError(f"{root} is not a folder; give one that holds a folder of images for each class")
        halves = _train_and_test(root)
        if halves is None:
            return _split_classes(_images_by_class(root), test_share, seed)
        train, test = (_images_by_class(half) for half in halves)
    except OSError as error:
        raise SupSupError(f"cannot list {root}: {error}") from error
    for one, other, where in ((test, train, halves[0]), (train, test, halves[1])):
        lacking = sorted(one.keys() - other.keys())
        if lacking:
            raise SupSupError(
                f"{where} has no folder for {', '.join(lacking[:5])}{' …' if len(lacking) > 5 else ''}; "
                f"{halves[0].name}/ and {halves[1].name}/ must have the same classes"
            )
    return ClassListing(list(train), *_with_labels(train), *_with_labels(test))


def _train_and_test(root: Path) -> tuple[Path, Path] | None:
    """The training and test folders, or None where the folders are classes (one may be called "train")."""
    train = root / "train"
    if not train.is_dir() or not any(inner.is_dir() for inner in train.iterdir()):
        return None
    tests = [root / name for name in _TEST_FOLDERS if (root / name).is_dir()]
    if not tests:
        raise SupSupError(
            f"{root} has train/ but neither test/ nor val/; add one, or give {train} to have a share of it kept apart"
        )
    return train, tests[0]


def _images_by_class(folder: Path) -> dict[str, list[str]]:
    """The images of each class; classes and images sorted by name."""
    inner = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not inner:
        raise SupSupError(f"{folder} holds no folders; make one for each class and put its images there")
    found = {entry.name: list_images(entry) for entry in inner}
    empty = [name for name, images in found.items() if not images]
    if empty:
        raise SupSupError(
            f"{folder / empty[0]} holds no images ({' '.join(IMAGE_SUFFIXES)}); add some or remove the folder"
            + (f" ({len(empty) - 1} more are empty)" if len(empty) > 1 else "")
        )
    return found


def list_images(folder: Path) -> list[str]:
    """Image files in the folder and its subfolders, except hidden ones."""
    found = []
    for where, inner, names in os.walk(folder):
        inner[:] = [name for name in inner if not name.startswith(".")]
        images = [name for name in names if name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")]
        found += [os.path.join(where, name) for name in images]
    return sorted(found)


def _with_labels(classes: dict[str, list[str]]) -> tuple[list[str], Tensor]:
    paths = [path for images in classes.values() for path in images]
    counts = torch.tensor([len(images) for images in classes.values()])
    return paths, torch.arange(len(classes)).repeat_interleave(counts)


def split_class(images: int, test_share: float, seed: int, label: str) -> tuple[list[int], list[int]]:
    """Indices of a class's training and test images: at least one of each."""
    count = min(max(1, round(images * test_share)), images - 1)
    order = philox.permutations(seed, [label], images)[0].tolist()
    return sorted(order[count:]), sorted(order[:count])


def _split_classes(classes: dict[str, list[str]], test_share: float, seed: int) -> ClassListing:
    """A share of every class to test on, at least one image and not all."""
    train, test = {}, {}
    for name, images in classes.items():
        if len(images) < 2:
            raise SupSupError(
                f"class {name} has 1 image ({images[0]}); give 2 or more, one to train on and one to test"
            )
        trained, tested = split_class(len(images), test_share, seed, f"folder/{name}")
        train[name], test[name] = [images[index] for index in trained], [images[index] for index in tested]
    return ClassListing(list(classes), *_with_labels(train), *_with_labels(test))


def require_pillow(what: str) -> None:
    """An error where Pillow is not installed."""
    if find_spec("PIL") is None:
        raise SupSupError(f"{what} are read with Pillow, which is not installed: pip install 'supsup[images]'")


def available_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def image_sizes(paths: Sequence[str]) -> Tensor:
    """int64 [n, 2]: width and height of each image, from the file headers."""
    from supsup.data import decode

    sizes = _in_threads(lambda index: decode.image_size(paths[index]), paths, "looking at images")
    return torch.tensor(sizes).view(-1, 2)


def decode_files(paths: Sequence[str], height: int, width: int, size: int | None = None) -> Tensor:
    """uint8 [n, 3, height, width]: the images as `decode_image` gives them, which must have this size."""
    from supsup.data import decode

    images = torch.empty(len(paths), 3, height, width, dtype=torch.uint8)
    buffer = images.numpy()

    def decode_one(index: int) -> None:
        pixels = decode.decode_image(paths[index], size)
        if pixels.shape != buffer.shape[1:]:
            shape = "×".join(map(str, pixels.shape[:0:-1]))
            raise decode.Unreadable(f"{paths[index]} ({shape} pixels, not {width}×{height})")
        buffer[index] = pixels

    _in_threads(decode_one, paths, "reading images")
    return images


def _in_threads(work: Callable[[int], T], paths: Sequence[str], doing: str) -> list[T]:
    """work(i) for the i-th path, in threads (Pillow releases Python's lock); one error for all unreadable files."""
    from supsup.data.decode import Unreadable

    results: list[T] = []
    bad: list[str] = []

    def attempt(start: int) -> list[T | Unreadable]:
        outcomes: list[T | Unreadable] = []
        for index in range(start, min(start + _BLOCK, len(paths))):
            try:
                outcomes.append(work(index))
            except Unreadable as error:
                outcomes.append(error)
        return outcomes

    pool = ThreadPoolExecutor(available_cores())
    try:
        with progress.bar(doing, len(paths), "images") as advance:
            for outcomes in pool.map(attempt, range(0, len(paths), _BLOCK)):
                bad += [str(outcome) for outcome in outcomes if isinstance(outcome, Unreadable)]
                results += [outcome for outcome in outcomes if not isinstance(outcome, Unreadable)]
                advance(len(outcomes))
    finally:
        pool.shutdown(cancel_futures=True)  # an interruption does not wait for the rest
    if bad:
        raise unreadable_error(bad)
    return results


def unreadable_error(bad: Sequence[str]) -> SupSupError:
    """An error that names the first of the bad files."""
    named = ", ".join(bad[:_FILES_NAMED]) + (f" and {len(bad) - _FILES_NAMED} more" if len(bad) > _FILES_NAMED else "")
    count = "1 file" if len(bad) == 1 else f"{len(bad)} files"
    return SupSupError(f"{count} cannot be read as images: {named}; replace or remove them")
