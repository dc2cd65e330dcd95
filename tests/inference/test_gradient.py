"""Every way to a query against autograd row by row, and which of them a network is given."""

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from supsup import nets
from supsup.inference.gradient import (
    _VECTORISED,
    ONE_IMAGE_KERNELS,
    Goal,
    any_query,
    can_be_captured,
    fully_connected_query,
    kernel_query,
    linear_query,
    query,
    query_functions,
    vectorised_query,
)
from supsup.inference.search import dense
from supsup.masks.frozen import FrozenNet
from supsup.nets import FullyConnected
from supsup.runtime.errors import SupSupError

H = Goal("H", 0)


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
    result = dense(query(net, x, superposed, H, ["layer.weight"])["layer.weight"])
    torch.testing.assert_close(result, dense(any_query(net, x, superposed, H, ["layer.weight"])["layer.weight"]))


def test_convolutions() -> None:
    torch.manual_seed(0)
    net = FrozenNet(nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(12, 5)), 0, torch.device("cpu"))
    x, superposed = torch.randn(2, 3, 1, 4, 4), means(net)
    result = query(net, x, superposed, H, list(net.weights))
    assert {name: q.shape for name, q in result.items()} == {"0.weight": (2, 3, 1, 3, 3), "2.weight": (2, 5, 12)}


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
    monkeypatch.setattr("supsup.inference.gradient._VECTORISED_IMAGES", 10)
    net = FrozenNet(module, 0, torch.device("cpu"))
    x, goal = torch.randn(7, images, 1, 4, 4), Goal(objective, 2)
    superposed = means(net) | {name: value + torch.rand_like(value) for name, value in net.statistics.items()}
    for layers in (list(net.weights), list(net.weights)[:1]):
        fast, plain = (f(net, x, superposed, goal, layers) for f in (vectorised_query, any_query))
        assert fast is not None
        assert plain is not None
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
        return y if float(y.detach().sum()) > 0 else 2 * y


def test_a_module_that_looks_at_its_numbers_goes_row_by_row() -> None:
    torch.manual_seed(0)
    net = FrozenNet(Undecided(), 0, torch.device("cpu"))
    x, superposed, layers = torch.randn(6, 2, 1, 4, 4), means(net), ["layer.weight"]
    plain = dense(any_query(net, x, superposed, H, layers)["layer.weight"])
    first = vectorised_query(net, x, superposed, H, layers)
    assert first is not None
    assert torch.equal(dense(first["layer.weight"]), plain)
    assert vectorised_query(net, x, superposed, H, layers) is None, "it is not tried again"
    assert torch.equal(dense(query(net, x, superposed, H, layers)["layer.weight"]), plain)


class Recurrent(nn.Module):
    """torch says "output with shape … doesn't match the broadcast shape" where it cannot vectorise a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.gru = nn.Conv2d(1, 5, 4), nn.GRU(5, 5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.gru(self.layer(x).flatten(1)[:, None])[0][:, 0]
        return out


def test_an_error_that_only_vectorising_has_is_not_the_user_s() -> None:
    torch.manual_seed(0)
    net = FrozenNet(Recurrent(), 0, torch.device("cpu"))
    x, superposed = torch.randn(6, 2, 1, 4, 4), means(net)
    result, plain = (f(net, x, superposed, H, ["layer.weight"])["layer.weight"] for f in (query, any_query))
    assert torch.equal(dense(result), dense(plain))


class Failing(nn.Module):
    """Raises an error while there is one."""

    error: Exception | None = None

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.runs = nn.Conv2d(1, 5, 4), 0

    def forward(self, x: Tensor) -> Tensor:
        if Failing.error is not None:
            raise Failing.error
        out: Tensor = self.layer(x).flatten(1)
        return out


@pytest.mark.parametrize("learned", [False, True], ids=["first query", "later query"])
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        RecursionError("maximum recursion depth exceeded"),
    ],
    ids=lambda error: f"{type(error).__name__} {str(error)[:11]}",
)
def test_no_other_error_is_hidden_and_the_fast_way_is_taken_again(
    error: Exception, learned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Quietly going row by row would hide that memory is short, and one bad batch would make every later query slow."""
    net = FrozenNet(Failing(), 0, torch.device("cpu"))
    x, superposed, layers = torch.randn(6, 2, 1, 4, 4), means(net), ["layer.weight"]
    if learned:
        query(net, x, superposed, H, layers)
    monkeypatch.setattr(Failing, "error", error)
    with pytest.raises(type(error), match=str(error)[:11].replace("[", r"\[")):
        query(net, x, superposed, H, layers)
    monkeypatch.setattr(Failing, "error", None)
    assert _VECTORISED[net].get(tuple(layers)) == ("always" if learned else None)
    query(net, x, superposed, H, layers)
    assert _VECTORISED[net][tuple(layers)] == "always"


def test_out_of_memory_only_while_vectorising_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows at a time need more memory than one: row by row would work, and be slow without a word."""

    def no_memory(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    net = FrozenNet(convolutional(), 0, torch.device("cpu"))
    monkeypatch.setattr("supsup.inference.gradient.vmap", no_memory)
    with pytest.raises(torch.OutOfMemoryError):
        query(net, torch.randn(6, 1, 1, 4, 4), means(net) | net.statistics, H, list(net.weights))


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


class Doubling(nn.Linear):
    """A linear layer that computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def _bias(module: Any) -> None:
    module.layers[0].bias = nn.Parameter(torch.linspace(-3, 3, 7))


