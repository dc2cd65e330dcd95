"""Rotation as an index map, against what is known exactly: right angles and single pixels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from supsup.data.streams import rotation_map


def rotated(image: Tensor, degrees: float) -> Tensor:
    height, width = image.shape
    pixels = rotation_map(height, width, degrees)
    shown = torch.where(pixels >= 0, image.flatten()[pixels.clamp(min=0)], -1)
    return shown.view_as(image)


@pytest.mark.parametrize("size", [1, 2, 5, 28, 32])
@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_right_angles_are_exact_and_anticlockwise(size: int, turns: int) -> None:
    image = torch.arange(size * size).view(size, size)
    assert torch.equal(rotated(image, 90.0 * turns), torch.rot90(image, turns))


@pytest.mark.parametrize("degrees", range(0, 360, 10))
def test_every_pixel_comes_from_where_the_released_scripts_take_it(degrees: int) -> None:
    """They turn pictures with PIL; 36 angles of MNIST."""
    numbers = np.arange(1, 28 * 28 + 1, dtype=np.int32).reshape(28, 28)  # 0 is what PIL puts outside
    theirs = np.asarray(Image.fromarray(numbers).rotate(degrees))
    assert rotated(torch.from_numpy(numbers), degrees).clamp(min=0).tolist() == theirs.tolist()


def test_half_a_turn_of_an_oblong() -> None:
    image = torch.arange(15).view(3, 5)
    assert torch.equal(rotated(image, 180.0), image.flip(0, 1))


def test_a_quarter_turn_of_an_oblong_comes_from_nowhere_outside() -> None:
    image = torch.arange(15).view(3, 5)
    expected = torch.full((3, 5), -1)
    expected[:, 1:4] = torch.rot90(image[:, 1:4])
    assert torch.equal(rotated(image, 90.0), expected)


def test_a_small_angle_turns_anticlockwise() -> None:
    """A mark right of the middle must rise."""
    image = torch.zeros(29, 29)
    image[14, 26] = 1
    row, column = (rotated(image, 30.0) == 1).nonzero()[0].tolist()
    assert (row, column) == (8, 24)


@given(st.integers(1, 12), st.integers(1, 12), st.floats(0, 360))
def test_every_entry_is_a_pixel_or_outside(height: int, width: int, degrees: float) -> None:
    pixels = rotation_map(height, width, degrees)
    assert pixels.dtype == torch.int64
    assert pixels.shape == (height * width,)
    assert pixels.min() >= -1
    assert pixels.max() < height * width


@given(st.floats(0, 360))
def test_the_middle_stays_inside(degrees: float) -> None:
    """The inscribed circle never leaves the image, whatever the angle."""
    pixels = rotation_map(9, 9, degrees).view(9, 9)
    y, x = torch.meshgrid(torch.arange(9) - 4, torch.arange(9) - 4, indexing="ij")
    assert (pixels[x**2 + y**2 <= 16] >= 0).all()


def test_ties_do_not_hang_on_the_last_bit_of_a_sine() -> None:
    """sin 30° is 0.49999999999999994 on one machine and 0.5 on another; the map must be the same."""
    for degrees in (30.0, 60.0, 120.0):
        assert torch.equal(rotation_map(28, 28, degrees), rotation_map(28, 28, degrees + 1e-12))
        assert torch.equal(rotation_map(28, 28, degrees), rotation_map(28, 28, degrees - 1e-12))


def test_turned_as_the_released_script_turns() -> None:
    """By Pillow's nearest neighbour, pixel for pixel, at every angle of the paper's 36 tasks."""
    picture = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    image = torch.arange(784, dtype=torch.int32).view(28, 28)
    for angle in range(0, 360, 10):
        expected = picture.fromarray(image.numpy()).rotate(angle, fillcolor=-1)
        assert torch.equal(rotated(image, float(angle)).int(), torch.from_numpy(np.array(expected))), angle
