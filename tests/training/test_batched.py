"""Training by hand against training by autograd: the same masks."""

import pytest
import torch

from supsup import Recipe, nets
from supsup.bank import pack_columns
from supsup.data import Stream
from supsup.frozen import FrozenNet
from supsup.training import train_mask, train_masks


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(steps=200),
        Recipe("adam", 1e-3, steps=60, weight_decay=1e-4),
        Recipe("sgd", 2.0, steps=20, momentum=0.9),
    ],
)
def test_the_masks_agree_with_the_plain_path(stream: Stream, recipe: Recipe) -> None:
    """At least 99.9 % of the bits; what differs is rounding."""
    net = FrozenNet(nets.lenet_300_100(outputs=50), 0, torch.device("cpu"))
    (_, packed, _, _), *_ = train_masks(net, stream[:1], recipe)
    plain = train_mask(net, stream[0].name, stream[0].train, recipe).mask()
    start = train_mask(net, stream[0].name, stream[0].train, Recipe("sgd", 1e-30, steps=1)).mask()
    differing, moved = ((pack_columns(one(m)) ^ packed) for m in (plain, start))
    bits = sum(weight.numel() for weight in net.weights.values())
    assert count(differing) <= 0.001 * bits
    assert count(moved) > 0.01 * bits, "the recipe must change the mask for this test to mean anything"


def one(mask: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: bits[None] for name, bits in mask.items()}


def count(packed: torch.Tensor) -> int:
    return int(sum(((packed >> bit) & 1).sum() for bit in range(8)))
