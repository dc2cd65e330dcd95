"""The network with masks on its units: the plain module and the form for many at once give the same."""

import pytest
import torch

from supsup import SupSupError, nets
from supsup.nets.architecture import architecture_of
from supsup.nets.fully_connected import many_outputs


def test_the_papers_network() -> None:
    net = nets.hop_mlp(outputs=10)
    assert [tuple(p.shape) for p in net.parameters()] == [(2048, 784), (2048, 2048), (10, 2048)]
    assert not list(net.buffers())  # nothing that one task could change for another
    built = architecture_of(net)
    assert built is not None
    assert isinstance(built.build(), nets.HopMLP)


def test_many_networks_and_masks_at_once_are_each_the_module() -> None:
    """All that is fast rests on this."""
    chance = torch.Generator().manual_seed(0)
    modules = [nets.HopMLP((6, 9, 8, 4)) for _ in range(3)]
    x = torch.randn(3, 2, 7, 6, generator=chance)
    units = [(torch.rand(3, 2, width, generator=chance) < 0.6).float() for width in (9, 8)]
    weights = [torch.stack(layer).detach() for layer in zip(*(module.parameters() for module in modules))]
    for images in (x, x[:1, :1]):  # each its own images, or the same for all
        together = many_outputs(weights, images, units)
        for n, module in enumerate(modules):
            for k in range(2):
                alone = module(images[n % len(images), k % images.shape[1]], [mask[n, k] for mask in units])
                torch.testing.assert_close(together[n, k], alone.detach())


def test_a_masked_unit_is_as_good_as_gone() -> None:
    net = nets.HopMLP((5, 4, 4, 3))
    x = torch.randn(8, 5)
    units = [torch.tensor([1.0, 0, 1, 1]), torch.ones(4)]
    before = net(x, units)
    with torch.no_grad():
        net.layers[0].weight[1] += 5  # type: ignore[operator, index]
    torch.testing.assert_close(net(x, units), before)
    assert not torch.allclose(net(x), net(x, units))


def test_widths_that_make_no_network() -> None:
    with pytest.raises(SupSupError, match="at least 3"):
        nets.HopMLP((784, 10))
