"""`arrays` is where a user's own data comes in: what is right must get through, what is wrong must be named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from supsup import data
from supsup.data import Part, Source, arrays
from supsup.runtime.errors import SupSupError

LABELS = np.array([0, 1, 2, 1])


def source(x: Any, y: Any = LABELS, **options: Any) -> Source:
    return arrays(x, y, x, y, **options)


def train_tensors(made: Source) -> torch.Tensor:
    return Part(made.train_images, made.train_labels, made.gain, made.offset).tensors()[0]


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", ">i4", "uint32", "float16", "float64", ">f4"])
def test_pixels_of_any_numeric_kind(dtype: str) -> None:
    x = np.array([[0, 1], [1, 1], [0, 0], [1, 0]]).astype(dtype)
    made = source(x, normalise=False)
    assert made.train_images.dtype == (torch.uint8 if dtype == "uint8" else torch.float32)
    assert train_tensors(made).tolist() == x.astype(float).tolist()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.bool, torch.bfloat16, torch.float64])
def test_torch_tensors_of_any_kind(dtype: torch.dtype) -> None:
    x = torch.tensor([[0, 1], [1, 1], [0, 0], [1, 0]]).to(dtype)
    assert train_tensors(source(x, torch.from_numpy(LABELS), normalise=False)).tolist() == x.double().tolist()


@pytest.mark.parametrize("dtype", ["uint8", "int8", ">i2", "int32", "uint64"])
def test_labels_of_any_whole_kind(dtype: str) -> None:
    made = source(np.zeros((4, 2)), LABELS.astype(dtype))
    assert made.train_labels.dtype == torch.int64
    assert made.test_labels.tolist() == LABELS.tolist()
    assert made.classes == 3


def test_classes_count_those_seen_only_in_the_test_images() -> None:
    x = np.zeros((2, 2))
    assert arrays(x, [0, 1], x, [0, 2]).classes == 3
    gaps = arrays(x, [0, 1], x, [0, 4])
    assert (gaps.classes, gaps.names, gaps.test_labels.tolist()) == (3, (0, 1, 4), [0, 2])


def test_names_of_classes_go_with_the_tasks() -> None:
    made = arrays(np.zeros((4, 2)), ["d", "b", "a", "c"], np.zeros((2, 2)), ["a", "b"])
    assert (made.classes, made.names) == (4, ("a", "b", "c", "d"))
    assert [task.names for task in data.split(made, 2)] == [("a", "b"), ("c", "d")]
    assert data.permuted(made, 1)[0].names == made.names


def test_tables_are_normalised_feature_by_feature() -> None:
    """One mean for all features of wine loses a third of the answers."""
    x = np.random.default_rng(0).normal([0, 50, -3], [1e-3, 100, 5], (500, 3))
    part = data.permuted(arrays(x, np.arange(500) % 2, x, np.arange(500) % 2), 1)[0].train
    seen, _ = part.tensors()
    assert seen.mean(0).abs().max() < 1e-5
    assert (seen.std(0) - 1).abs().max() < 0.01


def test_channels_may_be_last() -> None:
    x = np.random.default_rng(0).integers(0, 256, (4, 8, 9, 3), dtype=np.uint8)
    assert source(x).shape == source(x, layout="NHWC").shape == (3, 8, 9)
    assert torch.equal(source(x).train_images, torch.from_numpy(x).movedim(-1, 1))
    assert source(x, layout="NCHW").shape == (8, 9, 3)


@pytest.mark.parametrize(
    ("given", "kept"), [((4, 6), (6,)), ((4, 2, 3), (1, 2, 3)), ((4, 1, 2, 3), (1, 2, 3)), ((4, 3, 2, 2), (3, 2, 2))]
)
def test_shapes(given: tuple[int, ...], kept: tuple[int, ...]) -> None:
    assert source(np.zeros(given)).shape == kept


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_normalised_training_images_have_mean_0_and_std_1_in_each_channel(dtype: str) -> None:
    x = (np.random.default_rng(0).random((4, 3, 8, 8)) * [[[10]], [[100]], [[250]]]).astype(dtype)
    made = source(x)
    assert made.gain.shape == (3,)
    images = train_tensors(made)
    assert images.mean((0, 2, 3)).tolist() == pytest.approx([0, 0, 0], abs=1e-5)
    assert images.std((0, 2, 3), correction=0).tolist() == pytest.approx([1, 1, 1], abs=1e-5)


def test_one_channel_is_normalised_by_one_number() -> None:
    made = source(np.random.default_rng(0).random((4, 8, 8)))
    assert made.gain.shape == ()
    assert train_tensors(made).std(correction=0).item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6])
def test_constant_images_are_not_blown_up(value: float) -> None:
    """A standard deviation of 0, or of rounding noise, would give infinities or huge numbers."""
    assert train_tensors(source(np.full((4, 7), value))).abs().max() <= 1e-6 * max(value, 1)


def test_the_source_owns_its_pixels() -> None:
    """Otherwise a later edit of the user's array would change tasks already learned."""
    x, t = np.zeros((4, 2), np.float32), torch.zeros(4, 2)
    from_numpy, from_torch = source(x), source(t)
    x += 1
    t += 1
    assert from_numpy.train_images.sum() == 0
    assert from_torch.train_images.sum() == 0


