"""Which executor is chosen."""

from dataclasses import replace

import pytest
from torch import nn

from supsup import Recipe, SupSupError, nets
from supsup.baselines import BatchE, LowerBound, executors, learn_side_by_side
from supsup.data import Augmentation, Stream


def test_fully_connected_networks_are_stacked_and_others_are_not(
    stream: Stream, split: Stream, convolutional: nn.Module, brief: Recipe
) -> None:
    stacked = LowerBound(nets.FullyConnected((784, 8, 10)), recipe=brief, device="cpu")
    stacked.learn(stream[0])
    assert stacked.stack is not None
    plain = LowerBound(convolutional, recipe=brief, device="cpu")
    plain.learn(split[0])
    assert plain.stack is None
    assert not plain.benches


def test_augmented_images_are_left_to_the_plain_path(split: Stream, brief: Recipe) -> None:
    task = replace(split[0], train=replace(split[0].train, augmentation=Augmentation(padding=2)))
    model = BatchE(nets.FullyConnected((784, 8, 10)), recipe=brief, device="cpu")
    model.learn_many([task, replace(task, name="again")])
    assert model.stack is None
    assert model.tasks == [task.name, "again"]
    with pytest.raises(SupSupError, match="not augmented"):
        learn_side_by_side([LowerBound(nets.FullyConnected((784, 8, 10)), device="cpu")], [task])


def test_independent_tasks_go_in_groups(stream: Stream, brief: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "_TOGETHER", 2)
    model = BatchE(nets.FullyConnected((784, 8, 10)), base="random", recipe=brief, device="cpu")
    assert list(executors.learn_independent(model, stream[:5])) == [2, 2, 1]
    assert model.tasks == [task.name for task in stream[:5]]
