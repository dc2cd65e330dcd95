"""A user's folder of images must become the source it looks like, and whatever is wrong with it must be named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from supsup import Recipe, SupSup
from supsup.data import Augmentation, Source, image_folder, permuted, split
from supsup.data.decode import decode_image
from supsup.data.folder import StreamedSource
from supsup.runtime.errors import SupSupError


def put(path: Path, width: int = 8, height: int = 8, red: int | None = None) -> Path:
    """An image of random pixels, or all of one red."""
    path.parent.mkdir(parents=True, exist_ok=True)
    seed = sum(str(path.name).encode())
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    if red is not None:
        pixels[:] = (red, 0, 255 - red)
    Image.fromarray(pixels).save(path)
    return path


def fill(root: Path, classes: str = "abc", images: int = 10, **options: Any) -> Path:
    for label, name in enumerate(classes):
        for place in range(images):
            put(root / name / f"{place:02}.png", red=20 * label + place, **options)
    return root


def reds(source: Source) -> tuple[list[int], list[int]]:
    """What tells the images of `fill` apart, of the training and of the test images."""
    train, test = source.train_images[:, 0, 0, 0].tolist(), source.test_images[:, 0, 0, 0].tolist()
    return train, test


def test_train_and_test_folders_are_taken_as_they_are(tmp_path: Path) -> None:
    fill(tmp_path / "train", images=3)
    fill(tmp_path / "test", images=2)
    source = image_folder(tmp_path)
    assert reds(source) == ([0, 1, 2, 20, 21, 22, 40, 41, 42], [0, 1, 20, 21, 40, 41])
    assert source.train_labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert source.test_labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert (source.classes, source.shape, source.name) == (3, (3, 8, 8), tmp_path.name)


def test_val_does_for_test(tmp_path: Path) -> None:
    fill(tmp_path / "train", images=3)
    fill(tmp_path / "val", images=2)
    assert len(image_folder(tmp_path, name="mine").test_images) == 6


def test_one_folder_is_divided_by_the_seed(tmp_path: Path) -> None:
    fill(tmp_path)
    train, test = reds(image_folder(tmp_path))
    assert sorted(train + test) == [20 * label + place for label in range(3) for place in range(10)]
    assert [red // 20 for red in test] == [0, 0, 1, 1, 2, 2]
    assert reds(image_folder(tmp_path)) == (train, test)
    assert reds(image_folder(tmp_path, seed=1)) != (train, test)
    assert len(image_folder(tmp_path, test_share=0.5).test_images) == 15
    assert len(image_folder(tmp_path, test_share=0.001).test_images) == 3
    assert len(image_folder(tmp_path, test_share=0.999).train_images) == 3


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    for name in ("train", "plane"):
        put(tmp_path / name / "0.png")
        put(tmp_path / name / "1.png")
    assert image_folder(tmp_path).classes == 2


def test_other_files_and_hidden_ones_are_left_out(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "README.md").write_text("about")
    (tmp_path / "a" / "notes.txt").write_text("about")
    (tmp_path / "a" / "._00.png").write_bytes(b"not an image")
    (tmp_path / ".cache").mkdir()
    put(tmp_path / "a" / ".checkpoints" / "00-copy.png")
    put(tmp_path / "b" / "deeper" / "99.PNG", red=39)
    source = image_folder(tmp_path)
    assert len(source.train_images) + len(source.test_images) == 31


def test_images_in_memory_are_normalised_and_augmented(tmp_path: Path) -> None:
    for label in "ab":
        for place in range(6):
            put(tmp_path / label / f"{place}.png", 16, 16)
    source = image_folder(tmp_path)
    assert source.train_images.dtype == torch.uint8
    assert source.augmentation == Augmentation(padding=2, flip=True)
    assert image_folder(tmp_path, flip=False).augmentation == Augmentation(padding=2)
    assert image_folder(tmp_path, augment=False).augmentation is None
    images, _ = source.part("train", source.train_labels).tensors()
    assert images.mean((0, 2, 3)).tolist() == pytest.approx([0, 0, 0], abs=1e-5)
    assert images.std((0, 2, 3), correction=0).tolist() == pytest.approx([1, 1, 1], abs=1e-5)
    known = image_folder(tmp_path, normalisation="imagenet")
    expected = (source.train_images / 255 - torch.tensor([0.485, 0.456, 0.406])[:, None, None]) / torch.tensor(
        [0.229, 0.224, 0.225]
    )[:, None, None]
    assert torch.allclose(known.part("train", known.train_labels).tensors()[0], expected, atol=1e-5)


@pytest.mark.parametrize("stream", [False, True])
def test_size_brings_all_to_one(tmp_path: Path, stream: bool) -> None:
    fill(tmp_path, "a", 5)
    fill(tmp_path, "b", 5, width=20, height=11)
    source = image_folder(tmp_path, size=12, stream=stream, augment=False, workers=1)
    assert source.shape == (3, 12, 12)
    images, labels = source.part("test", source.test_labels).tensors()
    assert labels.tolist() == [0, 1]
    raw = (images - source.offset[:, None, None]) / source.gain[:, None, None]
    paths = [tmp_path / "a" / f"{place:02}.png" for place in range(5)]
    assert any(np.allclose(raw[0].numpy(), decode_image(str(path), 12), atol=1e-2) for path in paths)


def test_images_of_one_size_need_not_be_square(tmp_path: Path) -> None:
    fill(tmp_path, width=10, height=6)
    assert image_folder(tmp_path).shape == (3, 6, 10)


def test_many_images_are_read_while_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    assert not isinstance(image_folder(tmp_path, size=8), StreamedSource)
    monkeypatch.setattr("supsup.data.folder.MEMORY_LIMIT", 30 * 3 * 8 * 8 - 1)
    assert isinstance(image_folder(tmp_path, size=8), StreamedSource)
    assert not isinstance(image_folder(tmp_path, size=8, stream=False), StreamedSource)
    with pytest.raises(SupSupError, match="give size=224"):
        image_folder(tmp_path)


@pytest.mark.parametrize("stream", [False, True])
def test_from_a_folder_to_answers(tmp_path: Path, stream: bool) -> None:
    """Red against blue, and green against grey: two tasks that a small network must learn from their files."""
    colours = {"blue": (0, 0, 200), "red": (200, 0, 0), "u-green": (0, 200, 0), "v-grey": (120, 120, 120)}
    generator = np.random.default_rng(0)
    for name, colour in colours.items():
        (tmp_path / name).mkdir()
        for place in range(20):
            noise = generator.integers(0, 40, (20, 24, 3))
            Image.fromarray((np.array(colour) + noise).astype(np.uint8)).save(tmp_path / name / f"{place}.jpg")
    stream_of_tasks = split(image_folder(tmp_path, size=16, stream=stream, workers=1), 2)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=4, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(256, 2, bias=False)
    )
    model = SupSup(net, recipe=Recipe(steps=30, batch_size=16), device="cpu")
    model.learn_many(stream_of_tasks)
    for task in stream_of_tasks:
        images, labels = task.test.tensors()
        assert torch.equal(model.predict(images, task=task.name).labels, labels)


def test_a_folder_in_memory_can_be_permuted(tmp_path: Path) -> None:
    task = permuted(image_folder(fill(tmp_path)), 1)[0]
    assert task.train.tensors()[0].shape == (24, 3, 8, 8)


def test_mixed_sizes_are_shown(tmp_path: Path) -> None:
    put(tmp_path / "a" / "0.png", 32, 32)
    put(tmp_path / "a" / "1.png", 32, 32)
    put(tmp_path / "b" / "2.png", 48, 40)
    put(tmp_path / "b" / "3.png", 48, 40)
    with pytest.raises(SupSupError, match=r"sizes 32×32 \(.*a/.\.png\) and 48×40 \(.*b/.\.png\); give size=…"):
        image_folder(tmp_path)


@pytest.mark.parametrize("stream", [False, True])
def test_files_that_are_no_images_are_named(tmp_path: Path, stream: bool) -> None:
    fill(tmp_path)
    (tmp_path / "b" / "04.png").write_bytes(b"damaged")
    (tmp_path / "c" / "05.png").write_bytes(b"")
    with pytest.raises(SupSupError, match=r"2 files cannot be read as images: .*(b/04|c/05).*(b/04|c/05)"):
        image_folder(tmp_path, size=8, stream=stream)


def test_cut_files_are_found_when_everything_is_decoded(tmp_path: Path) -> None:
    fill(tmp_path)
    put(tmp_path / "a" / "03.png", 64, 64)
    path = tmp_path / "a" / "03.png"
    path.write_bytes(path.read_bytes()[:4000])
    with pytest.raises(SupSupError, match=r"1 file cannot be read as images: .*a/03\.png \(.*truncated"):
        image_folder(tmp_path, size=8)


def folders(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).mkdir(parents=True)
    return root


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda root: root.rmdir(), "is not a folder; give one that holds a folder of images for each class"),
        (lambda root: put(root / "0.png"), "holds no folders; make one for each class"),
        (lambda root: (fill(root), folders(root, "d")), r"/d holds no images \(\.bmp .*add some or remove"),
        (lambda root: (fill(root), folders(root, "d", "e")), r"\(1 more are empty\)"),
        (lambda root: (fill(root), put(root / "d" / "0.png")), r"class d has 1 image \(.*0\.png\); give 2 or more"),
        (lambda root: fill(root / "train"), "has train/ but neither test/ nor val/; add one, or give .*/train to have"),
        (lambda root: (fill(root / "train"), fill(root / "test", "abcd")), "/train has no folder for d; train/ and"),
        (lambda root: (fill(root / "train"), fill(root / "val", "ac")), "/val has no folder for b; train/ and val/"),
    ],
)
def test_folders_that_cannot_be_meant(tmp_path: Path, prepare: Any, message: str) -> None:
    root = tmp_path / "images"
    root.mkdir()
    prepare(root)
    with pytest.raises(SupSupError, match=message):
        image_folder(root)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size is 0; give a whole number, at least 1"),
        ({"test_share": 1.0}, "test_share is 1.0; give a number, above 0 and below 1"),
        ({"normalisation": "mean"}, "unknown normalisation 'mean'; known: measured, imagenet"),
        ({"workers": 0}, "workers is 0; give a whole number, at least 1"),
    ],
)
def test_options_that_cannot_be_meant(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SupSupError, match=message):
        image_folder(tmp_path, **options)


def test_without_pillow_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supsup.data.folder.find_spec", lambda name: None)
    with pytest.raises(SupSupError, match=r"image files are read with Pillow, .*pip install 'supsup\[images\]'"):
        image_folder(tmp_path)
