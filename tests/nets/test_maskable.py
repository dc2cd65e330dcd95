"""Which weights are masked, with how many inputs, and what is refused by name: one test for each kind of layer."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import supsup
from supsup import Recipe, SupSup, SupSupError
from supsup.masks.frozen import FrozenNet
from supsup.model.state import ModelState, state_of
from supsup.nets.execution import run_with_weights
from supsup.nets.maskable import masked_weights

CPU = torch.device("cpu")


class Last(nn.Module):
    """A layer on sequences [n, time, 6], and a linear one on what it gives at the end."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        out = out[0] if isinstance(out, tuple) else out
        answer: Tensor = self.head(out.flatten(2)[:, -1])
        return answer


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 8)
        for step in x.unbind(1):
            state = self.cell(step, state)
        return state[:, None]


class Words(nn.Module):
    """Numbers of words, whichever way they come."""

    def __init__(self, layer: nn.Embedding | nn.EmbeddingBag) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x.argmax(2))
        return out.view(len(x), -1, 8)


class Attends(nn.Module):
    def __init__(self, **sizes: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **sizes)

    def forward(self, x: Tensor) -> Tensor:
        query = torch.cat([x, x[:, :, :2]], 2)
        out: Tensor = self.attention(
            query, x if self.attention.kdim == 6 else query, x if self.attention.vdim == 6 else query
        )[0]
        return out


