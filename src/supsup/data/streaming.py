"""Images that stay in their files and are decoded batch by batch, a little ahead, so that any number fits in memory.

Worker processes decode them. They are plain programs (decode.py) behind pipes: they need no guard in the user's script,
share no locks with it, and end when it does, however it ends. torch's DataLoader was 18 to 24 % slower.
"""

from __future__ import annotations

import json
import queue
import struct
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from supsup.data.augmentation import ResizedCrop
from supsup.data.folder import unreadable_error
from supsup.data.source import Source
from supsup.data.task import Device, Part
from supsup.runtime.devices import on_device, resolve
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import whole

AHEAD = 2  # batches decoded beyond the current one
_PROGRAM = Path(__file__).with_name("decode.py")

ImageRequest = tuple[str, list[int] | None]  # path; box: left, top, width, height, mirrored
_Worker = subprocess.Popen[bytes]
_IdleWorkers = queue.SimpleQueue[_Worker | None]  # None: a process that is not started yet


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Paths of images with their sizes [n, 2] (width, height), and the processes that decode them to size × size."""

    paths: list[str]
    sizes: Tensor
    size: int
    pool: DecoderPool

    def meta_tensor(self) -> Tensor:
        """A tensor in the shape of all the images, without content."""
        return torch.empty(len(self.paths), 3, self.size, self.size, dtype=torch.uint8, device="meta")


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class StreamedPart(Part):
    """A part whose images are in files; `images` has their shape but no content.

    crop: the random box that `training_batches` cuts out of each image; None: the centre, as `batch` always does.
    """

    files: ImageFiles
    crop: ResizedCrop | None = None

    @property
    def in_memory(self) -> bool:
        """Whether `images` holds the pixels: no."""
        return False

    def on(self, device: Device) -> StreamedPart:
        """The same part with its batches on the device; `rows` stays on the CPU, where files are chosen."""
        target = torch.empty(0, device=resolve(device)).device
        if self.labels.device == target:
            return self
        gain, offset = on_device(self.gain, target), on_device(self.offset, target)
        return replace(self, labels=on_device(self.labels, target), gain=gain, offset=offset)

    def batch(self, positions: Tensor, device: Device | None = None) -> tuple[Tensor, Tensor]:
        """float32 images and int64 labels at these positions, by default on the part's device."""
        if device is not None:
            return self.on(device).batch(positions)
        return self._finish(self._start(positions), positions)

    def batches(self, size: int, device: Device | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """All images and labels, in order, `size` at a time; the last batch may be shorter."""
        size = whole(1)(size, "size")
        part = self if device is None else self.on(device)
        return part._prefetch((positions, None) for positions in torch.arange(len(self)).split(size))

    def training_batches(self, positions: Iterable[Tensor], seed: int, task: str) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches at these positions, step by step, with the crop drawn for each."""

        def boxes(step: int, chosen: Tensor) -> Tensor | None:
            return (
                None if self.crop is None else self.crop.boxes(seed, task, step, self.files.sizes[self._rows(chosen)])
            )

        return self._prefetch((chosen, boxes(step, chosen)) for step, chosen in enumerate(positions))

    def _prefetch(self, wanted: Iterable[tuple[Tensor, Tensor | None]]) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches in order, the next few in progress; nothing new starts when the caller stops early."""
        waiting: deque[tuple[PendingBatch, Tensor]] = deque()
        try:
            for positions, boxes in wanted:
                waiting.append((self._start(positions, boxes), positions))
                if len(waiting) > AHEAD:
                    yield self._finish(*waiting.popleft())
            while waiting:
                yield self._finish(*waiting.popleft())
        finally:
            for pending, _ in waiting:
                pending.cancel()

    def _rows(self, positions: Tensor) -> Tensor:
        return positions.cpu() if self.rows is None else self.rows[positions.cpu()]

    def _start(self, positions: Tensor, boxes: Tensor | None = None) -> PendingBatch:
        rows = self._rows(positions).tolist()
        cut = [None] * len(rows) if boxes is None else boxes.tolist()
        images = [(self.files.paths[row], box) for row, box in zip(rows, cut)]
        return self.files.pool.start(images, self.files.size, pinned=self.labels.is_cuda)

    def _finish(self, pending: PendingBatch, positions: Tensor) -> tuple[Tensor, Tensor]:
        device = self.labels.device
        images = pending.result().to(device, non_blocking=True).float()
        gain, offset = (on_device(number, device).view(-1, 1, 1) for number in (self.gain, self.offset))
        return images.mul_(gain).add_(offset), self.labels.index_select(0, positions.to(device))


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class StreamedSource(Source):
    """A source whose images are in files; its tensors of images have their shape but no content."""

    train_files: ImageFiles
    test_files: ImageFiles
    crop: ResizedCrop | None = None

    def train_part(self, labels: Tensor, rows: Tensor | None = None, pixels: Tensor | None = None) -> StreamedPart:
        """The training half of a task."""
        self._check_no_map(pixels)
        images = self.train_images
        return StreamedPart(images, labels, self.gain, self.offset, rows, files=self.train_files, crop=self.crop)

    def test_part(self, labels: Tensor, rows: Tensor | None = None, pixels: Tensor | None = None) -> StreamedPart:
        """The test half of a task."""
        self._check_no_map(pixels)
        return StreamedPart(self.test_images, labels, self.gain, self.offset, rows, files=self.test_files)

    def _check_no_map(self, pixels: Tensor | None) -> None:
        if pixels is not None:
            raise SupSupError(
                f"the images of {self.name} are read from their files while training and cannot be permuted or "
                f"rotated; make tasks of their classes with data.split, or give image_folder stream=False"
            )


class DecoderPool:
    """Processes that start when first needed and end with the pool."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._threads = ThreadPoolExecutor(workers)  # each thread waits for one process
        self._idle: _IdleWorkers = queue.SimpleQueue()
        for _ in range(workers):
            self._idle.put(None)
        self._closed = threading.Event()
        self._close = weakref.finalize(self, _close_pool, self._threads, self._idle, self._closed)

    def close(self) -> None:
        """Wait for the images being decoded, then end the processes."""
        self._threads.shutdown(cancel_futures=True)
        self._close()

    def start(self, images: Sequence[ImageRequest], size: int, pinned: bool = False) -> PendingBatch:
        """Start to decode a batch; pinned: into memory that a GPU copies from asynchronously."""
        buffer = torch.empty(len(images), 3, size, size, dtype=torch.uint8, pin_memory=pinned)
        share = max(1, -(-len(images) // self.workers))
        pieces = [slice(first, first + share) for first in range(0, len(images), share)]
        submit, shared = self._threads.submit, (self._idle, self._closed)
        futures = [submit(_decode, *shared, images[piece], buffer[piece]) for piece in pieces]
        return PendingBatch(buffer, futures)


class PendingBatch:
    """A batch that is being decoded."""

    def __init__(self, buffer: Tensor, futures: list[Future[None]]) -> None:
        self._buffer, self._futures = buffer, futures

    def result(self) -> Tensor:
        """Wait for uint8 [n, 3, size, size]."""
        try:
            for future in self._futures:
                future.result()
        except BaseException:
            self.cancel()
            raise
        return self._buffer

    def cancel(self) -> None:
        """Cancel what has not started."""
        for future in self._futures:
            future.cancel()


def _decode(idle: _IdleWorkers, closed: threading.Event, images: Sequence[ImageRequest], buffer: Tensor) -> None:
    """Decode with an idle process, straight into the buffer; a process that failed is replaced later."""
    worker = idle.get()
    usable = False
    try:
        if worker is None:  # a new session: Ctrl-C does not reach it; it ends when its input is closed
            command = [sys.executable, "-P", str(_PROGRAM)]
            worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        _exchange(worker, images, buffer)
        usable = True
    except OSError as error:
        raise SupSupError(f"a process that decodes images could not be used ({error})") from error
    finally:
        if not usable and worker is not None:
            _stop(worker)
        idle.put(worker if usable else None)
        if closed.is_set():  # nobody else stops a process that comes back after the pool was closed
            _stop_idle(idle)


def _exchange(worker: _Worker, images: Sequence[ImageRequest], buffer: Tensor) -> None:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(json.dumps({"size": buffer.shape[-1], "images": images}).encode() + b"\n")
    worker.stdin.flush()
    if _read(worker.stdout, 1, images) == b"\1":
        (length,) = struct.unpack("<I", _read(worker.stdout, 4, images))
        raise unreadable_error([_read(worker.stdout, length, images).decode()])
    view = buffer.numpy().data.cast("B")
    if worker.stdout.readinto(view) != len(view):  # type: ignore[attr-defined]
        raise _ended(images)


def _read(pipe: IO[bytes], count: int, images: Sequence[ImageRequest]) -> bytes:
    answer = pipe.read(count)
    if len(answer) != count:
        raise _ended(images)
    return answer


def _ended(images: Sequence[ImageRequest]) -> SupSupError:
    more = f" or one of the {len(images) - 1} files with it" if len(images) > 1 else ""
    return SupSupError(
        f"a process that decodes images ended at {images[0][0]}{more}; if the machine is short of memory, use fewer "
        f"with workers=…"
    )


def _stop(worker: _Worker) -> None:
    worker.kill()
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            with suppress(OSError):  # unsent data is lost
                pipe.close()
    worker.wait()


def _close_pool(threads: ThreadPoolExecutor, idle: _IdleWorkers, closed: threading.Event) -> None:
    """Stop every process, the busy ones when they come back.

    It must not wait for threads: garbage collection runs it in any thread, even in one that is just being started and
    holds a lock that a join needs.
    """
    threads.shutdown(wait=False, cancel_futures=True)
    closed.set()
    _stop_idle(idle)


def _stop_idle(idle: _IdleWorkers) -> None:
    with suppress(queue.Empty):
        while True:
            worker = idle.get_nowait()
            if worker is not None:
                _stop(worker)
    idle.put(None)  # a thread that is about to take a process must not wait for ever
