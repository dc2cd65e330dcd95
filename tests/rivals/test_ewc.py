"""Fisher information by hand is that of one gradient per image."""

import pytest
import torch
from torch import nn

from supsup import Recipe, SupSupError, nets
from supsup.data import Part, Stream, Task
from supsup_paper.baselines import OnlineEWC
from supsup_paper.baselines.consolidation import importance


def test_by_hand_is_by_autograd(stream: Stream) -> None:
    model = OnlineEWC(nets.FullyConnected((784, 9, 7, 30)), labels="unshared", recipe=Recipe(steps=20), device="cpu")
    state = model.begin(stream[0])
    x = stream[0].train.batch(torch.arange(6))[0]
    by_hand, by_autograd = model.by_hand(state, x), model.by_autograd(state, x)
    one_by_one = {name: torch.zeros_like(value) for name, value in by_hand.items()}
    for image in x:
        weights = {name: state[name].clone().requires_grad_() for name in model.weights}
        outputs = model.run(state | weights, image[None])
        loss = torch.nn.functional.cross_entropy(outputs, outputs.argmax(1))
        for name, gradient in zip(weights, torch.autograd.grad(loss, list(weights.values()))):
            one_by_one[name] += gradient**2
    for name, expected in one_by_one.items():
        assert torch.allclose(by_hand[name], expected, rtol=1e-3, atol=1e-7)
        assert torch.allclose(by_autograd[name], expected, rtol=1e-3, atol=1e-7)


def test_information_adds_up_and_fades(stream: Stream) -> None:
    def learned(decay: float) -> OnlineEWC:
        model = OnlineEWC(
            nets.FullyConnected((784, 9, 10)),
            strength=0.0,
            decay=decay,
            images=20,
            recipe=Recipe(steps=5),
            device="cpu",
        )
        model.learn(stream[0])
        return model

    fading, kept = learned(0.25), learned(1.0)
    first = kept.memory[importance(kept.head)].clone()
    for model in (fading, kept):
        model.learn(stream[1])
    second = kept.memory[importance(kept.head)] - first
    assert torch.allclose(fading.memory[importance(kept.head)], 0.25 * first + second, atol=1e-6)


@pytest.mark.parametrize("number", [1, 4, 300])
def test_information_is_a_mean_over_images(number: int, stream: Stream) -> None:
    """λ = 5 was found for a mean: a sum over 60,000 images would hold every weight where it is."""
    image = stream[0].train.batch(torch.arange(1))[0]
    part = Part(image.expand(number, *image.shape[1:]).contiguous(), torch.zeros(number, dtype=torch.int64))
    model = OnlineEWC(nets.FullyConnected((784, 9, 10)), recipe=Recipe(steps=1), device="cpu")
    task = Task("same", part, part, 10)
    state = model.begin(task)
    alone = model.by_autograd(state, image)
    for name, found in model.importances(task, state).items():
        assert torch.allclose(found, alone[name], rtol=1e-3, atol=1e-8)


def test_information_by_autograd_is_the_same_mean(stream: Stream, convolutional: nn.Module) -> None:
    """Any module: in pieces of few images, of as many as are asked for."""
    x, y = stream[0].train.batch(torch.arange(40))
    part = Part(x, y % 5)
    model = OnlineEWC(convolutional, images=20, recipe=Recipe(steps=1), device="cpu")
    task = Task("t", part, part, 5)
    state = model.begin(task)
    found = model.importances(task, state)[model.head]
    model.images = None
    assert float(model.importances(task, state)[model.head].sum() / found.sum()) == pytest.approx(1, abs=0.5)


def test_fisher_information_is_of_one_image_at_least() -> None:
    assert OnlineEWC(nets.FullyConnected((4, 3, 2)), images=1, device="cpu").images == 1
    with pytest.raises(SupSupError, match="images"):
        OnlineEWC(nets.FullyConnected((4, 3, 2)), images=0, device="cpu")


def test_defaults_and_limits() -> None:
    """The strength is that of van de Ven and Tolias, of which half counts."""
    net = nets.FullyConnected((784, 10))
    model = OnlineEWC(net, device="cpu")
    assert (model.strength, model.decay, model.images, model.seed) == (50.0, 1.0, None, 0)
    assert (model.recipe, model.labels) == (Recipe("adam", 1e-4), "shared")
    assert OnlineEWC(net, strength=0, decay=0, images=1, device="cpu").strength == 0
    for wrong in ({"strength": -1e-9}, {"decay": -1e-9}, {"decay": 1.01}, {"images": 0}):
        with pytest.raises(SupSupError, match=next(iter(wrong))):
            OnlineEWC(net, device="cpu", **wrong)