class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bilinear = nn.Bilinear(6, 6, 8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.bilinear(x, x.flip(1))
        return out


class Channels(nn.Module):
    """A convolution over time."""

    def __init__(self, convolution: nn.Module) -> None:
        super().__init__()
        self.convolution = convolution

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.convolution(x.transpose(1, 2)).transpose(1, 2)
        return out


RECURRENT = {"layer.weight_ih_l0": 6, "layer.weight_hh_l0": 8}
KINDS: dict[str, tuple[Callable[[], nn.Module], dict[str, int]]] = {
    "RNN": (lambda: Last(nn.RNN(6, 8, batch_first=True), 8), RECURRENT),
    "GRU": (lambda: Last(nn.GRU(6, 8, batch_first=True), 8), RECURRENT),
    "LSTM, both ways, projected": (
        lambda: Last(nn.LSTM(6, 8, batch_first=True, bidirectional=True, proj_size=4), 8),
        {
            "layer.weight_ih_l0": 6,
            "layer.weight_hh_l0": 4,
            "layer.weight_hr_l0": 8,
            "layer.weight_ih_l0_reverse": 6,
            "layer.weight_hh_l0_reverse": 4,
            "layer.weight_hr_l0_reverse": 8,
        },
    ),
    "GRUCell": (lambda: Last(Cell(), 8), {"layer.cell.weight_ih": 6, "layer.cell.weight_hh": 8}),
    "Embedding": (lambda: Last(Words(nn.Embedding(10, 8, padding_idx=0)), 8), {"layer.layer.weight": 1}),
    "EmbeddingBag": (lambda: Last(Words(nn.EmbeddingBag(10, 8)), 8), {"layer.layer.weight": 1}),
    "Conv1d in groups": (lambda: Last(Channels(nn.Conv1d(6, 8, 3, groups=2)), 8), {"layer.convolution.weight": 9}),
    "ConvTranspose1d": (
        lambda: Last(Channels(nn.ConvTranspose1d(6, 8, 4, stride=2, groups=2)), 8),
        {"layer.convolution.weight": 6},
    ),
    "Bilinear": (lambda: Last(Pairs(), 8), {"layer.bilinear.weight": 36}),
    "MultiheadAttention": (
        lambda: Last(Attends(), 8),
        {"layer.attention.in_proj_weight": 8, "layer.attention.out_proj.weight": 8},
    ),
    "MultiheadAttention, keys and values of other sizes": (
        lambda: Last(Attends(kdim=6, vdim=6), 8),
        {
            "layer.attention.q_proj_weight": 8,
            "layer.attention.k_proj_weight": 6,
            "layer.attention.v_proj_weight": 6,
            "layer.attention.out_proj.weight": 8,
        },
    ),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # torch says that it is slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_is_masked_learns_and_is_found_again(kind: str, tmp_path: Path) -> None:
    """Every weight is ±√(2 / inputs), every bias 0; the mask trains, and a file gives the same answers."""
    build, inputs = KINDS[kind]
    expected = inputs | {"head.weight": 8}
    torch.manual_seed(0)
    net = FrozenNet(build(), 0, CPU)
    assert {name: each.inputs for name, each in masked_weights(net.module).items()} == expected
    assert list(net.weights) == list(expected)
    for name, count in expected.items():
        kept = net.weights[name][1:] if kind == "Embedding" and "layer" in name else net.weights[name]
        assert torch.allclose(kept.abs(), torch.tensor((2 / count) ** 0.5))
    assert not any(p.any() for name, p in net.module.named_parameters() if "bias" in name)
    chance = torch.Generator().manual_seed(1)
    labels = torch.arange(90) % 3
    x = 2 * torch.eye(6)[2 * labels][:, None] + 0.3 * torch.randn(90, 5, 6, generator=chance)
    module = build()
    model = SupSup(module, recipe=Recipe("adam", 0.1, 60, 30, schedule="cosine", score_bound=1.0), device="cpu")
    for task in ("a", "b"):
        model.learn((x, labels if task == "a" else 2 - labels), task=task)
        assert (model.predict(x, task=task).labels == (labels if task == "a" else 2 - labels)).float().mean() > 0.6
    assert set(model.infer_task(x[:4])) <= {"a", "b"}
    model.save(tmp_path / "m")
    for other in (supsup.load(tmp_path / "m", module, device="cpu"), copy.deepcopy(model)):
        for task in ("a", "b"):
            assert torch.equal(other.predict(x, task=task).confidence, model.predict(x, task=task).confidence)


def test_a_recurrent_layer_given_the_same_tensors_again_uses_them() -> None:
    """It used to answer with its own weights from the second time on."""
    net = FrozenNet(nn.GRU(5, 4, batch_first=True), 0, torch.device("cpu"))
    x, masked = torch.randn(3, 6, 5), {name: torch.zeros_like(weight) for name, weight in net.weights.items()}
    first, again, own = (run_with_weights(net.module, given, x)[0] for given in (masked, masked, net.weights))
    assert torch.equal(first, again)
    assert not torch.equal(first, own)


def test_a_row_for_padding_stays_zero() -> None:
    net = FrozenNet(nn.Sequential(nn.Embedding(5, 3, padding_idx=2), nn.Linear(3, 2)), 0, CPU)
    assert (net.weights["0.weight"] == 0).all(1).tolist() == [False, False, True, False, False]


def tied() -> nn.Module:
    net = nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    return net


def half_parametrised(layer: nn.Module, name: str) -> nn.Module:
    parametrizations.weight_norm(layer, name)
    return nn.Sequential(layer, nn.Linear(4, 4))


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (tied(), "weight '0.weight' is shared with '1.weight' .* use one layer twice"),
        (half_parametrised(nn.Linear(4, 4), "weight"), "weight '0.weight' is computed from .* remove the param"),
        (half_parametrised(nn.GRU(4, 4), "weight_hh_l0"), "weight '0.weight_hh_l0' is computed from"),
        (
            half_parametrised(nn.MultiheadAttention(4, 2), "in_proj_weight"),
            "weight '0.in_proj_weight' is computed from",
        ),
        (nn.Sequential(parametrizations.spectral_norm(nn.Conv2d(1, 2, 3))), "weight '0.weight' is computed from"),
        (nn.Sequential(nn.Embedding(4, 4, max_norm=1.0)), r"layer '0' \(Embedding\) rewrites its weights"),
        (nn.EmbeddingBag(4, 4, sparse=True), r"the network \(EmbeddingBag\) has sparse gradients"),
        (nn.Sequential(nn.PReLU(), nn.LayerNorm(4)), "nothing to mask"),
    ],
)
def test_what_cannot_be_masked_is_named_with_the_reason(net: nn.Module, message: str) -> None:
    with pytest.raises(SupSupError, match=message):
        FrozenNet(net, 0, CPU)


def test_a_file_from_before_embeddings_were_masked_is_read(tmp_path: Path) -> None:
    """Its header names the weights that have masks; the embedding stays as it was built."""
    torch.manual_seed(0)
    embedding = nn.Embedding(10, 8)
    module = Last(Words(embedding), 8)
    x, y = torch.rand(30, 5, 6), torch.arange(30) % 3
    model = SupSup(module, recipe=Recipe(steps=2, batch_size=8), device="cpu")
    earlier = FrozenNet(module, 0, CPU, masked=["head.weight"])
    assert torch.equal(earlier.module.get_parameter("layer.layer.weight"), embedding.weight)
    model = SupSup.from_state(ModelState(earlier, state_of(model).settings))
    model.learn((x, y), task="t")
    model.save(tmp_path / "m")
    for again in (supsup.load(tmp_path / "m", module, device="cpu"), copy.deepcopy(model)):
        assert list(state_of(again).net.weights) == ["head.weight"]
        assert torch.equal(again.predict(x, task="t").confidence, model.predict(x, task="t").confidence)
