"""CIFAR-100 must read the same from every form it may lie in, and nothing else may pass for it."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from supsup.data import Source, cifar100, datasets, split
from supsup.runtime.errors import SupSupError

DATA = Path(os.environ.get("SUPSUP_DATA") or Path(__file__).parents[3] / "shared" / "data")
COUNTS = {"train": 200, "test": 100}
Array = np.ndarray[Any, np.dtype[np.uint8]]


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two training images and one test image of each class; no folder and no cache but those a test makes."""
    monkeypatch.setitem(datasets.CIFAR100_COUNTS, "train", COUNTS["train"])
    monkeypatch.setitem(datasets.CIFAR100_COUNTS, "test", COUNTS["test"])
    monkeypatch.delenv("SUPSUP_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets, "CIFAR100", replace(datasets.CIFAR100, mirrors=("http://127.0.0.1:9",)))


def half(name: str) -> tuple[Array, Array]:
    """Images [n, 3, 32, 32] and labels, the classes in turn."""
    count = COUNTS[name]
    generator = np.random.default_rng(count)
    return generator.integers(0, 256, (count, 3, 32, 32), np.uint8), (np.arange(count) % 100).astype(np.uint8)


def records(name: str) -> bytes:
    images, labels = half(name)
    return np.hstack([labels[:, None] // 5, labels[:, None], images.reshape(len(images), -1)]).tobytes()


def binary(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in COUNTS:
        (folder / f"{name}.bin").write_bytes(records(name))


def tarball(files: dict[str, bytes]) -> bytes:
    stored = io.BytesIO()
    with tarfile.open(fileobj=stored, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return gzip.compress(stored.getvalue(), mtime=0)


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, bytes], None]:
    """Put an archive into a folder and make it the published one."""

    def put(folder: Path, stored: bytes) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / datasets.TARBALL).write_bytes(stored)
        checksums = {datasets.TARBALL: (hashlib.md5(stored).hexdigest(), None)}
        monkeypatch.setattr(datasets, "CIFAR100", replace(datasets.CIFAR100, checksums=checksums))

    return put


WHOLE = {"cifar-100-binary/fine_label_names.txt": b"apple\n"} | {
    f"cifar-100-binary/{name}.bin": records(name) for name in COUNTS
}


def npz(folder: Path, channels_last: bool = True, **changes: Any) -> None:
    arrays: dict[str, Any] = {"classes": np.array(["apple"])}
    for name in COUNTS:
        images, labels = half(name)
        arrays |= {f"{name}_x": images.transpose(0, 2, 3, 1) if channels_last else images, f"{name}_y": labels}
    arrays |= changes
    np.savez(folder / "cifar100.npz", **{name: array for name, array in arrays.items() if array is not None})


def check(source: Source) -> None:
    """Every image under its label, class by class."""
    assert source.name == "cifar100"
    assert source.classes == 100
    assert source.shape == (3, 32, 32)
    for name, images, labels in (
        ("train", source.train_images, source.train_labels),
        ("test", source.test_images, source.test_labels),
    ):
        x, y = half(name)
        order = y.argsort(kind="stable")
        assert np.array_equal(images.numpy(), x[order])
        assert np.array_equal(labels.numpy(), y[order])


@pytest.mark.parametrize("inner", ["", "cifar100", "cifar-100-binary", "cifar100/cifar-100-binary"])
def test_binary_files_are_read(tmp_path: Path, inner: str) -> None:
    binary(tmp_path / inner)
    check(cifar100(tmp_path))


@pytest.mark.parametrize("inner", ["", "cifar100"])
def test_the_published_archive_is_read(tmp_path: Path, inner: str, publish: Callable[[Path, bytes], None]) -> None:
    publish(tmp_path / inner, tarball(WHOLE))
    check(cifar100(tmp_path))
    assert [path.name for path in (tmp_path / inner).iterdir()] == [datasets.TARBALL], "nothing is unpacked to disk"


@pytest.mark.parametrize("channels_last", [True, False])
def test_an_npz_is_read(tmp_path: Path, channels_last: bool) -> None:
    npz(tmp_path, channels_last)
    check(cifar100(tmp_path))


def test_the_variable_then_the_cache_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary(tmp_path / "cache" / "supsup" / "cifar100")
    check(cifar100())
    monkeypatch.setenv("SUPSUP_DATA", str(tmp_path))
    check(cifar100())
    npz(tmp_path / "cache" / "supsup" / "cifar100")
    (tmp_path / "cifar100").mkdir()
    (tmp_path / "cifar100" / "cifar100.npz").write_bytes(b"not one")
    with pytest.raises(SupSupError, match=r"cifar100\.npz cannot be read"):
        cifar100()


def test_without_a_network_the_error_says_what_to_put_where() -> None:
    with pytest.raises(SupSupError, match=r"(?s)127\.0\.0\.1:9/cifar-100-binary\.tar\.gz: .*Put cifar-100-binary"):
        cifar100()


def test_a_folder_without_it_says_what_to_put_there(tmp_path: Path) -> None:
    with pytest.raises(SupSupError, match=r"CIFAR-100 not found in .*; put cifar-100-binary\.tar\.gz there"):
        cifar100(tmp_path)


@pytest.mark.parametrize("name", ["cifar-100-python.tar.gz", "cifar-100-python/train", "meta"])
def test_pickles_are_refused_and_the_right_archive_named(tmp_path: Path, name: str) -> None:
    """Reading a pickle can run anything."""
    names = ("meta", "train", "test") if name == "meta" else (name,)
    for one in names:
        (tmp_path / one).parent.mkdir(exist_ok=True)
        (tmp_path / one).write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(SupSupError, match=r"holds Python pickles.*; put cifar-100-binary\.tar\.gz .*there"):
        cifar100(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda stored: stored[:-1], "train.bin is cut short: 614,799 bytes read, 200 images have 614,800; get it"),
        (lambda stored: stored + b"\0", "train.bin goes on after its end"),
        (lambda stored: b"\0\x64" + stored[2:], "train.bin has labels from 0 to 100, but there are 100 classes"),
        (lambda stored: b"", "train.bin is cut short: 0 bytes"),
    ],
)
def test_damaged_binary_files_are_named(tmp_path: Path, change: Callable[[bytes], bytes], message: str) -> None:
    binary(tmp_path)
    (tmp_path / "train.bin").write_bytes(change(records("train")))
    with pytest.raises(SupSupError, match=message):
        cifar100(tmp_path)


