"""Small settings shared by the rivals' tests."""

import pytest
from torch import Tensor, nn

from supsup import Recipe, data
from supsup.data import Stream


class SmallConvolutional(nn.Module):
    """A network with running statistics, for what must hold for any module."""

    def __init__(self, outputs: int = 5) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, stride=4, bias=False), nn.BatchNorm2d(4, affine=False)
        self.linear = nn.Linear(196, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(self.norm(self.conv(x.view(-1, 1, 28, 28))).relu().flatten(1))
        return out


@pytest.fixture
def convolutional() -> nn.Module:
    return SmallConvolutional()


@pytest.fixture(scope="session")
def split() -> Stream:
    """Two tasks of five digits each."""
    return data.split(data.digits(), 5)


@pytest.fixture
def brief() -> Recipe:
    return Recipe(steps=12, batch_size=16, learning_rate=1e-3)
