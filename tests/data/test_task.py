"""Batches must be what the plain formula gives: choose rows, move pixels, normalise."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from supsup.data import Augmentation, Part
from supsup.runtime.errors import SupSupError

SHAPES = st.sampled_from([(6,), (1, 2, 3), (3, 2, 3)])


def plainly(part: Part, position: int) -> Tensor:
    """One image of a part, pixel by pixel."""
    row = position if part.rows is None else int(part.rows[position])
    channels = part.images[row].float().reshape(-1, 6) * part.gain.reshape(-1, 1) + part.offset.reshape(-1, 1)
    shown = torch.zeros_like(channels)
    for pixel in range(6):
        source = pixel if part.pixels is None else int(part.pixels[pixel])
        if source >= 0:
            shown[:, pixel] = channels[:, source]
    return shown.reshape(part.shape)


@st.composite
def parts(draw: st.DrawFn) -> Part:
    shape = draw(SHAPES)
    images = torch.randint(0, 256, (5, *shape), dtype=torch.uint8)
    if draw(st.booleans()):
        images = images.float()
    channels = shape[0] if len(shape) == 3 and draw(st.booleans()) else 1
    gain, offset = (torch.rand(channels), torch.rand(channels)) if channels > 1 else (torch.rand(()), torch.rand(()))
    rows = draw(st.none() | st.lists(st.integers(0, 4), max_size=7).map(lambda r: torch.tensor(r, dtype=torch.int64)))
    pixels = draw(st.none() | st.lists(st.integers(-1, 5), min_size=6, max_size=6).map(torch.tensor))
    return Part(images, torch.arange(5 if rows is None else len(rows)), gain, offset, rows, pixels)


@given(parts())
def test_tensors_agree_with_the_plain_formula(part: Part) -> None:
    images, labels = part.tensors()
    assert images.shape == (len(part), *part.shape)
    assert images.dtype == torch.float32
    assert labels.tolist() == list(range(len(part)))
    for position in range(len(part)):
        assert torch.equal(images[position], plainly(part, position))


@given(parts(), st.integers(1, 6))
def test_batches_cover_the_part_in_order(part: Part, size: int) -> None:
    batches = list(part.batches(size))
    assert all(len(labels) == size for _, labels in batches[:-1])
    if batches:
        images, labels = part.tensors()
        assert torch.equal(torch.cat([batch for batch, _ in batches]), images)
        assert torch.equal(torch.cat([batch for _, batch in batches]), labels)
    assert sum(len(batch) for batch, _ in batches) == len(part)


def test_a_batch_takes_positions_in_any_order() -> None:
    part = Part(torch.arange(12.0).reshape(4, 3), torch.tensor([3, 2, 1, 0]))
    images, labels = part.batch(torch.tensor([2, 0, 2]))
    assert images.tolist() == [[6, 7, 8], [0, 1, 2], [6, 7, 8]]
    assert labels.tolist() == [1, 3, 1]


def test_a_batch_leaves_the_shared_images_alone() -> None:
    """Float images need no conversion; normalising them in place would spoil every other task."""
    images = torch.ones(2, 3)
    Part(images, torch.zeros(2, dtype=torch.int64), torch.tensor(5.0), torch.tensor(1.0)).tensors()
    assert torch.equal(images, torch.ones(2, 3))


def test_what_comes_from_outside_the_image_is_0_after_normalisation() -> None:
    """The mean of the data, so that it does not stand out; a black pixel would be the offset."""
    gain, offset = torch.tensor(2.0), torch.tensor(-3.0)
    part = Part(torch.ones(1, 2), torch.zeros(1, dtype=torch.int64), gain, offset, pixels=torch.tensor([-1, 0]))
    assert part.tensors()[0].tolist() == [[0.0, -1.0]]


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> str:
    """A second device that every machine has; a user's word for it is refused."""
    monkeypatch.setattr(sys.modules["supsup.data.task"], "resolve", torch.device)
    return "meta"


def test_parts_that_share_images_share_the_copy_on_a_device(elsewhere: str) -> None:
    images, labels = torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64)
    one, other = (Part(images, labels, pixels=torch.randperm(4)).on(elsewhere) for _ in range(2))
    assert one.images.device.type == elsewhere
    assert one.images is other.images
    assert one.pixels is not other.pixels


def test_on_the_same_device_is_the_same_part() -> None:
    part = Part(torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64))
    assert part.on("cpu") is part
    assert part.in_memory