def test_read_only_and_reversed_arrays() -> None:
    """Neither converts to torch as it is: one warns, the other fails."""
    x = np.arange(8, dtype=np.uint8).reshape(4, 2)
    x.setflags(write=False)
    assert source(x[::-1]).train_images.tolist() == x[::-1].tolist()
    channels_last = torch.rand(4, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    assert torch.equal(source(channels_last).train_images, channels_last)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((3, 2)), LABELS, "train_y has 4 labels for 3 images; give one label for each"),
        (np.zeros((4, 2)), LABELS[:, None], r"train_y have shape \[4, 1\]; give one label"),
        (np.zeros((0, 2)), LABELS[:0], r"train_x: inputs have shape \[0, 2\]"),
        (np.zeros(4), LABELS, r"train_x: inputs have shape \[4\]; give a batch"),
        (np.array([[0, 1], [np.nan, 2], [3, np.inf], [0, 0]]), LABELS, "train_x: 2 of 4 inputs hold NaN"),
        (np.full((4, 2), 1e300), LABELS, "4 of 4 inputs hold .* too large for float32"),
        (np.array([["a", "b"]] * 4), LABELS, "train_x: inputs must be an array of numbers, not of <U1"),
        (np.array([[None, 1]] * 4), LABELS, "train_x: .* not of object"),
        (np.zeros((4, 2), complex), LABELS, "train_x: .* not of complex128"),
        (torch.zeros(4, 2, dtype=torch.complex64), LABELS, "train_x: .* torch.complex64"),
        ([[1, 2], [3]], LABELS, "inputs differ in shape"),
        (np.zeros((4, 2)), np.array([0, 0, 0, 0]), "give at least two classes"),
        (np.zeros((4, 2)), np.array([0.0, 1.5, 2, 1]), "train_y are real numbers .*; give classes: whole numbers"),
        (np.zeros((4, 2)), np.array([], int), r"train_y have shape \[0\]"),
    ],
)
def test_errors_say_what_is_wrong_and_where(x: Any, y: Any, message: str) -> None:
    with pytest.raises(SupSupError, match=message):
        source(x, y)


def test_test_images_must_have_the_shape_of_training_images() -> None:
    with pytest.raises(SupSupError, match=r"train_x have shape \[1, 2, 2\], those of test_x \[1, 3, 3\]"):
        arrays(np.zeros((4, 2, 2)), LABELS, np.zeros((4, 3, 3)), LABELS)


def test_errors_name_the_test_half_too() -> None:
    with pytest.raises(SupSupError, match="test_y"):
        arrays(np.zeros((4, 2)), LABELS, np.zeros((4, 2)), LABELS[:2])
