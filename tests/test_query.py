"""The one-pass query against autograd row by row."""

import pytest
import torch
from torch import Tensor, nn

from supsup.frozen import FrozenNet
from supsup.nets import FullyConnected
from supsup.query import Goal, any_query, fully_connected_query, linear_query, query, vectorised_query
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


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, 8, 2, 2)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(self.embed(x).flatten(2).transpose(1, 2)).mean(1))
        return out


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.Conv2d(6, 4, 2), nn.Flatten(), nn.Linear(4, 5)
    )


@pytest.mark.parametrize("module", [convolutional(), Attention()])
@pytest.mark.parametrize("objective", ["H", "G", "M"])
@pytest.mark.parametrize("images", [1, 5])
def test_several_rows_at_a_time_equal_row_by_row(
    module: nn.Module, objective: str, images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr("supsup.query._SIDE_BY_SIDE", 10)
    net = FrozenNet(module, 0, torch.device("cpu"))
    x, goal = torch.randn(7, images, 1, 4, 4), Goal(objective, 2)
    superposed = means(net) | {name: value + torch.rand_like(value) for name, value in net.statistics.items()}
    for layers in (list(net.weights), list(net.weights)[:1]):
        fast, plain = (f(net, x, superposed, goal, layers) for f in (vectorised_query, any_query))
        assert list(fast) == layers
        for name in layers:
            assert torch.allclose(dense(fast[name]), dense(plain[name]), rtol=1e-4, atol=1e-6), name


class Undecided(nn.Module):
    """What follows depends on the numbers, which nothing that is done for several rows at a time can look at."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 5, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x).flatten(1)
        return y if float(y.sum()) > 0 else 2 * y


def test_a_module_that_looks_at_its_numbers_goes_row_by_row() -> None:
    torch.manual_seed(0)
    net = FrozenNet(Undecided(), 0, torch.device("cpu"))
    x, superposed = torch.randn(6, 2, 1, 4, 4), means(net)
    found, plain = (f(net, x, superposed, H, ["layer.weight"])["layer.weight"] for f in (query, any_query))
    assert torch.equal(dense(found), dense(plain))


def test_linear_layers_beside_normalisation() -> None:
    """Statistics are superposed with the masks but no gradient goes to them."""
    torch.manual_seed(0)
    net = FrozenNet(
        nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5)), 0, torch.device("cpu")
    )
    x, layers = torch.randn(4, 3, 6), list(net.weights)
    superposed = means(net) | {name: value + torch.rand_like(value) for name, value in net.statistics.items()}
    fast, plain = linear_query(net, x, superposed, H, layers), any_query(net, x, superposed, H, layers)
    assert fast is not None
    assert all(torch.allclose(dense(fast[name]), dense(plain[name]), atol=1e-6) for name in layers)
    assert not any(superposed[name].requires_grad for name in superposed)


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
