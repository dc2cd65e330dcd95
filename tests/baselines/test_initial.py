"""Starting weights: spread as their names say, and the same for a seed."""

import math

import pytest
import torch
from torch import nn

from supsup.baselines import initial


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
    made = initial.weights(net, 0, filling, torch.device("cpu"))
    assert float(made["0.weight"].std()) == pytest.approx(deviation, rel=0.02)
    assert abs(float(made["0.weight"].mean())) < 0.05 * deviation
    assert not made["0.bias"].any()
    assert torch.equal(made["1.weight"], torch.ones(100)), "what is not a layer stays as it was built"
    assert torch.equal(made["0.weight"], initial.weights(net, 0, filling, torch.device("cpu"))["0.weight"])
    assert not torch.equal(made["0.weight"], initial.weights(net, 1, filling, torch.device("cpu"))["0.weight"])


def test_normal_numbers_are_normal() -> None:
    drawn = initial.normal(3, ["a", "b"], 100_001)
    assert drawn.shape == (2, 100_001)
    for power, expected in ((1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0)):
        assert float((drawn.double() ** power).mean()) == pytest.approx(expected, abs=0.05)
    assert abs(float((drawn[0] * drawn[1]).mean())) < 0.02