def test_one_half_alone_is_an_error(tmp_path: Path) -> None:
    binary(tmp_path)
    (tmp_path / "test.bin").unlink()
    with pytest.raises(SupSupError, match=r"test\.bin is missing beside the other half"):
        cifar100(tmp_path)


def test_an_archive_with_another_checksum_is_refused(tmp_path: Path) -> None:
    (tmp_path / datasets.TARBALL).write_bytes(tarball(WHOLE))
    with pytest.raises(
        SupSupError, match=r"is damaged or another file: its MD5 is .*, not 03b5dce01913d631647c71ecec9e"
    ):
        cifar100(tmp_path)


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (tarball({"cifar-100-binary/train.bin": records("train")}), "has no file cifar-100-binary/test.bin"),
        (tarball({**WHOLE, "cifar-100-binary/test.bin": b"short"}), r"test\.bin in .* is cut short: 5 bytes"),
        (
            gzip.compress(gzip.decompress(tarball(WHOLE))[:100_000], mtime=0),
            "cifar-100-binary.tar.gz is damaged|is cut short",
        ),
        (gzip.compress(b"no archive", mtime=0), "is damaged"),
        (tarball(WHOLE)[:5000], "is damaged"),
    ],
)
def test_damaged_archives_are_named(
    tmp_path: Path, publish: Callable[[Path, bytes], None], stored: bytes, message: str
) -> None:
    publish(tmp_path, stored)
    with pytest.raises(SupSupError, match=message):
        cifar100(tmp_path)


def test_links_in_an_archive_are_not_followed(tmp_path: Path, publish: Callable[[Path, bytes], None]) -> None:
    stored = io.BytesIO()
    with tarfile.open(fileobj=stored, mode="w:gz") as archive:
        entry = tarfile.TarInfo("cifar-100-binary/train.bin")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(entry)
    publish(tmp_path, stored.getvalue())
    with pytest.raises(SupSupError, match=r"has no file cifar-100-binary/train.bin"):
        cifar100(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_y": None}, "test_y is not a file in the archive"),
        ({"test_y": np.array([object()] * 100)}, "Object arrays cannot be loaded"),
        ({"test_x": np.zeros((7, 32, 32, 3), np.uint8)}, r"test in .* holds images \[7, 3, 32, 32\] uint8"),
        ({"train_x": np.zeros((200, 3, 32, 32), np.float32)}, r"train in .* holds images .* float32"),
        ({"train_y": np.full(200, 0.5)}, r"labels \[200\] float64"),
        ({"train_y": np.full(200, 100)}, "has labels from 100 to 100"),
    ],
)
def test_an_npz_of_something_else_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    npz(tmp_path, **changes)
    with pytest.raises(SupSupError, match=message):
        cifar100(tmp_path)


