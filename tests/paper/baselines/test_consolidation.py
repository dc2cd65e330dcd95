"""Outputs of one's own: which are open, and how an answer names its task."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from supsup import Recipe, SupSupError, evaluate, nets
from supsup.data import Part, Stream, Task
from supsup.evaluation.evaluator import learn_and_evaluate
from supsup_paper.baselines import SI, LowerBound, OnlineEWC
from supsup_paper.baselines.consolidation import importance

RECIPE = Recipe("adam", 1e-3, steps=60)


def test_unshared_labels_use_outputs_of_their_own(stream: Stream) -> None:
    model = SI(nets.FullyConnected((784, 60, 30)), labels="unshared", recipe=RECIPE, device="cpu")
    closed = model.begin(stream[0])["open outputs"]
    assert closed.isfinite().tolist() == [True] * 10 + [False] * 20
    for i, task in enumerate(stream[:3]):
        assert model.label_offset(task) == 10 * i
        model.learn(task)
    x, y = stream[2].test.tensors()
    answer = model.predict(x)
    assert set(answer.tasks) <= set(model.tasks)
    assert int(answer.labels.max()) < 10
    assert int(answer.labels.min()) >= 0
    given = model.predict(x, task="permutation-2")
    assert set(given.tasks) == {"permutation-2"}
    assert float((given.labels == y).float().mean()) > 0.7
    unknown = evaluate(model, stream[:3], "GNu", protocol="strict")
    assert unknown.average_accuracy < evaluate(model, stream[:3], "GG").average_accuracy
    with pytest.raises(SupSupError, match="outputs"):
        model.learn(stream[3])


def test_springs_hold_off_forgetting(stream: Stream) -> None:
    """The heart of both methods: the first task is remembered better than without springs."""
    net, recipe = nets.FullyConnected((784, 60, 10)), Recipe("adam", 3e-3, steps=100)
    free = learn_and_evaluate(
        LowerBound(net, heads="single", recipe=recipe, device="cpu"), stream[:3], "GNs", stages=[3]
    )
    ewc = OnlineEWC(net, strength=100.0, images=500, recipe=recipe, device="cpu")
    si = SI(net, strength=10.0, recipe=recipe, device="cpu")
    for model in (ewc, si):
        held = learn_and_evaluate(model, stream[:3], "GNs", stages=[3])
        assert held.per_task["permutation-0"] > free.per_task["permutation-0"] + 0.03


def test_without_strength_there_is_no_spring(stream: Stream) -> None:
    net = nets.FullyConnected((784, 20, 10))
    models = [
        SI(net, strength=0.0, recipe=RECIPE, device="cpu"),
        OnlineEWC(net, strength=0.0, images=9, recipe=RECIPE, device="cpu"),
    ]
    for model in models:
        model.learn_many(stream[:2])
    for name in models[0].weights:
        assert torch.allclose(models[0].shared[name], models[1].shared[name], atol=1e-5)
    assert models[0].bytes == 3 * 4 * (784 * 20 + 20 * 10)


def test_unknown_settings() -> None:
    net = nets.FullyConnected((784, 10))
    with pytest.raises(SupSupError, match="known: shared, unshared"):
        SI(net, labels="none", device="cpu")
    with pytest.raises(SupSupError, match="strength"):
        SI(net, strength=-1.0, device="cpu")


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


def test_defaults_and_limits_of_ewc() -> None:
    """The strength is that of van de Ven and Tolias, of which half counts."""
    net = nets.FullyConnected((784, 10))
    model = OnlineEWC(net, device="cpu")
    assert (model.strength, model.decay, model.images, model.seed) == (50.0, 1.0, None, 0)
    assert (model.recipe, model.labels) == (Recipe("adam", 1e-4), "shared")
    assert OnlineEWC(net, strength=0, decay=0, images=1, device="cpu").strength == 0
    for wrong in ({"strength": -1e-9}, {"decay": -1e-9}, {"decay": 1.01}, {"images": 0}):
        with pytest.raises(SupSupError, match=next(iter(wrong))):
            OnlineEWC(net, device="cpu", **wrong)


def test_paths_add_up_to_the_fall_of_the_loss(stream: Stream) -> None:
    """In small steps over one fixed batch: Σ −gradient · movement is how far the loss came down."""
    train = stream[0].train
    small = type(stream[0])(
        "few", type(train)(train.images[:64], train.labels[:64], train.gain, train.offset), train, 10
    )
    recipe = Recipe("sgd", 1e-3, steps=50, batch_size=64)
    model = SI(nets.FullyConnected((784, 9, 10)), damping=1.0, recipe=recipe, device="cpu")
    x, y = small.train.tensors()
    start = float(cross_entropy(model.run(model.shared, x), y))
    before = {name: value.clone() for name, value in model.shared.items()}
    model.learn(small)
    fall = start - float(cross_entropy(model.run(model.shared, x), y))
    paths = [
        (model.memory[importance(name)] * ((model.shared[name] - before[name]) ** 2 + 1.0)).sum()
        for name in model.weights
    ]
    assert fall > 0.01
    assert abs(float(torch.stack(paths).sum()) - fall) < 0.05 * fall


def test_defaults_and_limits_of_si() -> None:
    net = nets.FullyConnected((784, 10))
    model = SI(net, device="cpu")
    assert (model.strength, model.damping, model.seed, model.labels) == (5.0, 0.1, 0, "shared")
    for wrong in ({"strength": -1e-9}, {"damping": 0}):
        with pytest.raises(SupSupError, match=next(iter(wrong))):
            SI(net, device="cpu", **wrong)
