"""Images and arrays of strangers: made into the model's shape, or refused with a reason, whatever they are."""

from __future__ import annotations

import base64
import io
import zlib
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from starlette.exceptions import HTTPException

from supsup.data.decode import decode_image as folder_decoded
from supsup.serve.requests import ImageFile, class_from_path, decode_images, image_from_base64, to_array


def file(mode: str = "RGB", size: tuple[int, int] = (8, 8), form: str = "PNG") -> ImageFile:
    content = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3)).astype(np.uint8)
    Image.fromarray(pixels).convert(mode).save(content, form)
    return ImageFile(content.getvalue(), f"a {form}")


def bomb(side: int) -> bytes:
    """A small PNG that says it is side × side pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")

    header = side.to_bytes(4, "big") * 2 + b"\1\0\0\0\0"
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 8, 8), (8, 8), (64,), (192,), (3, 4, 6), (1, 16, 16), None])
@pytest.mark.parametrize(("mode", "form"), [("RGB", "PNG"), ("L", "PNG"), ("P", "GIF"), ("RGB", "JPEG"), ("1", "BMP")])
def test_every_image_gets_the_models_shape(shape: tuple[int, ...] | None, mode: str, form: str) -> None:
    found = decode_images([file(mode, form=form), file(mode, form=form)], shape, 1000)
    assert found.dtype == np.uint8
    assert found.shape == (2, *(((1, 8, 8) if mode in ("L", "1") else (3, 8, 8)) if shape is None else shape))


def test_an_image_is_seen_as_in_a_folder_of_images(tmp_path: Any) -> None:
    """What was learned from files and what is uploaded must be the same pixels."""
    for size in ((8, 8), (31, 20)):
        picture = file(size=size)
        (tmp_path / "a.png").write_bytes(picture.content)
        assert np.array_equal(decode_images([picture], (3, 8, 8), 1000)[0], folder_decoded(str(tmp_path / "a.png"), 8))


@pytest.mark.parametrize(
    ("content", "status", "reason"),
    [
        (b"", 400, "cannot be read as an image"),
        (b"GIF89a", 400, "cannot be read as an image"),
        (b"<svg onload=alert(1)>", 400, "cannot be read as an image"),
        (file().content[:60], 400, "cannot be read as an image"),
        (file("L", (200, 100)).content, 413, "more than 10,000 pixels"),
        (bomb(10_000), 413, "more than 10,000 pixels"),
        (bomb(10_500), 413, "more than 10,000 pixels"),  # of which Pillow warns
        (bomb(60_000), 413, "more than 10,000 pixels"),  # which Pillow refuses itself
        (file("RGB", (8, 8), "PDF").content, 400, "cannot be read as an image"),  # nothing that Pillow runs others for
    ],
)
def test_a_bad_image_is_refused(content: bytes, status: int, reason: str) -> None:
    with pytest.raises(HTTPException, match=reason) as refused:
        decode_images([ImageFile(content, "it")], (1, 8, 8), 10_000)
    assert refused.value.status_code == status


@given(st.binary(max_size=200), st.integers(0, 70))
def test_no_damage_to_an_image_gives_anything_but_pixels_or_a_refusal(noise: bytes, start: int) -> None:
    whole = file("L").content
    damaged = ImageFile(whole[:start] + noise + whole[start + len(noise) :])
    with suppress(HTTPException):
        assert decode_images([damaged], (1, 8, 8), 1000).shape == (1, 1, 8, 8)


def test_inputs_that_are_no_images_and_none_at_all_are_refused() -> None:
    for shape in ((7,), (2, 8, 8), (1, 1, 1, 8)):
        with pytest.raises(HTTPException, match="send JSON with arrays"):
            decode_images([file()], shape, 1000)
    with pytest.raises(HTTPException, match="contains no image"):
        decode_images([], (1, 8, 8), 1000)
    with pytest.raises(HTTPException, match="images of one size"):
        decode_images([file(), file(size=(9, 8))], None, 1000)


def test_arrays_and_base64() -> None:
    assert to_array([[1, 2], [3, 4]], (2, 1)).shape == (2, 2, 1)
    assert to_array([[[0.5], [1]]], None).dtype.kind == "f"
    wrong: list[object] = [[], [1], "text", [["a"]], [[1], [1, 2]], [[True]], None, {"a": 1}, [[10**400]], [[[]]]]
    for values in wrong:
        with pytest.raises(HTTPException):
            to_array(values, None)
    with pytest.raises(HTTPException, match=r"the model expects \(3,\)"):
        to_array([[1, 2]], (3,))
    text = base64.b64encode(b"abc").decode()
    assert (
        image_from_base64(text, "it").content
        == image_from_base64(f"data:image/png;base64,{text}", "it").content
        == b"abc"
    )
    for no_text in ("@", "YWJ", 7, None):
        with pytest.raises(HTTPException):
            image_from_base64(no_text, "it")


def test_the_class_of_a_file_is_its_folder() -> None:
    assert (
        class_from_path("birds/robin/1.JPG")
        == class_from_path("robin/1.png")
        == class_from_path("C:\\birds\\robin\\1.png")
        == "robin"
    )
    assert class_from_path("birds/robin/.DS_Store") is None
    assert class_from_path("birds/notes.txt") is None
    assert class_from_path("birds/robin/.1.png") is None
    for name in ("1.png", "/1.png", "../../1.png", "./1.png"):
        with pytest.raises(HTTPException, match="has no class"):
            class_from_path(name)
