"""Training one mask with autograd."""

import torch
from torch.nn.functional import cross_entropy

from supsup import Recipe, nets
from supsup.data import Stream
from supsup.frozen import FrozenNet
from supsup.scores import initial_scores
from supsup.training import MaskTraining, train_mask

CPU = torch.device("cpu")


def test_a_step_is_rmsprop_on_the_scores_through_the_mask(stream: Stream) -> None:
    """By hand: the score's gradient is that of the masked weight times the frozen weight."""
    net = FrozenNet(nets.FullyConnected((784, 20, 12)), 0, CPU)
    x, y = stream[0].train.batch(torch.arange(32))
    start = initial_scores(0, "t", net.shapes)
    trainer = MaskTraining(net, start, Recipe(learning_rate=0.01))
    trainer.step(x, y)
    masked = {n: (w * (start[n] >= 0)).requires_grad_() for n, w in net.weights.items()}
    gradients = torch.autograd.grad(cross_entropy(net.run(x, masked), y), list(masked.values()))
    for (name, weight), gradient in zip(net.weights.items(), gradients):
        g = gradient * weight
        expected = start[name] - 0.01 * g / ((0.01 * g * g).sqrt() + 1e-8)
        assert torch.allclose(trainer.scores[name], expected, atol=1e-6)


def test_a_mask_depends_on_seed_name_images_and_recipe_alone(stream: Stream) -> None:
    """What makes resuming, regrouping and other executors possible."""
    recipe = Recipe(steps=5)
    net = FrozenNet(nets.FullyConnected((784, 20, 12)), 0, CPU)
    before = net.checksum
    first = train_mask(net, "a", stream[0].train, recipe).mask()
    train_mask(net, "b", stream[1].train, recipe)
    torch.manual_seed(99)
    again = train_mask(FrozenNet(nets.FullyConnected((784, 20, 12)), 0, CPU), "a", stream[0].train, recipe).mask()
    other = train_mask(net, "c", stream[0].train, recipe).mask()
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert not all(torch.equal(first[n], other[n]) for n in first)
    assert before == FrozenNet(net.module, 0, CPU).checksum
