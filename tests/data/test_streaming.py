"""Images read while training must be those that memory would hold, and no more of them at a time than said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from supsup.data import Source, image_folder, permuted, rotated, split
from supsup.data.decode import decode_image
from supsup.data.folder import AHEAD, DecoderPool, StreamedPart
from supsup.runtime.errors import SupSupError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four classes of ten images of many sizes."""
    root = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(0)
    for label in range(4):
        (root / f"class-{label}").mkdir()
        for place in range(10):
            height, width = generator.integers(12, 40, 2)
            pixels = generator.integers(0, 256, (height, width, 3), np.uint8)
            Image.fromarray(pixels).save(root / f"class-{label}" / f"{place}.jpg")
    return root


@pytest.fixture(scope="module")
def streamed(folder: Path) -> Source:
    return image_folder(folder, size=16, stream=True, workers=2)


@pytest.fixture
def part(streamed: Source) -> StreamedPart:
    part = split(streamed, 2)[1].train
    assert isinstance(part, StreamedPart)
    return part


POSITIONS = [torch.tensor([3, 0, 15]), torch.tensor([1, 1]), *torch.arange(16).split(4)]


def test_a_streamed_source_is_the_one_in_memory(folder: Path, streamed: Source) -> None:
    """Pixel by pixel: only where the images wait is different."""
    held = image_folder(folder, size=16, stream=False)
    assert repr(streamed) == repr(held)
    assert streamed.shape == held.shape == (3, 16, 16)
    for one, other in zip(split(streamed, 2), split(held, 2), strict=True):
        assert one.name == other.name
        for here, there in ((one.train, other.train), (one.test, other.test)):
            assert len(here) == len(there)
            assert torch.equal(here.tensors()[0], there.tensors()[0])
            assert torch.equal(here.tensors()[1], there.tensors()[1])


def test_it_takes_no_memory_for_pixels(part: StreamedPart) -> None:
    assert not part.in_memory
    assert part.images.is_meta
    assert part.images.shape == (32, 3, 16, 16)


def test_batches_cover_the_part_in_order(part: StreamedPart) -> None:
    images, labels = part.tensors()
    batches = list(part.batches(5))
    assert [len(numbers) for _, numbers in batches] == [5, 5, 5, 1]
    assert torch.equal(torch.cat([batch for batch, _ in batches]), images)
    assert torch.equal(torch.cat([numbers for _, numbers in batches]), labels)
    with pytest.raises(SupSupError, match="size is 0; give a whole number, at least 1"):
        part.batches(0)


def test_training_batches_are_cropped_as_drawn(part: StreamedPart) -> None:
    assert part.files.crop is not None
    assert part.rows is not None
    for step, (images, labels) in enumerate(part.training_batches(POSITIONS, 5, "task")):
        rows = part.rows[POSITIONS[step]]
        boxes = part.files.crop.boxes(5, "task", step, part.files.sizes[rows]).tolist()
        for place, (row, (left, top, width, height, flip)) in enumerate(zip(rows.tolist(), boxes)):
            pixels = decode_image(part.files.paths[row], 16, (left, top, width, height, flip))
            expected = torch.tensor(pixels).float() * part.gain[:, None, None] + part.offset[:, None, None]
            assert torch.equal(images[place], expected)
        assert torch.equal(labels, part.labels[POSITIONS[step]])


def test_training_batches_do_not_depend_on_the_number_of_processes(folder: Path, part: StreamedPart) -> None:
    alone = split(image_folder(folder, size=16, stream=True, workers=1), 2)[1].train
    for one, other in zip(
        part.training_batches(POSITIONS, 0, "a"), alone.training_batches(POSITIONS, 0, "a"), strict=True
    ):
        assert torch.equal(one[0], other[0])


def test_steps_and_tasks_differ(part: StreamedPart) -> None:
    same = [torch.arange(4)] * 2
    (first, _), (second, _) = part.training_batches(same, 0, "a")
    (other, _), _ = part.training_batches(same, 0, "b")
    assert not torch.equal(first, second)
    assert not torch.equal(first, other)


def test_without_augmentation_training_batches_are_batches(folder: Path) -> None:
    part = split(image_folder(folder, size=16, stream=True, augment=False, workers=2), 4)[0].train
    for positions, (images, _) in zip(POSITIONS, part.training_batches(POSITIONS, 0, "a"), strict=True):
        assert torch.equal(images, part.batch(positions)[0])


class Counting:
    """A DecoderPool that counts the batches begun."""

    def __init__(self, pool: DecoderPool) -> None:
        self.pool, self.begun = pool, 0

    def start(self, *request: Any) -> tuple[Tensor, list[Future[None]]]:
        self.begun += 1
        return self.pool.start(*request)


def test_only_a_few_batches_are_under_way(part: StreamedPart, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are asked for: memory must not grow with the number of images or of steps."""
    counting = Counting(part.files.pool)
    monkeypatch.setitem(part.files.__dict__, "pool", counting)
    asked = 0

    def positions() -> Iterator[Tensor]:
        nonlocal asked
        for _ in range(50):
            asked += 1
            yield torch.arange(3)

    batches = part.training_batches(positions(), 0, "a")
    for taken in range(1, 20):
        next(batches)
        assert counting.begun == asked == taken + AHEAD
    batches.close()  # type: ignore[attr-defined]
    assert counting.begun < 30


def test_a_file_damaged_later_is_named(tmp_path: Path) -> None:
    for label in "ab":
        (tmp_path / label).mkdir()
        for place in range(6):
            Image.new("RGB", (20, 20)).save(tmp_path / label / f"{place}.png")
    part = split(image_folder(tmp_path, size=16, stream=True, workers=2), 2)[0].train
    bad = Path(part.files.paths[4])  # type: ignore[attr-defined]
    bad.write_bytes(bad.read_bytes()[:40])
    with pytest.raises(SupSupError, match=f"1 file cannot be read as images: {bad}"):
        list(part.training_batches([torch.arange(4), torch.arange(4, 8)], 0, "a"))
    assert part.batch(torch.arange(2))[0].shape == (2, 3, 16, 16)


@pytest.mark.parametrize("make", [lambda source: permuted(source, 1), lambda source: rotated(source, 1)])
def test_pixels_cannot_be_rearranged(streamed: Source, make: Callable[[Source], list[object]]) -> None:
    with pytest.raises(
        SupSupError, match=r"cannot be permuted or rotated; make tasks of their classes with data\.split"
    ):
        make(streamed)[0]


def test_on_the_same_device_is_the_same_part(part: StreamedPart) -> None:
    assert part.on("cpu") is part


@pytest.mark.gpu
def test_a_gpu_gets_the_same_images(part: StreamedPart) -> None:
    here, there = (list(p.training_batches(POSITIONS, 0, "a")) for p in (part, part.on("cuda")))
    for (images, labels), (moved, numbers) in zip(here, there, strict=True):
        assert moved.is_cuda
        assert torch.allclose(images, moved.cpu(), atol=1e-6)
        assert torch.equal(labels, numbers.cpu())
