"""The paper's fully connected networks."""

import pytest
import torch

from supsup import SupSupError, nets


def test_shapes_and_no_biases() -> None:
    assert [tuple(p.shape) for p in nets.lenet_300_100(outputs=500).parameters()] == [
        (300, 784),
        (100, 300),
        (500, 100),
    ]
    assert [tuple(p.shape) for p in nets.fc_1024(outputs=7).parameters()] == [(1024, 784), (1024, 1024), (7, 1024)]
    assert nets.fc_1024(7)(torch.zeros(3, 1, 28, 28)).shape == (3, 7)


def test_widths_that_make_no_network() -> None:
    with pytest.raises(SupSupError, match="widths"):
        nets.FullyConnected((784,))
