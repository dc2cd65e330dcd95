"""The one-pass query against autograd row by row."""

import pytest
import torch
from torch import Tensor, nn

from supsup.frozen import FrozenNet
from supsup.nets import FullyConnected
from supsup.query import Goal, any_query, fully_connected_query, linear_query, query
from supsup.search import Outer

H = Goal("H", 0)


def dense(rows: Tensor | Outer) -> Tensor:
    return rows.dense() if isinstance(rows, Outer) else rows


def means(net: FrozenNet) -> dict[str, Tensor]:
    return {name: torch.rand(shape) for name, shape in net.shapes.items()}


@pytest.mark.parametrize("images", [1, 5])
def test_one_pass_equals_row_by_row_even_with_in_place_activations(images: int) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 7), nn.ReLU(inplace=True), nn.Linear(7, 5)
    )
    net = FrozenNet(module, 0, torch.device("cpu"))
    x, superposed, layers = torch.randn(3, images, 6), means(net), list(net.weights)
    fast, plain = linear_query(net, x, superposed, H, layers), any_query(net, x, superposed, H, layers)
    assert fast is not None
    for name in layers:
        assert torch.allclose(dense(fast[name]), dense(plain[name]), atol=1e-6)


class TwiceThrough(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(self.layer(x).relu())
        return out


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x.view(-1, 2, 2)).mean(1)
        return out


@pytest.mark.parametrize("module", [TwiceThrough(), Tokens()])
def test_layers_that_are_no_plain_product_fall_back(module: nn.Module) -> None:
    """A layer used twice, or on several vectors per image, must not get half a gradient."""
    torch.manual_seed(0)
    net = FrozenNet(module, 0, torch.device("cpu"))
    x, superposed = torch.randn(2, 3, 4), means(net)
    assert linear_query(net, x, superposed, H, ["layer.weight"]) is None
    found = dense(query(net, x, superposed, H, ["layer.weight"])["layer.weight"])
    assert torch.equal(found, dense(any_query(net, x, superposed, H, ["layer.weight"])["layer.weight"]))


def test_convolutions() -> None:
    torch.manual_seed(0)
    net = FrozenNet(nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(12, 5)), 0, torch.device("cpu"))
    x, superposed = torch.randn(2, 3, 1, 4, 4), means(net)
    found = query(net, x, superposed, H, list(net.weights))
    assert {name: q.shape for name, q in found.items()} == {"0.weight": (2, 3, 1, 3, 3), "2.weight": (2, 5, 12)}


@pytest.mark.parametrize("images", [1, 5])
@pytest.mark.parametrize("objective", ["H", "G", "M"])
@pytest.mark.parametrize("chosen", [[0], [2], [0, 2], [0, 1, 2]])
def test_by_hand_equals_autograd(images: int, objective: str, chosen: list[int]) -> None:
    torch.manual_seed(0)
    net = FrozenNet(FullyConnected((6, 8, 7, 5)), 0, torch.device("cpu"))
    x, superposed, layers = torch.randn(3, images, 6), means(net), [list(net.weights)[i] for i in chosen]
    goal = Goal(objective, 2)
    fast, plain = (f(net, x, superposed, goal, layers) for f in (fully_connected_query, any_query))
    assert list(fast) == layers
    for name in layers:
        assert torch.allclose(dense(fast[name]), dense(plain[name]), atol=1e-6)
