"""What is read from an idx file is what was written, and a damaged file is never read as if it were whole."""

from __future__ import annotations

import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from supsup.data.datasets import parse_idx
from supsup.runtime.errors import SupSupError


def written(tensor: Tensor) -> bytes:
    return struct.pack(f">BBBB{tensor.dim()}I", 0, 0, 8, tensor.dim(), *tensor.shape) + tensor.numpy().tobytes()


tensors = st.lists(st.integers(0, 5), min_size=1, max_size=4).map(
    lambda shape: torch.randint(0, 256, shape, dtype=torch.uint8)
)


@given(tensors)
def test_round_trip(tensor: Tensor) -> None:
    read = parse_idx(written(tensor), "file")
    assert read.dtype == torch.uint8
    assert read.shape == tensor.shape
    assert torch.equal(read, tensor)


@given(tensors, st.data())
def test_any_missing_end_is_noticed(tensor: Tensor, data: st.DataObject) -> None:
    content = written(tensor)
    length = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(SupSupError, match=r"file is (cut short|not an idx file)"):
        parse_idx(content[:length], "file")


@given(tensors, st.binary(min_size=1, max_size=9))
def test_anything_after_the_end_is_noticed(tensor: Tensor, rest: bytes) -> None:
    with pytest.raises(SupSupError, match="goes on after its end"):
        parse_idx(written(tensor) + rest, "file")


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b\x08\x00", b"<html>", b"\0\0\x08\0"])
def test_foreign_files_are_refused(content: bytes) -> None:
    with pytest.raises(SupSupError, match="file is not an idx file"):
        parse_idx(content, "file")


def test_idx_files_of_floats_are_refused_by_their_type() -> None:
    with pytest.raises(SupSupError, match="type 0x0d; only unsigned bytes"):
        parse_idx(struct.pack(">BBBBIf", 0, 0, 0x0D, 1, 1, 0.5), "file")
