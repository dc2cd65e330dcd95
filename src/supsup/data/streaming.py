"""Images that stay in their files: read batch by batch, a little ahead, so that any number of them fits into memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from supsup.data.augmentation import ResizedCrop
from supsup.data.decoder_pool import DecoderPool, PendingBatch
from supsup.data.device_copies import on_device
from supsup.data.source import Source
from supsup.data.task import Device, Part
from supsup.devices import resolve
from supsup.errors import SupSupError
from supsup.validation import whole

AHEAD = 2  # batches decoded beyond the one that is asked for


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Paths of images with their sizes [n, 2] (width, height), and the processes that decode them to size × size."""

    paths: list[str]
    sizes: Tensor
    size: int
    pool: DecoderPool

    def tensor(self) -> Tensor:
        """A tensor in the shape of all the images, without content."""
        return torch.empty(len(self.paths), 3, self.size, self.size, dtype=torch.uint8, device="meta")


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class StreamedPart(Part):
    """A part whose images are in files; `images` has their shape but no content.

    crop: the box that `training_batches` cuts out of each image; None for the middle, which `batch` always gives.
    """

    files: ImageFiles
    crop: ResizedCrop | None = None

    @property
    def in_memory(self) -> bool:
        """Whether `images` holds the pixels: no."""
        return False

    def on(self, device: Device) -> StreamedPart:
        """The same part, giving its batches on the device; `rows` stays on the CPU, where files are chosen."""
        target = torch.empty(0, device=resolve(device)).device
        if self.labels.device == target:
            return self
        gain, offset = on_device(self.gain, target), on_device(self.offset, target)
        return replace(self, labels=on_device(self.labels, target), gain=gain, offset=offset)

    def batch(self, positions: Tensor, device: Device | None = None) -> tuple[Tensor, Tensor]:
        """float32 images and int64 labels at these positions, on the part's own device if none is given."""
        if device is not None:
            return self.on(device).batch(positions)
        return self._finished(self._begun(positions), positions)

    def batches(self, size: int, device: Device | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """All images and labels, in order, `size` at a time; the last batch may be shorter."""
        size = whole(1)(size, "size")
        part = self if device is None else self.on(device)
        return part._ahead((positions, None) for positions in torch.arange(len(self)).split(size))

    def training_batches(self, positions: Iterable[Tensor], seed: int, task: str) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches at these positions, step by step, with the crop drawn for each."""
        return self._ahead(self._cropped(positions, seed, task))

    def _cropped(self, positions: Iterable[Tensor], seed: int, task: str) -> Iterator[tuple[Tensor, Tensor | None]]:
        for step, chosen in enumerate(positions):
            boxes = None
            if self.crop is not None:
                boxes = self.crop.boxes(seed, task, step, self.files.sizes[self._rows(chosen)])
            yield chosen, boxes

    def _ahead(self, wanted: Iterable[tuple[Tensor, Tensor | None]]) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches in order, a few of the next ones under way; nothing new begins when the caller stops early."""
        waiting: deque[tuple[PendingBatch, Tensor]] = deque()
        try:
            for positions, boxes in wanted:
                waiting.append((self._begun(positions, boxes), positions))
                if len(waiting) > AHEAD:
                    yield self._finished(*waiting.popleft())
            while waiting:
                yield self._finished(*waiting.popleft())
        finally:
            for decoding, _ in waiting:
                decoding.cancel()

    def _rows(self, positions: Tensor) -> Tensor:
        return positions.cpu() if self.rows is None else self.rows[positions.cpu()]

    def _begun(self, positions: Tensor, boxes: Tensor | None = None) -> PendingBatch:
        rows = self._rows(positions).tolist()
        cut = [None] * len(rows) if boxes is None else boxes.tolist()
        images = [(self.files.paths[row], box) for row, box in zip(rows, cut)]
        return self.files.pool.start(images, self.files.size, pinned=self.labels.is_cuda)

    def _finished(self, decoding: PendingBatch, positions: Tensor) -> tuple[Tensor, Tensor]:
        device = self.labels.device
        images = decoding.result().to(device, non_blocking=True).float()
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
        self._refuse(pixels)
        images = self.train_images
        return StreamedPart(images, labels, self.gain, self.offset, rows, files=self.train_files, crop=self.crop)

    def test_part(self, labels: Tensor, rows: Tensor | None = None, pixels: Tensor | None = None) -> StreamedPart:
        """The test half of a task."""
        self._refuse(pixels)
        return StreamedPart(self.test_images, labels, self.gain, self.offset, rows, files=self.test_files)

    def _refuse(self, pixels: Tensor | None) -> None:
        if pixels is not None:
            raise SupSupError(
                f"the images of {self.name} are read from their files while training and cannot be permuted or "
                f"rotated; make tasks of their classes with data.split, or give image_folder stream=False"
            )
