"""What every baseline does: the face of SupSup, errors that say what to do, answers that stay the task's own."""

import pytest
import torch
from torch import nn

from supsup import Recipe, SupSupError, evaluate, nets
from supsup.data import Stream
from supsup_paper.baselines import PSP, SI, Baseline, BatchE, LowerBound, OnlineEWC, SeparateHeads, UpperBound
from supsup_paper.baselines.initial import FILLINGS

ALL = [PSP, SI, BatchE, LowerBound, OnlineEWC, SeparateHeads, UpperBound]
KEEPS_EVERYTHING = [BatchE, SeparateHeads, UpperBound]


@pytest.mark.parametrize("kind", ALL)
def test_every_baseline_learns_on_any_module(
    kind: type, convolutional: nn.Module, split: Stream, images: torch.Tensor
) -> None:
    recipe = Recipe("adam", 1e-2, steps=40)
    model = kind(convolutional, recipe=recipe, first=recipe, device="cpu")
    assert isinstance(model, Baseline)
    if isinstance(model, OnlineEWC):
        model.images = 50
    assert model.learn(split[0]) == split[0].name
    x, y = split[0].test.tensors()
    before = model.predict(x, task=split[0].name)
    assert float((before.labels == y).float().mean()) > 0.4, "chance is 0.2"
    assert before.tasks == [split[0].name] * len(y)
    model.learn_many(split[1:])
    assert model.tasks == [task.name for task in split]
    assert model.bytes > 0
    after = model.predict(x, task=split[0].name)
    if kind in KEEPS_EVERYTHING:
        assert torch.equal(after.labels, before.labels), "nothing may be forgotten"
        assert torch.allclose(after.confidence, before.confidence, atol=1e-6)


@pytest.mark.parametrize("kind", ALL)
def test_errors_say_what_to_do(kind: type, stream: Stream, images: torch.Tensor) -> None:
    model = kind(nets.FullyConnected((784, 8, 10)), recipe=Recipe(steps=1), device="cpu")
    if isinstance(model, OnlineEWC):
        model.images = 10
    with pytest.raises(SupSupError, match="call learn first"):
        model.predict(images)
    model.learn(stream[0])
    with pytest.raises(SupSupError, match="unknown task 'nonsense'; known: permutation-0"):
        model.predict(images, task="nonsense")
    with pytest.raises(SupSupError, match="learned already"):
        model.learn(stream[0])


def test_one_head_answers_in_the_name_of_the_newest_task_that_comes_into_question(
    stream: Stream, images: torch.Tensor
) -> None:
    model = LowerBound(nets.FullyConnected((784, 8, 10)), heads="single", recipe=Recipe(steps=1), device="cpu")
    model.learn_many(stream[:3])
    assert set(model.predict(images).tasks) == {"permutation-2"}
    assert set(model.predict(images, among=["permutation-1", "permutation-0"]).tasks) == {"permutation-1"}


@pytest.mark.parametrize("kind", [PSP, LowerBound, SeparateHeads, UpperBound])
def test_a_method_that_needs_the_task_asks_for_it(kind: type, stream: Stream, images: torch.Tensor) -> None:
    model = kind(nets.FullyConnected((784, 8, 10)), recipe=Recipe(steps=1), device="cpu")
    model.learn(stream[0])
    with pytest.raises(SupSupError, match=r"predict\(x, task="):
        model.predict(images)
    with pytest.raises(SupSupError, match="has to be told the task"):
        evaluate(model, stream[:1], "GNs")


def test_too_few_outputs(stream: Stream) -> None:
    with pytest.raises(SupSupError, match="outputs=10"):
        LowerBound(nets.FullyConnected((784, 8, 9)), device="cpu").learn(stream[0])


def test_how_layers_are_filled() -> None:
    net = nets.FullyConnected((784, 8, 10))
    spread = [float(LowerBound(net, filling=f, device="cpu").shared["layers.0.weight"].std()) for f in FILLINGS]
    assert len({round(value, 4) for value in spread}) == 3
    with pytest.raises(SupSupError, match="kaiming_normal"):
        LowerBound(net, filling="zeros", device="cpu")


def test_a_network_without_layers() -> None:
    with pytest.raises(SupSupError, match="nothing to train"):
        LowerBound(nn.Flatten(), device="cpu")


@pytest.mark.parametrize("wrong", [Recipe(self_labels="rotations"), Recipe(crops=0.25)])
def test_what_is_for_masks_alone_is_refused(wrong: Recipe) -> None:
    with pytest.raises(SupSupError, match="for masks"):
        LowerBound(nets.FullyConnected((784, 8, 10)), recipe=wrong, device="cpu")
