"""Which residual tasks go together, and that the kernels see the very batches that every executor sees."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from supsup import data, nets
from supsup.data import Augmentation, Source, Stream
from supsup.masks.frozen import FrozenNet
from supsup.training import SPLIT_CIFAR100, Job, Recipe
from supsup.training.executors import Feed, alike, batch_positions, executors, executors_for

pytest.importorskip("triton")

from supsup_paper.residual.executor import (
    ResidualTrainer,
    addressable,
    bytes_of_training,
    feeds,
    knows,
)

CPU = torch.device("cpu")
RECIPE = Recipe("adam", 1e-2, epochs=2, batch_size=4, selection="edge-popup", budget=2)


@pytest.fixture(scope="module")
def net() -> FrozenNet:
    return FrozenNet(nets.ResNet(3, (1,), (4,), channels=2), 0, CPU)


@pytest.fixture(scope="module")
def stream() -> Stream:
    chance = torch.Generator().manual_seed(0)
    images = torch.randint(256, (40, 2, 8, 8), dtype=torch.uint8, generator=chance)
    labels = torch.arange(40) % 4
    gain, offset = torch.tensor([0.01, 0.02]), torch.tensor([-1.0, 0.5])
    source = Source("small", images, labels, images, labels, gain, offset, 4, Augmentation(padding=2, flip=True))
    return data.split(source, 2)


def test_the_kernels_see_the_batches_that_every_executor_sees(net: FrozenNet, stream: Stream) -> None:
    tasks = [stream[1], stream[0], stream[1]]
    steps = RECIPE.steps_for(len(stream[0].train))
    kept = [[RECIPE.kept(shape) for shape in net.shapes.values()] for _ in tasks]
    trainer = ResidualTrainer(net, (2, 8, 8), kept, RECIPE, 4, steps, torch.float32)
    trainer.step = lambda: None  # type: ignore[method-assign]
    feed = Feed.of(net, [Job(task, RECIPE) for task in tasks], mapped=False)
    expected = [
        list(task.train.training_batches(batch_positions(0, task.name, len(task.train), 4, steps), 0, task.name))
        for task in tasks
    ]
    for step in range(steps):
        trainer.step_from(feed)
        trainer.step_count += 1
        for i, batches in enumerate(expected):
            x, y = batches[step]
            assert torch.allclose(trainer.passes.x[i, :, 1:-1, 1:-1, :2].permute(0, 3, 1, 2), x)
            assert torch.equal(trainer.passes.y[i].long(), y)


def test_jobs_go_together_that_share_images_and_length(stream: Stream) -> None:
    other = data.split(data.arrays(torch.zeros(8, 2, 8, 8), [0, 1] * 4, torch.zeros(2, 2, 8, 8), [0, 1]), 2)
    plain = replace(stream[1], train=replace(stream[1].train, augmentation=None))
    first = Job(stream[0], RECIPE)
    assert alike(first, Job(stream[1], RECIPE))
    assert not alike(first, Job(other[0], RECIPE))
    assert not alike(first, Job(plain, RECIPE))
    rows = stream[1].train.rows
    assert rows is not None
    shorter = replace(stream[1].train, rows=rows[:-4], labels=stream[1].train.labels[:-4])
    assert not alike(first, Job(replace(stream[1], train=shorter), RECIPE)), "it would be trained for too many steps"


def test_the_paper_s_residual_network_goes_to_the_kernels_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library finds the executor by its place in a table: lost, the paper's tables would take hours longer."""
    chance = torch.Generator().manual_seed(0)
    images, labels = torch.randint(256, (20, 3, 32, 32), dtype=torch.uint8, generator=chance), torch.arange(20) % 10
    tasks = data.split(data.arrays(images, labels, images, labels), 5)
    net, jobs = FrozenNet(nets.gem_resnet18(5), 0, CPU), [Job(task, SPLIT_CIFAR100) for task in tasks]
    monkeypatch.setattr(net, "device", torch.device("cuda"))
    assert [executor.name for executor in executors()].index("residual on a GPU") == 2, "before those for any module"
    assert next(executors_for(net, jobs)).name == "residual on a GPU"
    assert next(executors_for(net, jobs, torch.float32)).name == "residual on a GPU"
    monkeypatch.setattr(net, "device", CPU)
    assert next(executors_for(net, jobs)).name == "plain"


def test_what_the_kernels_cannot_do_is_left_to_others(net: FrozenNet, stream: Stream) -> None:
    job = Job(stream[0], RECIPE)
    assert knows(net, [job])
    assert knows(net, [job, Job(stream[1], replace(RECIPE, budget=4))]), "jobs may keep different numbers of weights"
    assert not knows(net, [job, Job(stream[1], replace(RECIPE, epochs=3))])
    assert knows(net, [Job(stream[0], Recipe("sgd"))])
    assert knows(FrozenNet(nets.resnet50(3), 0, CPU), [job])
    module, part = nets.ResNet(3, (1,), (4,), channels=2), stream[0].train
    assert addressable(module, part, RECIPE)
    assert not addressable(module, part, replace(RECIPE, batch_size=1 << 23)), "numbers would run over"
    assert not knows(FrozenNet(nets.FullyConnected((8, 3)), 0, CPU), [job])
    assert feeds(stream[0].train)
    permuted = data.permuted(data.arrays(torch.zeros(4, 1, 8, 8), [0, 1] * 2, torch.zeros(1, 1, 8, 8), [0]), 1)
    assert not feeds(permuted[0].train)


def test_what_a_task_takes_grows_with_its_images_its_batch_and_its_numbers(net: FrozenNet, stream: Stream) -> None:
    """Groups are made by it: too small a figure, and a GPU runs out of memory."""
    part = stream[0].train
    least = bytes_of_training(net.module, part, RECIPE)
    activations = 4 * 8 * 8 * 4 * len(net.shapes)  # without borders and the classifier's few
    assert least > 2 * 2 * activations + 18 * sum(shape.numel() for shape in net.shapes.values())
    assert bytes_of_training(net.module, part, RECIPE, torch.float32) > 1.5 * least
    assert bytes_of_training(net.module, part, replace(RECIPE, batch_size=8)) > 1.5 * least
    bottlenecks = FrozenNet(nets.ResNet(3, (1,), (4,), channels=2, bottleneck=True), 0, CPU)
    assert bytes_of_training(bottlenecks.module, part, RECIPE) > 1.5 * least


def _bias(net: Any) -> None:
    net.conv.bias = nn.Parameter(torch.ones(4))


def _affine(net: Any) -> None:
    net.norm.weight = nn.Parameter(torch.full((4,), 2.0))


def _stride(net: Any) -> None:
    net.stages[0][0].conv2.padding_mode = "circular"


def _shortcut(net: Any) -> None:
    net.stages[0][0].shortcut = nn.ReLU()


def _hook(net: Any) -> None:
    net.stages[0].register_forward_hook(lambda module, inputs, output: 2 * output)


@pytest.mark.parametrize("change", [_bias, _affine, _stride, _shortcut, _hook])
def test_a_network_that_somebody_changed_is_left_to_others(change: Callable[[Any], None], stream: Stream) -> None:
    """The kernels would compute the network of the class, not this one."""
    module = nets.ResNet(3, (1,), (4,), channels=2)
    change(module)
    assert not knows(FrozenNet(module, 0, CPU, pretrained=True), [Job(stream[0], RECIPE)])
