"""Crops and flips must be the ones that anyone else would draw, or two executors would train different masks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from supsup.data import Augmentation
from supsup.data.augmentation import ResizedCrop
from supsup.masks import philox
from supsup.runtime.errors import SupSupError


def plainly(image: Tensor, padding: int, row: int, column: int, flip: int) -> Tensor:
    """One image cut out of its frame by slicing."""
    channels, height, width = image.shape
    frame = torch.zeros(channels, height + 2 * padding, width + 2 * padding)
    frame[:, padding : padding + height, padding : padding + width] = image
    cut = frame[:, row : row + height, column : column + width]
    return cut.flip(2) if flip else cut


@given(st.integers(0, 5), st.booleans(), st.integers(0, 2**63), st.integers(0, 10**6))
def test_draws_stay_within_bounds(padding: int, flip: bool, seed: int, step: int) -> None:
    draws = Augmentation(padding, flip).draws(seed, "task", step, 33)
    assert draws.shape == (33, 3)
    assert draws.dtype == torch.int64
    assert int(draws.min()) >= 0
    assert int(draws[:, :2].max()) <= 2 * padding
    assert int(draws[:, 2].max()) <= int(flip)


def test_every_shift_and_both_flips_come_up_about_equally_often() -> None:
    draws = Augmentation(4, True).draws(0, "task", 0, 90_000)
    for column, values in ((0, 9), (1, 9), (2, 2)):
        counts = draws[:, column].bincount(minlength=values)
        assert len(counts) == values
        assert int((counts - 90_000 // values).abs().max()) < 5 * (90_000 / values) ** 0.5


def test_draws_are_those_of_the_fixed_generator() -> None:
    """A mask learned today must come out the same in ten years."""
    words = philox.words(7, ["augment/birds/12"], 6)[0].view(2, 3)
    expected = [[int(row) * 9 >> 32, int(column) * 9 >> 32, int(flip) >> 31] for row, column, flip in words]
    assert Augmentation(4, True).draws(7, "birds", 12, 2).tolist() == expected


@given(st.integers(0, 2**40), st.lists(st.text(max_size=5), max_size=3), st.lists(st.integers(0, 99), max_size=3))
def test_many_draws_at_once_are_the_single_ones(seed: int, tasks: list[str], steps: list[int]) -> None:
    augmentation = Augmentation(2, True)
    many = augmentation.draws_many(seed, tasks, steps, 5)
    assert many.shape == (len(tasks), len(steps), 5, 3)
    for i, task in enumerate(tasks):
        for j, step in enumerate(steps):
            assert torch.equal(many[i, j], augmentation.draws(seed, task, step, 5))


def test_crops_from_a_share_of_the_frame_are_rounded_up() -> None:
    """A narrow frame must not become none by rounding; only a share of 0 does away with it."""
    for padding, share, expected in ((4, 0, 0), (4, 0.25, 1), (4, 1, 4), (1, 0.25, 1), (9, 0.25, 3), (0, 0.25, 0)):
        assert Augmentation(padding, flip=True).within(share) == Augmentation(expected, flip=True)


def test_seeds_tasks_and_steps_differ() -> None:
    augmentation = Augmentation(4, True)
    drawn = [augmentation.draws(*which, count=16) for which in ((0, "a", 0), (1, "a", 0), (0, "b", 0), (0, "a", 1))]
    assert len({tuple(draws.flatten().tolist()) for draws in drawn}) == 4


def test_a_longer_batch_begins_with_the_same_draws() -> None:
    augmentation = Augmentation(4, True)
    assert torch.equal(augmentation.draws(0, "a", 0, 50)[:9], augmentation.draws(0, "a", 0, 9))


@given(st.integers(0, 3), st.integers(1, 5), st.integers(1, 5), st.integers(1, 3), st.integers(0, 99))
def test_apply_is_plain_slicing(padding: int, height: int, width: int, channels: int, step: int) -> None:
    images = torch.arange(1.0, 1 + 6 * channels * height * width).view(6, channels, height, width)
    augmentation = Augmentation(padding, True)
    draws = augmentation.draws(0, "task", step, 6)
    shown = augmentation.apply(images, draws)
    for image, result, (row, column, flip) in zip(images, shown, draws.tolist()):
        assert torch.equal(result, plainly(image, padding, row, column, flip))


def test_no_shift_is_the_image_and_flipping_twice_too() -> None:
    images = torch.rand(4, 3, 5, 6)
    augmentation = Augmentation(2, True)
    still, flipped = (torch.tensor([[2, 2, flip]] * 4) for flip in (0, 1))
    assert torch.equal(augmentation.apply(images, still), images)
    assert not torch.equal(augmentation.apply(images, flipped), images)
    assert torch.equal(augmentation.apply(augmentation.apply(images, flipped), flipped), images)


def test_a_negative_frame_is_refused() -> None:
    with pytest.raises(SupSupError, match="padding is -1; give a whole number, at least 0"):
        Augmentation(-1)


@given(st.lists(st.tuples(st.integers(1, 600), st.integers(1, 600)), min_size=1, max_size=20), st.integers(0, 999))
def test_boxes_lie_within_their_images(sizes: list[tuple[int, int]], step: int) -> None:
    boxes = ResizedCrop().boxes(0, "task", step, torch.tensor(sizes))
    for (width, height), (left, top, wide, high, flip) in zip(sizes, boxes.tolist()):
        assert left >= 0 <= top
        assert 1 <= wide <= width - left
        assert 1 <= high <= height - top
        assert flip in (0, 1)


def test_boxes_have_the_areas_and_shapes_asked_for() -> None:
    left, top, width, height, flip = ResizedCrop().boxes(3, "task", 0, torch.tensor([[500, 500]] * 4000)).unbind(1)
    area, aspect = width * height / 250_000, width / height
    assert 0.075 < area.min() < 0.1
    assert area.max() > 0.9
    assert 0.73 < aspect.min() < 0.78
    assert 1.28 < aspect.max() < 1.36
    assert aspect.log().mean().abs() < 0.02
    assert (flip.float().mean() - 0.5).abs() < 0.04
    assert len(left.unique()) > 300
    assert len(top.unique()) > 200


def test_a_box_depends_on_its_place_alone() -> None:
    """Not on the rest of the batch: however the work is divided, an image is cropped in the same way."""
    sizes = torch.tensor([[500, 375], [64, 800], [33, 35]])
    boxes = ResizedCrop().boxes(0, "task", 5, sizes)
    others = sizes.clone()
    others[1] = torch.tensor([90, 90])
    assert torch.equal(ResizedCrop().boxes(0, "task", 5, others)[[0, 2]], boxes[[0, 2]])
    assert not torch.equal(ResizedCrop().boxes(0, "task", 6, sizes), boxes)


def test_an_image_too_narrow_for_any_box_gives_its_middle() -> None:
    box = ResizedCrop(area=(1.0, 1.0), flip=False).boxes(0, "task", 0, torch.tensor([[10, 1000], [1000, 10]]))
    assert box.tolist() == [[0, 493, 10, 13, 0], [493, 0, 13, 10, 0]]
