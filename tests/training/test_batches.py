"""Which images a batch holds, in which order, and how a feed brings them to a device."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from supsup import data
from supsup.data import Augmentation, Stream
from supsup.training import executors as feeding
from supsup.training.executors import Feed, batch_positions, can_feed, feature_map
from supsup.training.fast.batched import gather


def colour() -> data.Source:
    torch.manual_seed(0)
    x = torch.randint(256, (60, 3, 4, 5), dtype=torch.uint8)
    return data.arrays(x[:50], torch.arange(50) % 6, x[50:], torch.arange(10) % 6)


@pytest.mark.parametrize(
    "tasks",
    [
        data.permuted(data.digits(), 3),
        data.rotated(data.digits(), 3),
        data.split(data.digits(), 5),
        data.permuted(colour(), 3),
        data.rotated(colour(), 2, step=45),
        data.split(colour(), 2, seed=1),
    ],
    ids=["permuted", "rotated", "split", "permuted colour", "rotated colour", "split colour"],
)
def test_the_feed_gives_the_batches_of_the_plain_path(tasks: Stream) -> None:
    feed = Feed.empty(tasks[0].train, len(tasks), 7 * 16, mapped=True)
    feed.fill(list(tasks), 3, 16)
    plain = [batch_positions(3, task.name, len(task.train), 16, 7) for task in tasks]
    features = math.prod(tasks[0].train.shape)
    x, y = torch.empty(len(tasks), 16, features), torch.empty(len(tasks), 16).int()
    for step in range(7):
        feed.step.fill_(step)
        gather(feed, x, y)
        for i, task in enumerate(tasks):
            images, labels = task.train.batch(next(plain[i]))
            assert torch.allclose(x[i], images.flatten(1), atol=1e-6)
            assert torch.equal(y[i].long(), labels)


@pytest.mark.parametrize("kind", ["split", "augmented", "rotated"])
def test_a_lone_task_is_fed_the_batches_of_the_plain_path(kind: str) -> None:
    """What is captured on a GPU must see the images that autograd sees, cropped, mirrored, turned and normalised."""
    task = (data.rotated(colour(), 2, step=45) if kind == "rotated" else data.split(colour(), 2, seed=1))[1]
    part = replace(task.train, augmentation=Augmentation(padding=2, flip=True)) if kind == "augmented" else task.train
    task = replace(task, train=part)
    feed = Feed.empty(part, 1, 5 * 8, mapped=part.pixels is not None)
    feed.fill([task], seed=3, batch_size=8, offset=5)
    order = batch_positions(3, task.name, len(part), 8, 5)
    for x, y in part.training_batches(order, 3, task.name):
        images, labels = feed.batch(0, 8)
        feed.step += 1
        assert torch.allclose(images, x, atol=1e-5)
        assert torch.equal(labels, y + 5)


def test_frames_too_wide_for_a_feed_are_left_to_the_plain_path() -> None:
    part = data.split(colour(), 2)[0].train
    assert can_feed(replace(part, augmentation=Augmentation(padding=127)))
    assert not can_feed(replace(part, augmentation=Augmentation(padding=128)))


def test_a_feed_is_filled_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded memory, and the same batches; also where tasks take the places of others in it."""
    part = replace(data.split(colour(), 3)[0].train, augmentation=Augmentation(padding=2, flip=True))
    tasks = [data.Task(f"t{number}", part, part, 3) for number in range(4)]
    whole, pieces, single = (Feed.empty(part, 4, 5 * 8, mapped=False) for _ in range(3))
    whole.fill(tasks, 3, 8, offset=2)
    monkeypatch.setattr(feeding, "_POSITIONS", 2 * 40 + 1)
    monkeypatch.setattr(feeding, "_CROPS", 2 * 8 * 4)
    pieces.step.fill_(4)
    pieces.fill(tasks, 3, 8, offset=2)
    for index in (2, 0, 3, 1):
        single.fill([tasks[index]], 3, 8, [index], offset=2)
    assert whole.crops is not None
    assert int(pieces.step) == 0
    for other in (pieces, single):
        assert other.crops is not None
        for name in ("rows", "labels", "crops"):
            assert torch.equal(getattr(other, name), getattr(whole, name)), name
    assert whole.labels.min() == 2
    assert whole.crops.unique().numel() > 20


def test_the_map_of_features_is_the_same_for_every_channel() -> None:
    part = data.permuted(colour(), 1)[0].train
    pixels = part.pixels
    assert pixels is not None
    expected = torch.cat([pixels, pixels + 20, pixels + 40])
    assert torch.equal(feature_map(part), expected.int())
    assert torch.equal(feature_map(replace(part, pixels=None)), torch.arange(60).int())
    grey = replace(part, pixels=torch.where(pixels == 3, -1, pixels))
    assert (feature_map(grey) == -1).sum() == 3


@given(st.integers(0, 100), st.integers(1, 40), st.integers(1, 50), st.integers(1, 12))
def test_every_image_comes_once_an_epoch_and_batches_are_full(seed: int, images: int, size: int, steps: int) -> None:
    batches = list(batch_positions(seed, "task", images, size, steps))
    assert [len(batch) for batch in batches] == [size] * steps
    drawn = torch.cat(batches)
    for start in range(0, len(drawn) - images + 1, images):
        assert torch.equal(drawn[start : start + images].sort().values, torch.arange(images))


def test_the_order_belongs_to_the_task_and_the_seed() -> None:
    first = next(batch_positions(0, "a", 1000, 100, 1))
    assert torch.equal(first, next(batch_positions(0, "a", 1000, 100, 5)))
    assert not torch.equal(first, next(batch_positions(0, "b", 1000, 100, 1)))
    assert not torch.equal(first, next(batch_positions(1, "a", 1000, 100, 1)))
