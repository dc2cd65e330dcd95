"""Image files in one folder for each class: listed, decoded, and as a source.

Images are decoded in threads and kept in memory. Or they stay in their files and are decoded batch by batch, a little
ahead, so that any number fits in memory. Processes do that: plain programs (decode.py) behind pipes. They need no guard
in the user's script, share no locks with it, and end when it does, however it ends. torch's DataLoader was 18 to 24 %
slower.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, get_args

import torch
from torch import Tensor

from supsup.data.augmentation import Augmentation, ResizedCrop
from supsup.data.inputs import measure_normalisation
from supsup.data.streams import Half, Source
from supsup.data.task import Part
from supsup.masks import philox
from supsup.nets.published import IMAGENET
from supsup.runtime import progress
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import choice, flag, optional, real, text, whole
from supsup.runtime.validation import path as checked_path

Normalisation = Literal["measured", "imagenet"]
T = TypeVar("T")
ImageRequest = tuple[str, list[int] | None]  # path; box: left, top, width, height, mirrored
PendingPixels = tuple[Tensor, list[Future[None]]]  # uint8 [n, 3, size, size], complete when the futures are
IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
MEMORY_LIMIT = 2 << 30  # bytes of pixels kept in memory
AHEAD = 2  # batches decoded beyond the current one
_PROGRAM = Path(__file__).with_name("decode.py")
_LARGEST_SIDE = 1 << 16  # pixels
_TEST_FOLDERS = ("test", "val", "valid", "validation")
_MEASURED_IMAGES = 2000  # where not all are in memory
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
    sizes, count = image_sizes(listing.paths), len(listing.train)
    height, width = (size, size) if size is not None else common_size(listing.paths, sizes)
    labels, classes = (listing.train_labels, listing.test_labels), len(listing.names)
    measured = normalisation == "measured"
    if stream or (stream is None and len(sizes) * 3 * height * width > MEMORY_LIMIT):
        if size is None:
            raise SupSupError("images are read while training (stream=True, or too many for memory); give size=224")
        sample = listing.train[:: -(-count // _MEASURED_IMAGES)]
        gain, offset = measure_normalisation(decode_files(sample, size, size, size)) if measured else _imagenet_scale()
        pool, crop = DecoderPool(workers or available_cores()), ResizedCrop(flip=flip) if augment else None
        to_train = ImageFiles(listing.train, sizes[:count], size, pool, crop)
        to_test = ImageFiles(listing.test, sizes[count:], size, pool)
        halves = to_train.images, labels[0], to_test.images, labels[1]
        return StreamedSource(name, *halves, gain, offset, classes, None, listing.names, files=(to_train, to_test))
    train, test = listing.decode(height, width, size)
    gain, offset = measure_normalisation(train) if measured else _imagenet_scale()
    augmentation = Augmentation(padding=min(height, width) // 8, flip=flip) if augment else None
    return Source(name, train, labels[0], test, labels[1], gain, offset, classes, augmentation, listing.names)


@dataclass(frozen=True)
class ClassListing:
    """Image files with their class numbers."""

    names: tuple[str, ...]  # of the classes, as text that a file can hold
    train: list[str]
    train_labels: Tensor
    test: list[str]
    test_labels: Tensor

    @property
    def paths(self) -> list[str]:
        """The training images, then the test images."""
        return [*self.train, *self.test]

    def decode(self, height: int, width: int, size: int | None) -> tuple[Tensor, Tensor]:
        """Training and test images; see `decode_files`."""
        images = decode_files(self.paths, height, width, size)
        return images[: len(self.train)], images[len(self.train) :]


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
        folders = _train_and_test(root)
        found = [_images_by_class(folder) for folder in folders]
    except OSError as error:
        raise SupSupError(f"cannot list {root}: {error}") from error
    train, test = found if len(found) == 2 else _split_classes(found[0], test_share, seed)
    for one, other, where in zip((test, train), (train, test), folders):
        lacking = sorted(one.keys() - other.keys())
        if lacking:
            raise SupSupError(
                f"{where} has no folder for {', '.join(lacking[:5])}{' …' if len(lacking) > 5 else ''}; "
                f"{folders[0].name}/ and {folders[1].name}/ must have the same classes"
            )
    listed: list[Any] = []
    for half in (train, test):
        counts = torch.tensor([len(images) for images in half.values()])
        listed += [list(chain.from_iterable(half.values())), torch.arange(len(half)).repeat_interleave(counts)]
    return ClassListing(tuple(name.encode(errors="replace").decode() for name in train), *listed)


def _train_and_test(root: Path) -> list[Path]:
    """The training and test folders, or only the root where its folders are classes (one may be called "train")."""
    train = root / "train"
    if not train.is_dir() or not any(inner.is_dir() for inner in train.iterdir()):
        return [root]
    tests = [root / name for name in _TEST_FOLDERS if (root / name).is_dir()]
    if not tests:
        raise SupSupError(
            f"{root} has train/ but neither test/ nor val/; add one, or give {train} to have a share of it kept apart"
        )
    return [train, tests[0]]


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


def split_class(images: int, test_share: float, seed: int, label: str) -> tuple[list[int], list[int]]:
    """Indices of a class's training and test images: at least one of each."""
    count = min(max(1, round(images * test_share)), images - 1)
    order = philox.permutations(seed, [label], images)[0].tolist()
    return sorted(order[count:]), sorted(order[:count])


