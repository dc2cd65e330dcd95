"""The frozen network: the same bits for a seed, everywhere and always."""

import math

import pytest
import torch
from torch import nn

from supsup import SupSupError, nets
from supsup.masks.frozen import FrozenNet

CPU = torch.device("cpu")


def test_every_weight_is_plus_or_minus_c() -> None:
    net = FrozenNet(nets.lenet_300_100(outputs=20), 0, CPU)
    assert list(net.weights) == ["layers.0.weight", "layers.1.weight", "layers.2.weight"]
    for weight, fan_in in zip(net.weights.values(), (784, 300, 100)):
        assert torch.allclose(weight.abs(), torch.tensor(math.sqrt(2 / fan_in)))
        assert abs(float((weight > 0).float().mean()) - 0.5) < 0.02


def test_the_checksum_is_fixed_for_good() -> None:
    """A changed checksum means that saved masks would meet other weights."""
    assert FrozenNet(nets.lenet_300_100(outputs=100), 0, CPU).checksum == "d72230d231eb3f9617bd0a2ad1ed9977"


def test_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    one = FrozenNet(nets.fc_1024(10), 5, CPU)
    torch.manual_seed(2)
    assert one.checksum == FrozenNet(nets.fc_1024(10), 5, CPU).checksum
    assert one.checksum != FrozenNet(nets.fc_1024(10), 6, CPU).checksum


def test_the_module_given_is_left_alone() -> None:
    net = nets.lenet_300_100(10)
    before = [p.clone() for p in net.parameters()]
    FrozenNet(net, 0, CPU)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters()))
    assert all(p.requires_grad for p in net.parameters())


def test_a_convolution_counts_its_whole_window_and_biases_are_zero() -> None:
    net = FrozenNet(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8, 4)), 0, CPU)
    assert torch.allclose(net.weights["0.weight"].abs(), torch.tensor(math.sqrt(2 / 27)))
    assert not any(p.any() for name, p in net.module.named_parameters() if name.endswith("bias"))


def tied(one: nn.Linear, other: nn.Linear | nn.Embedding) -> nn.Module:
    other.weight = one.weight
    return nn.Sequential(one, other)


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (nn.Sequential(nn.ReLU()), "nothing to mask"),
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None)), "layer '1' averages its statistics"),
        (
            nn.Sequential(nn.Linear(4, 4), nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))),
            "weight '1.weight' is co",
        ),
        (tied(nn.Linear(4, 4), nn.Linear(4, 4)), "weight '0.weight' is shared with '1.weight'"),
        (tied(nn.Linear(4, 4), nn.Embedding(4, 4)), "weight '0.weight' is shared with '1.weight'"),
        (nn.Sequential(nn.LazyLinear(4)), r"layer '0' \(LazyLinear\) has no shape yet"),
        (nn.Sequential(nn.Linear(4, 4), nn.LazyBatchNorm1d()), r"layer '1' \(LazyBatchNorm1d\) has no shape yet"),
        (nn.Sequential(nn.Linear(4, 4, device="meta")), r"layer '0' \(Linear\) is on 'meta'"),
    ],
)
def test_what_cannot_be_masked_is_named(net: nn.Module, message: str) -> None:
    with pytest.raises(SupSupError, match=message):
        FrozenNet(net, 0, CPU)


def test_attention_is_masked_and_statistics_are_found() -> None:
    net = FrozenNet(nn.Sequential(nn.MultiheadAttention(8, 2), nn.BatchNorm1d(8), nn.Linear(8, 3)), 0, CPU)
    assert list(net.weights) == ["0.in_proj_weight", "0.out_proj.weight", "2.weight"]
    assert list(net.statistics) == ["1.running_mean", "1.running_var"]


def test_attention_with_keys_of_another_size_has_its_biases_zeroed() -> None:
    attention = nn.MultiheadAttention(8, 2, kdim=4, vdim=6)
    nn.init.ones_(attention.in_proj_bias)
    net = FrozenNet(attention, 0, CPU)
    assert list(net.weights) == ["q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"]
    assert not any(p.any() for name, p in net.module.named_parameters() if name.endswith("bias"))


def test_half_precision_becomes_single_and_a_parallel_wrapper_is_taken_off() -> None:
    torch.manual_seed(0)
    given = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)).half()
    net = FrozenNet(nn.DataParallel(given), 0, CPU, pretrained=True)
    assert all(value.dtype == torch.float32 for value in (*net.weights.values(), *net.statistics.values()))
    assert torch.equal(net.weights["0.weight"].half(), given.state_dict()["0.weight"])


def test_many_images_at_once_are_run_a_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = FrozenNet(nn.Linear(6, 5), 0, CPU), torch.randn(20, 6)
    monkeypatch.setattr("supsup.masks.frozen._PIXELS", 7 * 6)
    assert torch.allclose(net.run_many(x, net.weights), net.run(x, net.weights))


def test_a_pretrained_network_stays_as_it_is() -> None:
    torch.manual_seed(0)
    given = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    given.train()(torch.randn(20, 6) + 3)
    net = FrozenNet(given, 0, CPU, pretrained=True)
    for name, value in given.state_dict().items():
        assert torch.equal(net.module.state_dict()[name], value)
    assert torch.equal(net.statistics["1.running_mean"], given.state_dict()["1.running_mean"])


def test_pieces_are_as_small_as_the_network_makes_images_large() -> None:
    """A network for photographs enlarges small pictures first: thousands of them at once would not fit."""
    pictures = torch.zeros(1000, 3, 32, 32)
    photographs = FrozenNet(nets.mobilenet_v2(2, size=224), 0, CPU)
    assert max(map(len, photographs.pieces(pictures))) * 3 * 224**2 <= 1 << 24
    assert len(FrozenNet(nets.ResNet(2, (1,), (4,)), 0, CPU).pieces(pictures)) == 1


def test_recurrent_layers_do_not_keep_the_weights_they_ran_with() -> None:
    """They would keep the whole graph of a training step alive, and answer by its weights when run as they are."""

    class Sequences(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.GRU(4, 5, batch_first=True), nn.Linear(5, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.head(self.layer(x)[0][:, -1])
            return out

    net = FrozenNet(Sequences(), 0, CPU)
    scores = {name: torch.ones_like(weight, requires_grad=True) for name, weight in net.weights.items()}
    with net.borrowed() as module:
        net.run(torch.randn(3, 6, 4), {name: weight * scores[name] for name, weight in net.weights.items()}, module)
        layer = module.get_submodule("layer")
        assert isinstance(layer, nn.GRU)
        assert all(weight is not None and weight.grad_fn is None for weight in layer._flat_weights)
        assert layer._flat_weights[0] is layer.weight_ih_l0


def test_cudnn_is_switched_off_for_recurrent_layers_on_a_gpu_alone() -> None:
    """It moves their weights, and is a setting of the whole process: nobody else is to lose it."""
    recurrent, plain = FrozenNet(nn.GRU(4, 5), 0, CPU), FrozenNet(nn.MultiheadAttention(8, 2), 0, CPU)
    for net, device, enabled in (
        (recurrent, "cpu", True),
        (recurrent, "cuda", False),
        (plain, "cuda", True),
        (FrozenNet(nn.Linear(3, 2), 0, CPU), "cuda", True),
    ):
        net.device = torch.device(device)
        with net.attending():
            assert torch.backends.cudnn.enabled == enabled
        assert torch.backends.cudnn.enabled
