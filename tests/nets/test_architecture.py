"""Networks that can be built again from what a model file says of them."""

import copy

import pytest
import torch
from torch import nn

from supsup import SupSupError, nets
from supsup.nets.architecture import Architecture, architecture_of


def test_each_network_remembers_how_it_was_built() -> None:
    for net in (nets.lenet_300_100(outputs=7), nets.fc_1024(9, inputs=30), nets.FullyConnected((5, 4))):
        found = architecture_of(copy.deepcopy(net))
        assert found is not None
        again = found.build()
        assert type(again) is type(net)
        assert [p.shape for p in again.parameters()] == [p.shape for p in net.parameters()]
    assert architecture_of(nets.lenet_300_100(7)) == Architecture("lenet_300_100", {"outputs": 7, "inputs": 784})


def test_what_only_its_owner_can_build() -> None:
    class Own(nets.FullyConnected):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return -super().forward(x)

    assert architecture_of(Own((5, 4))) is None
    assert architecture_of(nn.Sequential(nets.FullyConnected((5, 4)))) is None


def test_what_does_not_fit_into_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own words about its allocator say nothing of the network."""

    def too_large(*_: object, **__: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(nn.Linear, "reset_parameters", too_large)
    for build in (lambda: nets.FullyConnected((5, 4)), lambda: nets.small_resnet(7)):
        with pytest.raises(SupSupError, match=r"cannot be built in these sizes: .*can't allocate"):
            build()


def test_unknown_names_and_arguments() -> None:
    with pytest.raises(SupSupError, match=r"unknown architecture 'brain'; known: .*lenet_300_100"):
        Architecture("brain", {}).build()
    with pytest.raises(SupSupError, match="does not take"):
        Architecture("lenet_300_100", {"colour": "red"}).build()
