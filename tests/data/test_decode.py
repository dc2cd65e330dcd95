"""Whatever kind of image a file holds, its pixels come out as RGB, the same here and in a worker process."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from supsup.data.decode import Unreadable, decode_image, image_size, serve_requests

COLOURS = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)


def saved(path: Path, image: Image.Image, **options: Any) -> str:
    image.save(path, **options)
    return str(path)


def test_pixels_are_channels_first(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.png", Image.fromarray(COLOURS))
    assert image_size(path) == (8, 6)
    assert np.array_equal(decode_image(path), COLOURS.transpose(2, 0, 1))


@pytest.mark.parametrize("mode", ["L", "1", "P", "RGBA", "LA"])
def test_other_modes_become_rgb(tmp_path: Path, mode: str) -> None:
    image = Image.fromarray(COLOURS).convert(mode)
    expected = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(decode_image(saved(tmp_path / "a.png", image)), expected)


def test_cmyk_becomes_rgb(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.tif", Image.fromarray(COLOURS).convert("CMYK"))
    assert np.array_equal(decode_image(path), COLOURS.transpose(2, 0, 1))


def test_a_palette_with_transparency_gives_no_warning(tmp_path: Path) -> None:
    image = Image.fromarray(COLOURS).convert("P")
    assert decode_image(saved(tmp_path / "a.png", image, transparency=bytes([0, 128, 255]))).shape == (3, 6, 8)


def test_16_bit_grey_keeps_its_upper_bits(tmp_path: Path) -> None:
    grey = np.arange(48, dtype=np.uint16).reshape(6, 8) * 1000
    pixels = decode_image(saved(tmp_path / "a.png", Image.fromarray(grey)))
    assert np.array_equal(pixels[1], grey >> 8)


def test_32_bit_pixels_are_refused_rather_than_guessed(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.tif", Image.fromarray(np.ones((2, 2), np.float32)))
    with pytest.raises(Unreadable, match=r"a\.tif .*its pixels have 32 bits; convert it to 8"):
        decode_image(path)


@pytest.mark.parametrize(("width", "height"), [(8, 6), (6, 8), (100, 10), (3, 3), (37, 37)])
def test_any_image_comes_to_the_size_asked_for(tmp_path: Path, width: int, height: int) -> None:
    path = saved(tmp_path / "a.png", Image.fromarray(COLOURS).resize((width, height)))
    assert decode_image(path, 32).shape == (3, 32, 32)


def test_the_middle_of_a_test_image_is_kept(tmp_path: Path) -> None:
    """Resize 256 and CenterCrop 224, as on ImageNet: of 512 × 1024 pixels, rows 288 … 736 of columns 32 … 480."""
    grey = np.zeros((1024, 512), np.uint8)
    grey[288:736, 32:480] = 255
    path = saved(tmp_path / "a.png", Image.fromarray(grey))
    shown = decode_image(path, 224)
    assert shown[:, 1:-1, 1:-1].min() == 255
    grey[:288], grey[736:], grey[:, :32], grey[:, 480:] = 255, 255, 255, 255
    grey[288:736, 32:480] = 0
    assert decode_image(saved(tmp_path / "b.png", Image.fromarray(grey)), 224)[:, 1:-1, 1:-1].max() == 0


def test_an_image_of_the_right_size_is_left_alone(tmp_path: Path) -> None:
    square = COLOURS[:6, :6]
    assert np.array_equal(
        decode_image(saved(tmp_path / "a.png", Image.fromarray(square)), 6), square.transpose(2, 0, 1)
    )


def test_a_box_is_cut_out_and_mirrored(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.png", Image.fromarray(COLOURS))
    cut = COLOURS[1:5, 2:6].transpose(2, 0, 1)
    assert np.array_equal(decode_image(path, 4, (2, 1, 4, 4, 0)), cut)
    assert np.array_equal(decode_image(path, 4, (2, 1, 4, 4, 1)), cut[:, :, ::-1])
    assert decode_image(path, 4, (0, 0, 8, 2, 0)).shape == (3, 4, 4)


@pytest.mark.parametrize("content", [b"", b"no image", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0"])
def test_what_is_no_image_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(content)
    for read in (image_size, decode_image):
        with pytest.raises(Unreadable, match=r"a\.jpg \("):
            read(str(path))


def test_a_cut_image_has_a_size_but_cannot_be_decoded(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:5000])
    assert image_size(str(path)) == (64, 64)
    with pytest.raises(Unreadable, match=r"a\.png \(.*truncated"):
        decode_image(str(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match=r"a\.png \(No such file or directory\)"):
        decode_image(str(tmp_path / "a.png"))


def test_a_worker_answers_with_all_pixels_or_the_name_of_a_bad_file(tmp_path: Path) -> None:
    good, bad = saved(tmp_path / "a.png", Image.fromarray(COLOURS)), str(tmp_path / "b.png")
    requests = [[[good, None], [good, [0, 0, 6, 6, 1]]], [[good, None], [bad, None]], [[good, None]]]
    lines = b"".join(json.dumps({"size": 6, "images": images}).encode() + b"\n" for images in requests)
    answers = io.BytesIO()
    serve_requests(io.BytesIO(lines), answers)
    whole = struct.pack("<I", 0) + decode_image(good, 6).tobytes()
    message = f"{bad} (No such file or directory)".encode()
    expected = whole + decode_image(good, 6, (0, 0, 6, 6, 1)).tobytes()
    expected += struct.pack("<I", len(message)) + message + whole
    assert answers.getvalue() == expected
