"""Features are rows of images for any number of images, whatever the network does with their dimensions."""

import pytest
import torch
from torch import Tensor, nn

from supsup import Recipe, SupSup, SupSupError
from supsup.finding.features import features
from supsup.finding.gaussians import Gallery, Gaussians
from supsup.frozen import FrozenNet

CPU = torch.device("cpu")


class TimeFirst(nn.Module):
    """Eight steps, which its layers have before the images."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(8, 12), nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.leave(self.enter(x.transpose(0, 1)).relu()).mean(0)
        return out


class BatchFirst(TimeFirst):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.leave(self.enter(x).relu().mean(1))
        return out


@pytest.mark.parametrize("module", [TimeFirst, BatchFirst])
def test_an_image_has_the_same_features_among_any_number(module: type[nn.Module]) -> None:
    """As many images as steps must not be taken for the steps."""
    net, x = FrozenNet(module(), 0, CPU), torch.randn(20, 8, 8, generator=torch.Generator().manual_seed(0))
    every = features(net, x)
    for count in (1, 2, 8, 12, 19):
        torch.testing.assert_close(features(net, x[:count]), every[:count])


def test_as_many_images_as_steps_are_learned_and_answered() -> None:
    x, y = torch.randn(40, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    model = SupSup(TimeFirst(), recipe=Recipe(steps=2, batch_size=4), device="cpu")
    model.learn((x[:32] + 3, y[:32]), task="many")
    model.learn((x[32:] - 3, y[32:]), task="eight")
    assert model.infer_task(x[:8] + 3) == ["many"] * 8


def test_statistics_of_another_network_are_refused() -> None:
    """A file can hold any, and whoever asks is told what to do."""
    x = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
    gallery = Gallery([Gaussians.of(x, torch.arange(12) % 2, 2)], CPU)
    with pytest.raises(SupSupError, match="learned with 5 features of an image, and this network has 4:"):
        gallery.likelihoods(x[:, :4])
