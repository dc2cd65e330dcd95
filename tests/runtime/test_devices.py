"""One copy per device, and no copy that outlives its original."""

from __future__ import annotations

import gc

import torch

from supsup.runtime import devices as device_copies

ELSEWHERE = torch.device("meta")


def test_a_tensor_already_there_is_not_copied() -> None:
    tensor = torch.zeros(3)
    assert device_copies.on_device(tensor, torch.device("cpu")) is tensor


def test_the_same_tensor_is_copied_once() -> None:
    """Otherwise 2,500 tasks would fill a GPU with 2,500 copies of MNIST."""
    tensor = torch.zeros(3)
    copy = device_copies.on_device(tensor, ELSEWHERE)
    assert copy.device == ELSEWHERE
    assert device_copies.on_device(tensor, ELSEWHERE) is copy


def test_the_copy_goes_with_its_original() -> None:
    """Otherwise every data set ever used would stay on the GPU."""
    before = len(device_copies._copies)
    tensor = torch.zeros(3)
    device_copies.on_device(tensor, ELSEWHERE)
    assert len(device_copies._copies) == before + 1
    del tensor
    gc.collect()
    assert len(device_copies._copies) == before