def _split_classes(
    classes: dict[str, list[str]], test_share: float, seed: int
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """A share of every class to test on, at least one image and not all."""
    train, test = {}, {}
    for name, images in classes.items():
        if len(images) < 2:
            raise SupSupError(
                f"class {name} has 1 image ({images[0]}); give 2 or more, one to train on and one to test"
            )
        trained, tested = split_class(len(images), test_share, seed, f"folder/{name}")
        train[name], test[name] = [images[index] for index in trained], [images[index] for index in tested]
    return train, test


def _imagenet_scale() -> tuple[Tensor, Tensor]:
    mean, std = (torch.tensor(numbers) for numbers in IMAGENET)
    return 1 / (255 * std), -mean / std


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

    sizes = _in_threads(lambda index: decode.image_size(paths[index]), len(paths), "looking at images")
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

    _in_threads(decode_one, len(paths), "reading images")
    return images


def _in_threads(work: Callable[[int], T], count: int, doing: str) -> list[T]:
    """work(i) for i below the count, in threads (Pillow releases Python's lock); one error for all unreadable files."""
    from supsup.data.decode import Unreadable

    bad: dict[int, str] = {}

    def attempt(block: range) -> list[T]:
        done = []
        for index in block:
            try:
                done.append(work(index))
            except Unreadable as error:
                bad[index] = str(error)
        return done

    found: list[T] = []
    pool = ThreadPoolExecutor(available_cores())
    try:
        with progress.bar(doing, count, "images") as advance:
            blocks = [range(count)[start : start + _BLOCK] for start in range(0, count, _BLOCK)]
            for block, done in zip(blocks, pool.map(attempt, blocks)):
                found += done
                advance(len(block))
    finally:
        pool.shutdown(cancel_futures=True)  # an interruption does not wait for the rest
    if bad:
        raise unreadable_error([bad[index] for index in sorted(bad)])
    return found


def unreadable_error(bad: Sequence[str]) -> SupSupError:
    """An error that names the first of the bad files."""
    named = ", ".join(bad[:_FILES_NAMED]) + (f" and {len(bad) - _FILES_NAMED} more" if len(bad) > _FILES_NAMED else "")
    count = "1 file" if len(bad) == 1 else f"{len(bad)} files"
    return SupSupError(f"{count} cannot be read as images: {named}; replace or remove them")


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Paths of images with their sizes [n, 2] (width, height), and the processes that decode them to size × size.

    crop: the random box that `training_batches` cuts out of each image; None: the centre, as `batch` always does.
    """

    paths: list[str]
    sizes: Tensor
    size: int
    pool: DecoderPool
    crop: ResizedCrop | None = None

    @cached_property
    def images(self) -> Tensor:
        """A tensor in the shape of all the images, without content."""
        return torch.empty(len(self.paths), 3, self.size, self.size, dtype=torch.uint8, device="meta")


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class StreamedPart(Part):
    """A part whose images are in files; `images` has their shape but no content."""

    files: ImageFiles
    _on_device: ClassVar[tuple[str, ...]] = ("labels", "gain", "offset")  # files are chosen by `rows` on the CPU

    def _draws(self, positions: Tensor, seed: int, task: str, step: int) -> Tensor | None:
        if self.files.crop is None:
            return None
        return self.files.crop.boxes(seed, task, step, self.files.sizes[self._rows_at(positions.cpu())])

    def _compute(self, positions: Tensor, draws: Tensor | None = None) -> tuple[Tensor, Tensor]:
        (batch,) = self._compute_all([(positions, draws)])
        return batch

    def _compute_all(self, wanted: Iterable[tuple[Tensor, Tensor | None]]) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches in order, the next few in progress; nothing new starts when the caller stops early."""
        waiting: deque[tuple[Tensor, PendingPixels]] = deque()
        try:
            for positions, boxes in wanted:
                rows = self._rows_at(positions.cpu()).tolist()
                cut = [None] * len(rows) if boxes is None else boxes.tolist()
                images = [(self.files.paths[row], box) for row, box in zip(rows, cut)]
                waiting.append((positions, self.files.pool.start(images, self.files.size, self.labels.is_cuda)))
                if len(waiting) > AHEAD:
                    yield self._finish(waiting)
            while waiting:
                yield self._finish(waiting)
        finally:
            for _, (_, futures) in waiting:
                for future in futures:
                    future.cancel()

    def _finish(self, waiting: deque[tuple[Tensor, PendingPixels]]) -> tuple[Tensor, Tensor]:
        positions, (buffer, futures) = waiting[0]
        for future in futures:
            future.result()
        waiting.popleft()
        images = buffer.to(self.labels.device, non_blocking=True).float()
        gain, offset = self._scale
        return images.mul_(gain).add_(offset), self.labels.index_select(0, positions.to(self.labels.device))


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class StreamedSource(Source):
    """A source whose images are in files; its tensors of images have their shape but no content."""

    files: tuple[ImageFiles, ImageFiles]  # to train and to test on

    def part(self, half: Half, labels: Tensor, rows: Tensor | None = None, pixels: Tensor | None = None) -> Part:
        """One half of a task; its pixels cannot be rearranged."""
        if pixels is not None:
            raise SupSupError(
                f"the images of {self.name} are read from their files while training and cannot be permuted or "
                f"rotated; make tasks of their classes with data.split, or give image_folder stream=False"
            )
        files = self.files[half == "test"]
        return StreamedPart(files.images, labels, self.gain, self.offset, rows, files=files)


class DecoderPool:
    """Processes that decode images; they start when first needed and end with the pool.

    Reference counting ends them. Nothing joins a thread then: garbage may be collected in any thread, even in one that
    is just being started and holds a lock that a join needs.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._threads = ThreadPoolExecutor(workers)  # each thread waits for one process
        self._idle: queue.SimpleQueue[Decoder] = queue.SimpleQueue()
        for _ in range(workers):
            self._idle.put(Decoder())

    def start(self, images: Sequence[ImageRequest], size: int, pinned: bool = False) -> PendingPixels:
        """Start to decode a batch; pinned: into memory that a GPU copies from asynchronously."""
        buffer = torch.empty(len(images), 3, size, size, dtype=torch.uint8, pin_memory=pinned)
        share = max(1, -(-len(images) // self.workers))
        pieces = [slice(first, first + share) for first in range(0, len(images), share)]
        return buffer, [self._threads.submit(_decode, self._idle, images[piece], buffer[piece]) for piece in pieces]


def _decode(idle: queue.SimpleQueue[Decoder], images: Sequence[ImageRequest], buffer: Tensor) -> None:
    decoder = idle.get()
    try:
        decoder.decode(images, buffer)
    finally:
        idle.put(decoder)


class Decoder:
    """A process (decode.py) that starts when first needed and ends with this object; one that failed is replaced."""

    process: subprocess.Popen[bytes] | None = None

    def decode(self, images: Sequence[ImageRequest], buffer: Tensor) -> None:
        """Decode images straight into the buffer."""
        try:
            if self.process is None:  # a new session: Ctrl-C does not reach it; it ends when its input is closed
                command, pipe = [sys.executable, "-P", str(_PROGRAM)], subprocess.PIPE
                self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True)
                self._stop = weakref.finalize(self, _stop, self.process)
            _exchange(self.process, images, buffer)
        except BaseException as error:
            if self.process is not None:
                self._stop()
                self.process = None
            if isinstance(error, OSError):
                raise SupSupError(f"a process that decodes images could not be used ({error})") from error
            raise


def _stop(process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError), process:  # unsent data is lost
        process.kill()


def _exchange(worker: subprocess.Popen[bytes], images: Sequence[ImageRequest], buffer: Tensor) -> None:
    """Send a request to a process and read its answer (decode.py) into the buffer."""
    assert worker.stdin is not None

    def read(into: bytearray | memoryview) -> None:
        if worker.stdout.readinto(into) != len(into):  # type: ignore[union-attr]
            more = f" or one of the {len(images) - 1} files with it" if len(images) > 1 else ""
            raise SupSupError(
                f"a process that decodes images ended at {images[0][0]}{more}; if the machine is short of memory, use "
                f"fewer with workers=…"
            )

    worker.stdin.write(json.dumps({"size": buffer.shape[-1], "images": images}).encode() + b"\n")
    worker.stdin.flush()
    length = bytearray(4)
    read(length)
    message = bytearray(int.from_bytes(length, "little"))
    if message:
        read(message)
        raise unreadable_error([message.decode()])
    read(buffer.numpy().data.cast("B"))
