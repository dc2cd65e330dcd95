"""Many files read at once come back in order, and all the bad ones are reported together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from supsup.data.folder import available_cores, decode_files, image_sizes
from supsup.runtime.errors import SupSupError


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    """Forty images, each of one grey."""
    for grey in range(40):
        Image.new("L", (4 + grey, 3), grey).save(tmp_path / f"{grey:02}.png")
    return [str(path) for path in sorted(tmp_path.iterdir())]


def test_sizes_are_in_the_order_of_the_files(paths: list[str]) -> None:
    assert image_sizes(paths).tolist() == [[4 + grey, 3] for grey in range(40)]


def test_images_are_in_the_order_of_the_files(paths: list[str]) -> None:
    images = decode_files(paths, 6, 6, 6)
    assert images.shape == (40, 3, 6, 6)
    assert images.dtype == torch.uint8
    assert images.amin((1, 2, 3)).tolist() == images.amax((1, 2, 3)).tolist() == list(range(40))


def test_images_of_another_size_than_promised_are_named(paths: list[str]) -> None:
    with pytest.raises(SupSupError, match=r"39 files cannot be read .*01\.png \(5×3 pixels, not 4×3\).* and 36 more"):
        decode_files(paths, 3, 4)


def test_all_bad_files_are_counted_and_the_first_named(paths: list[str]) -> None:
    for place in (3, 20, 21, 39):
        Path(paths[place]).write_bytes(b"damaged")
    for read in (image_sizes, lambda some: decode_files(some, 6, 6, 6)):
        with pytest.raises(
            SupSupError, match=r"^4 files .*03\.png .*20\.png .*21\.png .* and 1 more; replace or remove"
        ):
            read(paths)


def test_there_is_at_least_one_core() -> None:
    assert available_cores() >= 1


def test_an_interruption_does_not_wait_for_the_rest(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def interrupted(path: str) -> tuple[int, int]:
        looked.append(path)
        raise KeyboardInterrupt

    monkeypatch.setattr("supsup.data.decode.image_size", interrupted)
    with pytest.raises(KeyboardInterrupt):
        image_sizes(paths * 1000)
    assert len(looked) < 40_000 // 16


def test_pixels_survive_the_way(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert np.array_equal(decode_files([str(tmp_path / "a.png")], 5, 7)[0].numpy(), pixels.transpose(2, 0, 1))
