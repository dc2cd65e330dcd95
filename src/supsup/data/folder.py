"""A user's own image files, one folder for each class, as a source: in memory where they fit, else read as needed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from supsup.data.augmentation import Augmentation, ResizedCrop
from supsup.data.decode import cores, decode_all, needs_pillow, sizes_of
from supsup.data.inputs import measured_normalisation
from supsup.data.source import Source
from supsup.masks import philox
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import choice, flag, optional, real, text, whole
from supsup.runtime.validation import path as checked_path

Normalisation = Literal["measured", "imagenet"]
_LARGEST = 1 << 16  # pixels along a side
IN_MEMORY = 2 << 30  # bytes of pixels that are kept in memory
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_TEST_NAMES = ("test", "val", "valid", "validation")
_MEASURED_ON = 2000  # images, where they are not all in memory
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


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

    size           bring images to size × size: the shorter side to size · 256 / 224, then the middle; needed unless all
                   images have one size
    test_share     of each class, chosen by `seed`, where there is no test folder
    augment        vary training images. In memory: random crops from a frame of an eighth of the image; while
                   streaming: boxes of random area and shape, resized. `flip` also mirrors half of them
    normalisation  by mean and standard deviation measured on training images, or those of ImageNet
    stream         read files while training, through `workers` processes (by default one for each core); None: when the
                   pixels take more than 2 GiB. Without it everything is decoded now

    Any image becomes RGB. Files that do not end like images are left out; a file that cannot be read is an error.
    """
    needs_pillow("image files")
    root = checked_path(path, "path")
    size, workers = optional(whole(1, _LARGEST))(size, "size"), optional(whole(1))(workers, "workers")
    test_share, seed = real(above=0, below=1)(test_share, "test_share"), whole()(seed, "seed")
    augment, flip, stream = flag(augment, "augment"), flag(flip, "flip"), optional(flag)(stream, "stream")
    name = optional(text)(name, "name")
    choice(*get_args(Normalisation))(normalisation, "normalisation")
    found = listing(root, test_share, seed)
    paths = [*found.train, *found.test]
    sizes = sizes_of(paths)
    height, width = (size, size) if size is not None else one_size(paths, sizes)
    if stream is None:
        stream = len(paths) * 3 * height * width > IN_MEMORY
    called = name or root.resolve().name
    if stream:
        if size is None:
            raise SupSupError("images are read while training (stream=True, or too many for memory); give size=224")
        return _streamed(
            called, found, sizes, size, normalisation, ResizedCrop(flip=flip) if augment else None, workers
        )
    images = decode_all(paths, height, width, size)
    train, test = images[: len(found.train)], images[len(found.train) :]
    gain, offset = measured_normalisation(train) if normalisation == "measured" else _imagenet()
    varied = Augmentation(padding=min(height, width) // 8, flip=flip) if augment else None
    labels = (found.train_labels, found.test_labels)
    return Source(called, train, labels[0], test, labels[1], gain, offset, len(found.classes), varied, found.names)


@dataclass(frozen=True)
class Listing:
    """Image files with the numbers of their classes."""

    classes: list[str]
    train: list[str]
    train_labels: Tensor
    test: list[str]
    test_labels: Tensor

    @property
    def names(self) -> tuple[str, ...]:
        """Of the classes, as text that a file can hold."""
        return tuple(name.encode(errors="replace").decode() for name in self.classes)


def _streamed(
    name: str,
    listing: Listing,
    sizes: Tensor,
    size: int,
    normalisation: Normalisation,
    crop: ResizedCrop | None,
    workers: int | None,
) -> Source:
    from supsup.data.streaming import DecoderPool, ImageFiles, StreamedSource

    if normalisation == "imagenet":
        gain, offset = _imagenet()
    else:
        sample = listing.train[:: -(-len(listing.train) // _MEASURED_ON)]
        gain, offset = measured_normalisation(decode_all(sample, size, size, size))
    pool = DecoderPool(workers or cores())
    train = ImageFiles(listing.train, sizes[: len(listing.train)], size, pool)
    test = ImageFiles(listing.test, sizes[len(listing.train) :], size, pool)
    return StreamedSource(
        name,
        train.tensor(),
        listing.train_labels,
        test.tensor(),
        listing.test_labels,
        gain,
        offset,
        len(listing.classes),
        names=listing.names,
        train_files=train,
        test_files=test,
        crop=crop,
    )


def _imagenet() -> tuple[Tensor, Tensor]:
    mean, std = (torch.tensor(numbers) for numbers in _IMAGENET)
    return 1 / (255 * std), -mean / std


def one_size(paths: Sequence[str], sizes: Tensor) -> tuple[int, int]:
    """Height and width of all the images, or an error that shows two that differ."""
    other = (sizes != sizes[0]).any(1).nonzero()
    if len(other):
        first, second = (f"{sizes[i, 0]}×{sizes[i, 1]} ({paths[i]})" for i in (0, int(other[0])))
        raise SupSupError(f"images have sizes {first} and {second}; give size=… to bring them to one")
    width, height = sizes[0].tolist()
    return height, width


def listing(root: Path, test_share: float, seed: int) -> Listing:
    """The images of each class, to train and to test on."""
    try:
        return _listing(root, test_share, seed)
    except OSError as error:
        raise SupSupError(f"{root} cannot be looked through: {error}") from error


def _listing(root: Path, test_share: float, seed: int) -> Listing:
    if not root.is_dir():
        raise SupSupError(f"{root} is not a folder; give one that holds a folder of images for each class")
    halves = _halves(root)
    if halves is None:
        return _divided(_classes(root), test_share, seed)
    train, test = (_classes(half) for half in halves)
    for one, other, where in ((test, train, halves[0]), (train, test, halves[1])):
        lacking = sorted(one.keys() - other.keys())
        if lacking:
            raise SupSupError(
                f"{where} has no folder for {', '.join(lacking[:5])}{' …' if len(lacking) > 5 else ''}; "
                f"{halves[0].name}/ and {halves[1].name}/ must have the same classes"
            )
    return Listing(list(train), *_labelled(train), *_labelled(test))


def _halves(root: Path) -> tuple[Path, Path] | None:
    """The folders to train and to test on, or None where the classes are not divided (one may be called "train")."""
    train = root / "train"
    if not train.is_dir() or not any(inner.is_dir() for inner in train.iterdir()):
        return None
    tests = [root / name for name in _TEST_NAMES if (root / name).is_dir()]
    if not tests:
        raise SupSupError(
            f"{root} has train/ but neither test/ nor val/; add one, or give {train} to have a share of it kept apart"
        )
    return train, tests[0]


def _classes(folder: Path) -> dict[str, list[str]]:
    """The images of each class, classes and images in the order of their names."""
    inner = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not inner:
        raise SupSupError(f"{folder} holds no folders; make one for each class and put its images there")
    found = {entry.name: images_in(entry) for entry in inner}
    empty = [name for name, images in found.items() if not images]
    if empty:
        raise SupSupError(
            f"{folder / empty[0]} holds no images ({' '.join(SUFFIXES)}); add some or remove the folder"
            + (f" ({len(empty) - 1} more are empty)" if len(empty) > 1 else "")
        )
    return found


def images_in(folder: Path) -> list[str]:
    """Image files in the folder and the folders in it, but no hidden ones."""
    found = []
    for where, inner, names in os.walk(folder):
        inner[:] = [name for name in inner if not name.startswith(".")]
        shown = [name for name in names if name.lower().endswith(SUFFIXES) and not name.startswith(".")]
        found += [os.path.join(where, name) for name in shown]
    return sorted(found)


def _labelled(classes: dict[str, list[str]]) -> tuple[list[str], Tensor]:
    paths = [path for images in classes.values() for path in images]
    counts = torch.tensor([len(images) for images in classes.values()])
    return paths, torch.arange(len(classes)).repeat_interleave(counts)


def held_back(images: int, test_share: float, seed: int, label: str) -> tuple[list[int], list[int]]:
    """Which of a class's images are trained on and which tested on: at least one of each."""
    kept = min(max(1, round(images * test_share)), images - 1)
    order = philox.permutations(seed, [label], images)[0].tolist()
    return sorted(order[kept:]), sorted(order[:kept])


def _divided(classes: dict[str, list[str]], test_share: float, seed: int) -> Listing:
    """A share of every class to test on, at least one image and not all."""
    train, test = {}, {}
    for name, images in classes.items():
        if len(images) < 2:
            raise SupSupError(
                f"class {name} has 1 image ({images[0]}); give 2 or more, one to train on and one to test"
            )
        trained, tested = held_back(len(images), test_share, seed, f"folder/{name}")
        train[name], test[name] = [images[index] for index in trained], [images[index] for index in tested]
    return Listing(list(classes), *_labelled(train), *_labelled(test))
