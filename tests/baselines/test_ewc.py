"""Fisher information by hand is that of one gradient per image."""

import torch

from supsup import Recipe, nets
from supsup.baselines import OnlineEWC
from supsup.baselines.consolidation import importance
from supsup.data import Stream


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