@pytest.mark.gpu
def test_a_gpu_gives_the_same_bits() -> None:
    pixels = torch.tensor([3, -1, 0, 2])
    images = torch.arange(8, dtype=torch.uint8).reshape(2, 4)
    part = Part(images, torch.arange(2), torch.tensor(0.013), torch.tensor(-0.42), pixels=pixels)
    moved, labels = part.tensors("cuda")
    assert moved.is_cuda
    assert labels.is_cuda
    assert torch.equal(moved.cpu(), part.tensors()[0])
    kept, _ = Part(images.cuda(), torch.arange(2).cuda(), pixels=pixels.cuda()).tensors()
    assert kept.is_cuda


def test_labels_must_match_the_images_kept() -> None:
    with pytest.raises(SupSupError, match="3 labels for 2 images"):
        Part(torch.zeros(5, 4), torch.arange(3), rows=torch.tensor([0, 1]))


def test_a_pixel_map_must_match_the_image() -> None:
    with pytest.raises(SupSupError, match="3 entries; give one for each of the 4 pixels"):
        Part(torch.zeros(1, 3, 2, 2), torch.arange(1), pixels=torch.arange(3))


def test_batches_of_nothing_are_refused() -> None:
    with pytest.raises(SupSupError, match="size is 0; give a whole number, at least 1"):
        Part(torch.zeros(1, 4), torch.arange(1)).batches(0)


def pictures(augmentation: Augmentation | None, pixels: Tensor | None = None) -> Part:
    images = torch.randint(1, 256, (9, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    gain, offset = torch.tensor([0.5, 0.25, 2.0]), torch.tensor([-1.0, 0.0, 3.0])
    return Part(images, torch.arange(6), gain, offset, torch.tensor([8, 1, 2, 3, 0, 5]), pixels, augmentation)


POSITIONS = [torch.tensor([0, 5, 1]), torch.tensor([2, 2]), torch.tensor([4, 3, 0])]


def test_training_batches_without_augmentation_are_batches() -> None:
    part = pictures(None)
    for positions, (images, labels) in zip(POSITIONS, part.training_batches(POSITIONS, 0, "task"), strict=True):
        expected, numbers = part.batch(positions)
        assert torch.equal(images, expected)
        assert torch.equal(labels, numbers)


@pytest.mark.parametrize("pixels", [None, torch.randperm(16)])
def test_training_batches_are_augmented_before_pixels_move_and_before_normalisation(pixels: Tensor | None) -> None:
    """A frame that is black before normalisation, as in the paper's code; a permuted task shows permuted crops."""
    augmentation = Augmentation(padding=1, flip=True)
    part = pictures(augmentation, pixels)
    assert part.rows is not None
    for step, (images, labels) in enumerate(part.training_batches(POSITIONS, 4, "task")):
        raw = part.images[part.rows[POSITIONS[step]]].float()
        cropped = augmentation.apply(raw, augmentation.draws(4, "task", step, len(raw)))
        shown = cropped if pixels is None else cropped.flatten(2)[:, :, pixels].view_as(cropped)
        assert torch.equal(images, shown * part.gain[:, None, None] + part.offset[:, None, None])
        assert torch.equal(labels, part.labels[POSITIONS[step]])


def test_batches_to_look_at_are_never_augmented() -> None:
    varied, plain = pictures(Augmentation(2, True)), pictures(None)
    assert torch.equal(varied.tensors()[0], plain.tensors()[0])


def test_augmentation_moves_with_the_part(elsewhere: str) -> None:
    augmentation = Augmentation(2, True)
    assert pictures(augmentation).on(elsewhere).augmentation is augmentation


def test_rows_of_numbers_cannot_be_cropped() -> None:
    with pytest.raises(
        SupSupError, match=r"images of shape \(4,\) cannot be cropped; give \[n, channels, height, width\]"
    ):
        Part(torch.zeros(2, 4), torch.arange(2), augmentation=Augmentation(1))


@pytest.mark.gpu
def test_a_gpu_augments_to_the_same_bits() -> None:
    part = pictures(Augmentation(2, True))
    here, there = (list(p.training_batches(POSITIONS, 1, "task")) for p in (part, part.on("cuda")))
    for (images, labels), (moved, numbers) in zip(here, there):
        assert moved.is_cuda
        assert torch.equal(images, moved.cpu())
        assert torch.equal(labels, numbers.cpu())
