"""Small real tasks that every room's tests can learn in a moment, and the place of the large real data."""

import os
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait must not fight for a shared core
os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels are tested on the CPU; read when triton is imported
os.environ["SUPSUP_OFFLINE"] = "1"  # tests fetch nothing, but from servers of their own

import pytest
import torch
from torch import Tensor, nn

from supsup import HopSupSup, Recipe, SupSup, SupSupError, UnitRecipe, data, nets
from supsup.data import Stream, Task
from supsup.hopfield.learner import learn_in_parallel
from supsup_paper.runs.environment import Environment

try:
    from hypothesis import settings
except ImportError:  # a machine with a GPU may have little else
    pass
else:
    settings.register_profile("untimed", deadline=None)  # how long an example takes says nothing about what is right
    settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no GPU here"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with the real MNIST; tests that need it are skipped where it is not."""
    folder = Path(os.environ.get("SUPSUP_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not (folder / "mnist").is_dir():
        pytest.skip(f"the real MNIST is not at {folder}; set SUPSUP_DATA to a folder that holds mnist/")
    return folder


@pytest.fixture(scope="session")
def pretrained_net() -> nets.ImageNetwork:
    """MobileNetV2 with published weights; tests that need them are skipped where they are not at hand."""
    try:
        return nets.mobilenet_v2(5, pretrained=True, size=64).eval()
    except SupSupError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def stream() -> Stream:
    """Six permutations of 5,000 real digits."""
    return data.permuted(data.digits(), tasks=6, seed=0)


@pytest.fixture(scope="session")
def learned(stream: Stream) -> SupSup:
    """A model that has learned four of the six tasks; tests must not change it."""
    model = SupSup(nets.lenet_300_100(outputs=50), seed=0, recipe=Recipe(steps=80), device="cpu")
    model.learn_many(stream[:4])
    return model


@pytest.fixture
def small(stream: Stream) -> SupSup:
    """A small model of its own that has learned two tasks a little."""
    model = SupSup(nets.FullyConnected((784, 40, 20)), seed=1, recipe=Recipe(steps=10), device="cpu")
    model.learn_many(stream[:2])
    return model


@pytest.fixture
def images(stream: Stream) -> torch.Tensor:
    """Forty test images of the first task."""
    return stream[0].test.batch(torch.arange(40))[0]


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
    """A small network that is not fully connected."""
    return SmallConvolutional()


@pytest.fixture(scope="session")
def split() -> Stream:
    """Two tasks of five digits each."""
    return data.split(data.digits(), 5)


@pytest.fixture
def brief() -> Recipe:
    """A few steps."""
    return Recipe(steps=12, batch_size=16, learning_rate=1e-3)


@pytest.fixture(scope="session")
def hop() -> tuple[HopSupSup, list[Task], list[list[torch.Tensor]]]:
    """A HopSupSup model, two tasks it learned and their masks, which it no longer has; tests must not change it."""
    split = data.split(data.digits(), 2)
    tasks = [split[0], split[3]]
    recipe = UnitRecipe(epochs=10, batch_size=64)
    model = HopSupSup(nets.HopMLP((784, 512, 512, 10)), seed=3, recipe=recipe, device="cpu")
    return model, tasks, [learn_in_parallel([model], task) for task in tasks]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Environment:
    """For the paper's experiments, small: its MNIST are some of 5,000 digits, its CIFAR-100 ten classes of noise."""
    digits, some = data.digits(), torch.arange(500)
    x, y = digits.train_images[some].view(-1, 28, 28), digits.train_labels[some]
    small = data.arrays(x, y, x[:100], y[:100])
    noise = torch.randint(0, 256, (40, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    labels = torch.arange(40) % 10
    sources = {"mnist": small, "cifar100": data.arrays(noise, labels, noise, labels)}
    monkeypatch.setattr(data, "named", lambda name, data_dir=None: sources[name])
    return Environment(torch.device("cpu"))
