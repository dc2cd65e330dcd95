"""Streams: the right tasks under the right names, made only when asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from supsup.data import Augmentation, Source, Stream, arrays, permuted, rotated, split
from supsup.masks import philox
from supsup.runtime.errors import SupSupError


def images(*shape: int, classes: int = 10) -> Source:
    """Twenty training and ten test images, all pixels different within one image, labels 0, 1, … in turn."""
    x = np.arange(np.prod(shape)) + 1000.0 * np.arange(20)[:, None]
    x = x.reshape(20, *shape)
    y = np.arange(20) % classes
    return arrays(x, y, x[:10], y[:10], name="numbers", normalise=False)


SQUARE = images(4, 4)


def names(stream: Stream) -> list[str]:
    return [task.name for task in stream]


@given(st.integers(0, 2**63), st.integers(0, 3000))
def test_a_permutation_is_a_bijection_and_always_the_same(seed: int, index: int) -> None:
    one = permuted(SQUARE, index + 1, seed)[index]
    again = permuted(SQUARE, 5000, seed)[index]
    assert one.name == f"permutation-{index}"
    assert one.train.pixels is not None
    assert again.train.pixels is not None
    assert sorted(one.train.pixels.tolist()) == list(range(16))
    assert torch.equal(one.train.pixels, again.train.pixels)
    assert one.test.pixels is one.train.pixels


def test_permutations_are_those_of_the_fixed_generator() -> None:
    """Models learned on a stream must meet the same tasks in ten years."""
    expected = philox.permutations(7, ["permutation/0", "permutation/1"], 16)
    for task, order in zip(permuted(SQUARE, 2, seed=7), expected):
        shown, labels = task.test.tensors()
        assert torch.equal(shown.flatten(1), SQUARE.test_images.flatten(1)[:, order])
        assert torch.equal(labels, SQUARE.test_labels)


def test_tasks_and_seeds_have_different_permutations() -> None:
    maps = [task.train.pixels for seed in (0, 1) for task in permuted(images(8, 8), 3, seed)]
    assert len({tuple(m.tolist()) for m in maps if m is not None}) == 6


def test_channels_are_permuted_alike() -> None:
    shown, _ = permuted(images(3, 2, 4), 1)[0].train.tensors()
    assert torch.equal(shown[:, 1], shown[:, 0] + 8)
    assert torch.equal(shown[:, 2], shown[:, 0] + 16)


def test_features_can_be_permuted() -> None:
    shown, _ = permuted(images(6), 1)[0].train.tensors()
    assert shown.shape == (20, 6)
    assert torch.equal(shown.sort(1).values, images(6).train_images)


def test_a_long_stream_holds_no_tasks_and_shares_the_images() -> None:
    stream = permuted(SQUARE, 2500)
    assert len(stream) == 2500
    assert stream[0].train.images is stream[2499].train.images is SQUARE.train_images
    assert stream[3] is not stream[3]


def test_rotations_are_named_by_their_angle_and_turn_anticlockwise() -> None:
    stream = rotated(SQUARE, tasks=5, step=90)
    assert names(stream) == ["rotation-0", "rotation-90", "rotation-180", "rotation-270", "rotation-360"]
    for turns, task in enumerate(stream):
        assert torch.equal(task.test.tensors()[0], torch.rot90(SQUARE.test_images, turns, (2, 3)))


def test_rotations_are_36_steps_of_10_degrees_unless_told() -> None:
    stream = rotated(SQUARE)
    assert len(stream) == 36
    assert (stream[0].name, stream[-1].name) == ("rotation-0", "rotation-350")


@pytest.mark.parametrize("step", [10, -10, 0.1, 2.5, 1e-7, 1 / 3])
def test_rotation_names_stay_unique_and_plain(step: float) -> None:
    found = names(rotated(images(2, 2), 400, step))
    assert len(set(found)) == 400
    assert found[0] == "rotation-0"
    assert not any("e" in name.removeprefix("rotation-").lower() for name in found)


@pytest.mark.parametrize("channels", [1, 3])
def test_corners_are_black_as_in_the_released_script_or_grey(channels: int) -> None:
    """Black is a pixel of 0, normalised like any other; grey corners, 0 afterwards, would tell the angle."""
    pixels = torch.full((2, channels, 8, 8), 200, dtype=torch.uint8)
    labels, gain, offset = torch.zeros(2).long(), torch.tensor(0.1), torch.tensor(-3.0)
    source = Source("bright", pixels, labels, pixels, labels, gain, offset, 1)
    black, grey = rotated(source, 2, 45)[1].train.tensors()[0], rotated(source, 2, 45, "grey")[1].train.tensors()[0]
    assert black[0, :, 0, 0].tolist() == [-3.0] * channels
    assert grey[0, :, 0, 0].tolist() == [0.0] * channels
    assert black[0, :, 4, 4].tolist() == grey[0, :, 4, 4].tolist() == [pytest.approx(17.0)] * channels
    with pytest.raises(SupSupError, match="unknown corners 'white'; known: black, grey"):
        rotated(source, 2, corners="white")  # type: ignore[arg-type]


def test_rotation_names_are_exact() -> None:
    assert names(rotated(SQUARE, 4, 0.1)) == ["rotation-0", "rotation-0.1", "rotation-0.2", "rotation-0.3"]


def test_beyond_a_full_turn_the_images_repeat() -> None:
    stream = rotated(images(8, 8), 40)
    assert stream[37].name == "rotation-370"
    assert torch.equal(stream[37].train.tensors()[0], stream[1].train.tensors()[0])


def test_split_takes_classes_in_order_and_renumbers_them() -> None:
    stream = split(SQUARE, 2)
    assert names(stream) == ["classes-0-1", "classes-2-3", "classes-4-5", "classes-6-7", "classes-8-9"]
    task = stream[2]
    shown, labels = task.train.tensors()
    assert task.classes == 2
    assert labels.tolist() == [0, 1, 0, 1]
    assert torch.equal(shown, SQUARE.train_images[[4, 5, 14, 15]])
    assert task.test.tensors()[1].tolist() == [0, 1]


@given(st.integers(0, 2**40), st.sampled_from([1, 2, 5, 10]))
def test_a_seeded_split_is_a_partition_and_always_the_same(seed: int, size: int) -> None:
    stream = split(SQUARE, size, seed=seed)
    assert names(stream) == names(split(SQUARE, size, seed=seed))
    assert sorted(int(c) for name in names(stream) for c in name.split("-")[1:]) == list(range(10))
    for task in stream:
        group = [int(c) for c in task.name.split("-")[1:]]
        assert task.train.rows is not None
        original = SQUARE.train_labels[task.train.rows]
        assert original.tolist() == [group[label] for label in task.train.labels.tolist()]
    assert sum(len(task.train) for task in stream) == 20


def test_seeds_split_differently() -> None:
    assert len({tuple(names(split(SQUARE, 2, seed=seed))) for seed in range(8)}) > 1


def test_split_keeps_the_first_tasks() -> None:
    assert names(split(SQUARE, 2, tasks=2)) == ["classes-0-1", "classes-2-3"]
    assert names(split(SQUARE, 2, seed=3, tasks=2)) == names(split(SQUARE, 2, seed=3))[:2]


@given(st.slices(7))
def test_slices_are_streams_of_the_same_tasks(cut: slice) -> None:
    stream = permuted(SQUARE, 7)
    part = stream[cut]
    assert isinstance(part, Stream)
    assert names(part) == [f"permutation-{i}" for i in range(7)[cut]]


def test_negative_positions_count_from_the_end() -> None:
    stream = permuted(SQUARE, 3)
    assert stream[-1].name == "permutation-2"
    assert stream[1:][-2].name == "permutation-1"
    assert names(stream) == names(stream[:])


@pytest.mark.parametrize("index", [3, -4])
def test_a_position_outside_the_stream(index: int) -> None:
    with pytest.raises(IndexError, match="stream permuted-numbers has 3 tasks; there is no task"):
        permuted(SQUARE, 3)[index]


def test_no_tasks_make_an_empty_stream() -> None:
    assert list(permuted(SQUARE, 0)) == list(rotated(SQUARE, 0)) == list(split(SQUARE, 2, tasks=0)) == []


def test_numpy_counts_are_counts() -> None:
    assert len(permuted(SQUARE, np.int64(3), seed=np.int64(1))) == 3  # type: ignore[arg-type]


def test_only_training_parts_are_augmented() -> None:
    source = replace(SQUARE, augmentation=Augmentation(1, True))
    for stream in (permuted(source, 1), rotated(source, 1), split(source, 2)):
        assert stream[0].train.augmentation is source.augmentation
        assert stream[0].test.augmentation is None


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (permuted, {"tasks": -1}, "tasks is -1; give a whole number, at least 0"),
        (permuted, {"tasks": 2.5}, "tasks is 2.5; give a whole number"),
        (permuted, {"tasks": 2, "seed": "a"}, "seed is 'a'; give a whole number"),
        (rotated, {"tasks": -1}, "tasks is -1"),
        (rotated, {"step": 0}, "step is 0; give the degrees"),
        (rotated, {"step": float("nan")}, "step is nan"),
        (rotated, {"source": images(6)}, "source numbers has 6 features and no height and width"),
        (split, {"classes_per_task": 3}, r"10 classes of numbers do not divide into tasks of 3; .* 1 or 2 or 5 or 10"),
        (split, {"classes_per_task": 0}, "do not divide into tasks of 0"),
        (split, {"classes_per_task": "2"}, "classes_per_task is '2'"),
        (split, {"classes_per_task": 2, "seed": 0.5}, "seed is 0.5"),
        (split, {"classes_per_task": 2, "tasks": 6}, "6 tasks were asked for, but 10 classes by 2 make only 5"),
        (split, {"classes_per_task": 2, "tasks": -1}, "tasks is -1"),
    ],
)
def test_errors_say_what_to_do(make: Callable[..., Stream], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SupSupError, match=message):
        make(**{"source": SQUARE, **arguments})


def test_a_stream_has_a_limit_and_says_little_of_itself() -> None:
    stream = permuted(SQUARE, 10**9)
    assert len(stream) == 10**9
    assert stream[10**9 - 1].name == "permutation-999999999"
    assert repr(stream) == "Stream(name='permuted-numbers', indices=range(0, 1000000000))"
    with pytest.raises(SupSupError, match="tasks"):
        permuted(SQUARE, 10**9 + 1)


def test_permutations_are_made_many_at_a_time_and_the_latest_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, each on its own, they would take several times as long."""
    asked: list[int] = []
    draw = philox.permutations

    def watched(seed: int, labels: list[str], count: int) -> torch.Tensor:
        asked.append(len(labels))
        return draw(seed, labels, count)

    monkeypatch.setattr(philox, "permutations", watched)
    stream = permuted(SQUARE, 200)
    for index in (*range(128), 5, 100, 63, 64):
        assert stream[index].name == f"permutation-{index}"
    assert asked == [64, 64]
    assert stream[199].name == "permutation-199"
    assert stream[100].name == "permutation-100"
    assert asked == [64, 64, 64]
