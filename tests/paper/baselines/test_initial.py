"""Starting weights: spread as their names say, and the same for a seed."""

import math

import pytest
import torch
from torch import nn

from supsup.masks import philox
from supsup_paper.baselines import initial


@pytest.mark.parametrize(
    ("filling", "deviation"),
    [
        ("kaiming_normal", math.sqrt(2 / 200)),
        ("xavier_normal", math.sqrt(2 / 300)),
        ("kaiming_uniform", math.sqrt(1 / 200 / 3)),
    ],
)
def test_the_spread_is_that_of_torch(filling: initial.Filling, deviation: float) -> None:
    net = nn.Sequential(nn.Linear(200, 100), nn.LayerNorm(100))
    made = initial.initial_weights(net, 0, filling, torch.device("cpu"))
    assert float(made["0.weight"].std()) == pytest.approx(deviation, rel=0.02)
    assert abs(float(made["0.weight"].mean())) < 0.05 * deviation
    assert not made["0.bias"].any()
    assert torch.equal(made["1.weight"], torch.ones(100)), "what is not a layer stays as it was built"
    assert torch.equal(made["0.weight"], initial.initial_weights(net, 0, filling, torch.device("cpu"))["0.weight"])
    assert not torch.equal(made["0.weight"], initial.initial_weights(net, 1, filling, torch.device("cpu"))["0.weight"])


def test_normal_numbers_are_normal() -> None:
    drawn = initial.normal(3, ["a", "b"], 100_001)
    assert drawn.shape == (2, 100_001)
    for power, expected in ((1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0)):
        assert float((drawn.double() ** power).mean()) == pytest.approx(expected, abs=0.05)
    assert abs(float((drawn[0] * drawn[1]).mean())) < 0.02


def test_numbers_are_fixed_for_good() -> None:
    """By Box and Muller's formula, the radius from the first half of the words and the angle from the second."""
    words = philox.words(3, ["a", "b"], 6).double()
    uniform = (words + 0.5) / 2**32
    radius, angle = (-2 * uniform[:, :3].log()).sqrt(), 2 * math.pi * uniform[:, 3:]
    expected = torch.cat([radius * angle.cos(), radius * angle.sin()], 1).float()
    assert torch.equal(initial.normal(3, ["a", "b"], 5), expected[:, :5])
    assert torch.equal(initial.normal(3, ["a", "b"], 6), expected)


def test_layers_are_filled_biases_are_zero_and_the_rest_is_left() -> None:
    norm = nn.BatchNorm2d(8)
    nn.init.constant_(norm.weight, 7.0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.Flatten(), nn.Linear(8, 4), nn.Linear(4, 2))
    found = initial.initial_weights(net, 5, "kaiming_normal", torch.device("cpu"), head="kaiming_uniform")
    assert list(found) == [name for name, _ in net.named_parameters()]
    normal = initial.normal(5, ["initial/0.weight"], 216).view(8, 3, 3, 3)
    torch.testing.assert_close(found["0.weight"], normal * math.sqrt(2 / 27))
    assert torch.equal(found["4.weight"], philox.uniform(5, ["initial/4.weight"], 8, 0.5).view(2, 4))
    assert not torch.equal(found["3.weight"], philox.uniform(5, ["initial/3.weight"], 32, 8**-0.5).view(4, 8))
    assert not any(found[f"{layer}.bias"].any() for layer in (0, 3, 4))
    assert torch.equal(found["1.weight"], torch.full((8,), 7.0))
    xavier = initial.initial_weights(net, 5, "xavier_normal", torch.device("cpu"))["0.weight"]
    torch.testing.assert_close(xavier, normal * math.sqrt(2 / (27 + 72)))