def mosaics(folder: Path, classes: int = 100, size: tuple[int, int] = (960, 640)) -> None:
    for label in range(classes):
        Image.new("RGB", size, (label, 0, 255)).save(folder / f"{label:03}-thing.webp", lossless=True, method=0)


def test_missing_and_damaged_mosaics_are_named(tmp_path: Path) -> None:
    mosaics(tmp_path, 98)
    with pytest.raises(SupSupError, match="lacks the mosaics 098, 099 of 100"):
        cifar100(tmp_path)
    mosaics(tmp_path, 100)
    (tmp_path / "007-thing.webp").write_bytes(b"RIFF nothing")
    Image.new("RGB", (32, 64)).save(tmp_path / "070-thing.webp", lossless=True)
    with pytest.raises(SupSupError, match=r"2 files cannot be read .*007-thing\.webp .*070-thing\.webp \(32×64 pixels"):
        cifar100(tmp_path)


def test_mosaics_without_pillow_say_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mosaics(tmp_path, 100, (32, 32))
    monkeypatch.setattr("supsup.data.folder.find_spec", lambda name: None)
    with pytest.raises(SupSupError, match=r"Pillow, which is not installed: pip install 'supsup\[images\]'"):
        cifar100(tmp_path)


@pytest.fixture(scope="module")
def real(shared_data: Path) -> Source:
    if not (DATA / "cifar100").is_dir():
        pytest.skip("no local CIFAR-100; set SUPSUP_DATA to a folder that holds cifar100/")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(datasets.CIFAR100_COUNTS, "train", 50_000)
        patch.setitem(datasets.CIFAR100_COUNTS, "test", 10_000)
        return cifar100(DATA)


def test_the_mosaics_are_the_real_cifar_100(real: Source) -> None:
    assert real.train_images.shape == (50_000, 3, 32, 32)
    assert real.test_images.shape == (10_000, 3, 32, 32)
    values = torch.arange(256) / 255
    for channel, mean, std in zip(range(3), (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)):
        shares = real.train_images[:, channel].flatten().bincount(minlength=256) / (50_000 * 32 * 32)
        average = float((shares * values).sum())
        assert average == pytest.approx(mean, abs=1e-4)
        assert float((shares * (values - average) ** 2).sum()) ** 0.5 == pytest.approx(std, abs=1e-4)
    assert real.train_labels.bincount().tolist() == [500] * 100
    assert real.test_labels.bincount().tolist() == [100] * 100


def test_tiles_of_a_mosaic_are_read_row_by_row(real: Source) -> None:
    (path,) = (DATA / "cifar100").glob("042-*.webp")
    with Image.open(path) as mosaic:
        for tile, shown in ((31, real.train_images[42 * 500 + 31]), (599, real.test_images[42 * 100 + 99])):
            top, left = 32 * (tile // 30), 32 * (tile % 30)
            expected = np.asarray(mosaic.crop((left, top, left + 32, top + 32)).convert("RGB"))
            assert np.array_equal(shown.numpy(), expected.transpose(2, 0, 1))


def test_split_cifar_100_is_that_of_the_paper(real: Source) -> None:
    """20 five-way tasks of 2,500 + 500 images, normalised, cropped from a frame of 4 pixels and flipped in training."""
    stream = split(real, 5, seed=0)
    task = stream[0]
    assert (len(stream), len(task.train), len(task.test), task.classes) == (20, 2500, 500, 5)
    assert task.train.augmentation is not None
    assert (task.train.augmentation.padding, task.train.augmentation.flip) == (4, True)
    images, _ = task.test.tensors()
    assert task.test.rows is not None
    mean, std = torch.tensor([0.491, 0.482, 0.447]), torch.tensor([0.247, 0.243, 0.262])
    expected = (real.test_images[task.test.rows] / 255 - mean[:, None, None]) / std[:, None, None]
    assert torch.allclose(images, expected, atol=1e-5)