def _hook(module: Any) -> None:
    module.layers[0].register_forward_hook(lambda layer, inputs, output: 2 * output)


def _other_forward(module: Any) -> None:
    module.layers[0] = Doubling(6, 7, bias=False)


def _first_activation(module: Any) -> None:
    module.layers[1].register_forward_pre_hook(lambda layer, inputs: (inputs[0].sin(),))


def _untouched(module: Any) -> None:
    pass


@pytest.mark.parametrize("change", [_untouched, _bias, _hook, _other_forward, _first_activation])
@pytest.mark.parametrize("images", [1, 3])
def test_what_a_module_holds_decides_and_not_its_class(change: Callable[[Any], None], images: int) -> None:
    """A bias that a fast way ignores makes every answer about the task a guess, and nothing says so."""
    torch.manual_seed(0)
    module = FullyConnected((6, 7, 5))
    change(module)
    net = FrozenNet(module, 0, torch.device("cpu"), pretrained=True)
    x, layers = torch.randn(4, images, 6), list(net.weights)
    superposed = means(net)
    taken, plain = (f(net, x, superposed, H, layers) for f in (query, any_query))
    for name in layers:
        assert torch.allclose(dense(taken[name]), dense(plain[name]), rtol=1e-4, atol=1e-6), name


def first_way(module: nn.Module, x: Tensor) -> object:
    net = FrozenNet(module, 0, torch.device("cpu"))
    return next(query_functions(net, x, list(net.weights)))


def test_which_way_is_tried_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A way that is no longer taken would be slow and right: no other test would see it."""
    linear, x = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 5)), torch.zeros(3, 1, 1, 4, 4)
    biased = FullyConnected((6, 7, 5))
    _bias(biased)
    assert first_way(FullyConnected((6, 7, 5)), x) == fully_connected_query
    monkeypatch.setitem(ONE_IMAGE_KERNELS, "cpu", lambda *_: pytest.fail("nothing is run here"))
    assert first_way(FullyConnected((6, 7, 5)), x[:1]) == kernel_query
    assert first_way(FullyConnected((6, 7, 5)), x[:1].expand(1, 2, 1, 4, 4)) == fully_connected_query
    monkeypatch.delitem(ONE_IMAGE_KERNELS, "cpu")
    assert first_way(FullyConnected((6, 7, 5)), x[:1]) == fully_connected_query
    assert first_way(biased, x) == first_way(linear, x) == linear_query
    assert first_way(convolutional(), x) == vectorised_query
    assert first_way(convolutional(), x[:1]) == first_way(convolutional(), x.expand(3, 100, 1, 4, 4)) == any_query


def test_what_can_be_captured_in_a_graph() -> None:
    """Capturing a module that reads a number back fails; one with a hook would call it once and never again."""
    sizes = (6, 7, 5)
    biased, hooked = FullyConnected(sizes), FullyConnected(sizes)
    _bias(biased)
    _hook(hooked)
    residual = nets.ResNet(2, (1, 1), (8, 16), channels=1)
    safe = [FullyConnected(sizes), biased, residual, convolutional(), nets.hop_mlp(5), nn.Linear(6, 5)]
    unknown = [hooked, Undecided(), Attention(), TwiceThrough(), nn.Sequential(nn.Linear(6, 7), Doubling(7, 5))]
    for module in safe:
        assert can_be_captured(FrozenNet(module, 0, torch.device("cpu"))), module
    for module in unknown:
        assert not can_be_captured(FrozenNet(module, 0, torch.device("cpu"))), module


@pytest.fixture(params=["triton", "numba"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels of each library, on a CPU."""
    pytest.importorskip(request.param)
    found = importlib.import_module(f"supsup.kernels.{request.param}_search")
    monkeypatch.setitem(ONE_IMAGE_KERNELS, "cpu", getattr(found, f"{request.param}_lone_query"))


@pytest.mark.parametrize("goal", [Goal("H", 3), Goal("G", 3)], ids=lambda goal: goal.objective)
@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.usefixtures("kernels")
def test_kernels_for_one_image_against_autograd(goal: Goal, first: int) -> None:
    """Sizes that fill no tile, over all layers and over the later ones alone."""
    torch.manual_seed(first)
    net = FrozenNet(FullyConnected((300, 21, 130, 7)), 0, torch.device("cpu"))
    x, superposed, layers = torch.randn(1, 1, 300), means(net), list(net.weights)[first:]
    fast, plain = (f(net, x, superposed, goal, layers) for f in (kernel_query, any_query))
    assert fast is not None
    assert plain is not None
    assert list(fast) == layers
    for name in layers:
        scale = float(dense(plain[name]).abs().max())
        assert torch.allclose(dense(fast[name]), dense(plain[name]), atol=1e-4 * scale)


@pytest.mark.usefixtures("kernels")
def test_what_kernels_for_one_image_do_not_know() -> None:
    """M goes another way, and G says what it needs before anything is launched."""
    net = FrozenNet(FullyConnected((4, 3)), 0, torch.device("cpu"))
    x, superposed = torch.randn(1, 1, 4), means(net)
    assert kernel_query(net, x, superposed, Goal("M", 2), list(net.weights)) is None
    with pytest.raises(SupSupError, match="superfluous"):
        kernel_query(net, x, superposed, Goal("G", 3), list(net.weights))
