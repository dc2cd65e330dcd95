"""Training one mask with autograd."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from supsup import Recipe, nets
from supsup.data import Stream
from supsup.masks.frozen import FrozenNet
from supsup.masks.scores import initial_scores
from supsup.training import MaskTraining, train_mask
from supsup.training.plain import PlainTraining

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


def test_the_rate_of_each_step_is_that_of_the_recipe(stream: Stream) -> None:
    """Counted from the first batch to the last; figures are of the batch before its step."""
    net = FrozenNet(nets.FullyConnected((784, 20, 12)), 0, CPU)
    recipe, seen = Recipe("sgd", 0.5, steps=6, batch_size=8, schedule="cosine", warm_up=0.4), list[float]()

    def after_step(training: PlainTraining) -> None:
        seen.append(training.optimiser.param_groups[0]["lr"])
        assert training.done == len(seen)

    training = train_mask(net, "a", stream[0].train, recipe, after_step)
    assert seen == pytest.approx([recipe.rate(step, 6) for step in range(6)])
    x, y = stream[0].train.batch(torch.arange(40))
    outputs = net.run(x, net.masked(training.mask()))
    training.step(x, y)
    loss, accuracy = training.figures()
    assert loss == pytest.approx(float(cross_entropy(outputs, y)), rel=1e-4)
    assert accuracy == pytest.approx(float((outputs.argmax(1) == y).float().mean()))


def test_labels_may_be_shifted(stream: Stream) -> None:
    net = FrozenNet(nets.FullyConnected((784, 20, 12)), 0, CPU)
    start, shown = initial_scores(0, "t", net.shapes), list[torch.Tensor]()
    training = MaskTraining(net, start, Recipe(steps=2, batch_size=8))
    step = training.step
    training.step = lambda x, y: (shown.append(y), step(x, y))[1]  # type: ignore[method-assign,func-returns-value]
    training.run("t", stream[0].train, offset=2)
    training.run("t", stream[0].train)
    assert torch.equal(torch.stack(shown[:2]), torch.stack(shown[2:]) + 2)
    assert training.steps == 2
    assert MaskTraining(net, start, Recipe(steps=2), 7).steps == 7


def test_layers_that_draw_are_trained_with_and_without_numbers_of_their_own(stream: Stream) -> None:
    """Observed batches have no task to draw for: they draw from torch's generator as it is."""
    net = FrozenNet(nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(784, 12)), 0, CPU)
    x, y = stream[0].train.batch(torch.arange(16))
    start, ended = initial_scores(0, "t", net.shapes), list[torch.Tensor]()
    for seed in (0, 0, 1):
        training = MaskTraining(net, start, Recipe(learning_rate=0.1))
        torch.manual_seed(seed)
        training.step(x, y)
        ended.append(training.scores["2.weight"].clone())
    assert torch.equal(ended[0], ended[1])
    assert not torch.equal(ended[0], ended[2])
    assert not torch.equal(ended[0], start["2.weight"])
    before = torch.get_rng_state()
    one, other = (train_mask(net, "a", stream[0].train, Recipe(steps=3, batch_size=8)).scores for _ in range(2))
    assert torch.equal(one["2.weight"], other["2.weight"])
    assert torch.equal(torch.get_rng_state(), before)
