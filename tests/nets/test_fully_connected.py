"""The paper's fully connected networks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from supsup import SupSupError, nets
from supsup.nets.fully_connected import unmodified_layers


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


def _bias(net: Any) -> None:
    net.layers[0].bias = nn.Parameter(torch.ones(7))


def _hook(net: Any) -> None:
    net.layers[1].register_forward_hook(lambda module, inputs, output: 2 * output)


def _outer_hook(net: Any) -> None:
    net.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))


def _norm(net: Any) -> None:
    weight_norm(net.layers[0])


def _other_layer(net: Any) -> None:
    net.layers[0] = nn.Sequential(nn.Linear(5, 7, bias=False), nn.Dropout())


def _forward(net: Any) -> None:
    net.forward = lambda x: x


def _one_more(net: Any) -> None:
    net.layers.append(nn.Linear(3, 3, bias=False))


def test_layers_that_can_be_computed_by_hand_are_given_and_anything_added_is_noticed() -> None:
    """Without it a fast path would leave out what somebody added to the network, and say nothing."""
    net = nets.FullyConnected((5, 7, 3))
    assert unmodified_layers(net) == list(net.layers)
    changes: tuple[Callable[[Any], None], ...]
    changes = (_bias, _hook, _outer_hook, _norm, _other_layer, _forward, _one_more)
    for change in changes:
        changed = nets.FullyConnected((5, 7, 3))
        change(changed)
        assert unmodified_layers(changed) is None, change.__name__
    assert unmodified_layers(nn.Linear(5, 3)) is None
