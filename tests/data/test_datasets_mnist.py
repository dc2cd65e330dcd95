"""The real MNIST reads as published; files that are not MNIST are refused."""

from __future__ import annotations

import gzip
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from supsup.data import Part, Source, datasets, fashion_mnist, mnist
from supsup.data.datasets import CIFAR100, Archive
from supsup.runtime.errors import SupSupError

DATA = Path(os.environ.get("SUPSUP_DATA") or Path(__file__).parents[3] / "shared" / "data")


@pytest.fixture(scope="module")
def real() -> Source:
    if not (DATA / "mnist").is_dir():
        pytest.skip("no local MNIST; set SUPSUP_DATA to a folder that holds mnist/")
    return mnist(DATA)


def header(*shape: int) -> bytes:
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape)


@pytest.fixture
def blank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Unzipped files of the right form, all zeros, that no checksum is known of."""
    for name in ("MNIST", "FASHION_MNIST"):
        archive: Archive = getattr(datasets, name)
        unknown = {file: (md5, None) for file, (md5, _) in archive.checksums.items()}
        monkeypatch.setattr(datasets, name, replace(archive, checksums=unknown))
    return zeros(tmp_path)


def zeros(tmp_path: Path) -> Path:
    for half, count in (("train", 60_000), ("t10k", 10_000)):
        (tmp_path / f"{half}-images-idx3-ubyte").write_bytes(header(count, 28, 28) + bytes(count * 784))
        (tmp_path / f"{half}-labels-idx1-ubyte").write_bytes(header(count) + bytes(count))
    return tmp_path


def test_mnist_is_what_was_published(real: Source) -> None:
    assert real.name == "mnist"
    assert real.train_images.shape == (60_000, 1, 28, 28)
    assert real.test_images.shape == (10_000, 1, 28, 28)
    assert real.train_labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert real.test_labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert real.classes == 10


def test_mnist_is_normalised_as_in_the_paper(real: Source) -> None:
    images, _ = Part(real.train_images, real.train_labels, real.gain, real.offset).batch(torch.arange(1000))
    expected = (real.train_images[:1000] / 255 - 0.1307) / 0.3081
    assert torch.allclose(images, expected, atol=1e-6)
    assert real.train_images.double().mean() * real.gain + real.offset == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize(("load", "name"), [(mnist, "mnist"), (fashion_mnist, "fashion-mnist")])
def test_unzipped_files_are_read(blank: Path, load: Callable[[Path], Source], name: str) -> None:
    source = load(blank)
    assert source.name == name
    assert (len(source.train_labels), len(source.test_labels)) == (60_000, 10_000)


@pytest.mark.parametrize("load", [mnist, fashion_mnist])
def test_unzipped_files_are_checked_too(tmp_path: Path, load: Callable[[Path], Source]) -> None:
    """Files of the right form that somebody has changed would be trained on without a word."""
    with pytest.raises(SupSupError, match="train-images-idx3-ubyte is damaged or another file: its MD5 is a6da0260"):
        load(zeros(tmp_path))


def test_the_real_files_unzipped_are_taken(real: Source, tmp_path: Path) -> None:
    for path in (DATA / "mnist").glob("*.gz"):
        (tmp_path / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    assert torch.equal(mnist(tmp_path).test_labels, real.test_labels)


@pytest.mark.parametrize("archive", [datasets.MNIST, datasets.FASHION_MNIST, CIFAR100])
def test_nothing_is_fetched_in_the_open(archive: Archive) -> None:
    assert all(mirror.startswith("https://") for mirror in archive.mirrors)


def test_mnist_files_are_not_taken_for_fashion_mnist(real: Source) -> None:
    with pytest.raises(SupSupError, match="its MD5 is f68b3c2dcbeaaa9fbdd348bbdeb94873, not 8d4fb7e6"):
        fashion_mnist(DATA / "mnist")
