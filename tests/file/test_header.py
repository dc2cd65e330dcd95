"""The header: other networks are refused, and settings of later versions are explained."""

import pytest
import torch

from supsup import SupSupError, UnitRecipe, nets
from supsup.file.header import (
    build_header,
    check_network,
    explain_unknown_settings,
    network_from_header,
)
from supsup.masks.frozen import FrozenNet


def test_another_network_is_refused() -> None:
    net = FrozenNet(nets.FullyConnected((20, 10, 4)), 0, torch.device("cpu"))
    other = FrozenNet(nets.FullyConnected((20, 10, 4)), 1, torch.device("cpu"))
    header = build_header(net, recipe={}, inference={}, allocation={}, image_shape=None, notes={}, created="now")
    check_network(net, header)
    with pytest.raises(SupSupError, match="checksum"):
        check_network(other, header)
    assert header.learned_shape is None
    assert isinstance(network_from_header(header), nets.FullyConnected)


def test_settings_of_a_later_version_are_named() -> None:
    for error in (TypeError("no such field"), KeyError("rule")):
        with pytest.raises(SupSupError, match="not known to this version"), explain_unknown_settings():
            raise error


def test_settings_of_a_stranger_do_not_speak_to_the_terminal() -> None:
    with pytest.raises(SupSupError, match="not known to this version") as refused, explain_unknown_settings():
        UnitRecipe(**{"\x1b[2J": 1})
    assert "\x1b" not in str(refused.value)
