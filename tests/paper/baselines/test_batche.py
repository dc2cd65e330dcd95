"""BatchE: W is frozen after the first task, a task is two vectors per layer, and nothing is forgotten."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from supsup import Recipe, SupSupError, evaluate, nets
from supsup.data import Stream
from supsup_paper.baselines import BatchE
from supsup_paper.baselines.batche import rank_one

RECIPE = Recipe("adam", 1e-2, steps=100, weight_decay=1e-4)


def small(**settings: object) -> BatchE:
    return BatchE(nets.FullyConnected((784, 100, 10)), recipe=RECIPE, device="cpu", **settings)  # type: ignore[arg-type]


def test_w_is_trained_on_the_first_task_only(stream: Stream) -> None:
    model = small()
    initial = {name: value.clone() for name, value in model.shared.items()}
    assert model.recipe_of_next().learning_rate == 1e-4
    model.learn(stream[0])
    first = {name: value.clone() for name, value in model.shared.items()}
    assert not any(torch.equal(initial[name], value) for name, value in first.items())
    assert model.recipe_of_next().learning_rate == 1e-2
    model.learn_many(stream[1:4])
    assert all(torch.equal(first[name], value) for name, value in model.shared.items())
    assert evaluate(model, stream[:4], "GG").average_accuracy > 0.6


def test_random_w_is_never_trained_and_never_stored(stream: Stream) -> None:
    model = small(base="random")
    initial = {name: value.clone() for name, value in model.shared.items()}
    model.learn_many(stream[:3])
    assert all(torch.equal(initial[name], value) for name, value in model.shared.items())
    assert model.bytes == 3 * 4 * (784 + 100 + 100 + 10)
    assert evaluate(model, stream[:3], "GG").average_accuracy > 0.5


def test_the_vectorised_form_is_the_product_with_a_rank_one_matrix(stream: Stream) -> None:
    model = small()
    state = model.begin(stream[0])
    state = {name: value + 0.1 * torch.randn_like(value) for name, value in state.items()}
    x = torch.randn(7, 784)
    fast = model.run_side_by_side({name: value[None] for name, value in state.items()}, x[None])[0]
    assert torch.allclose(fast, model.run(state, x), atol=1e-4)


def test_rank_one_matrices_of_convolutions(convolutional: nn.Module, split: Stream) -> None:
    model = BatchE(convolutional, recipe=RECIPE, device="cpu")
    state = model.begin(split[0])
    out, inputs = state["out/conv.weight"], state["in/conv.weight"]
    x = torch.randn(3, 1, 28, 28)
    scaled = torch.conv2d(x * inputs.view(1, -1, 1, 1), state["conv.weight"], stride=4) * out.view(1, -1, 1, 1)
    weight = model.effective(state)["conv.weight"]
    assert torch.allclose(torch.conv2d(x, weight, stride=4), scaled, atol=1e-5)
    assert rank_one(out, inputs, 4).shape == (4, 1, 1, 1)


def test_vectors_begin_as_signs_of_their_own(stream: Stream) -> None:
    model = small()
    a, b = model.begin(stream[0]), model.begin(stream[1])
    vectors = [name for name in a if name not in model.shared]
    assert len(vectors) == 4
    for name in vectors:
        assert set(a[name].tolist()) == {1.0, -1.0}
        assert not torch.equal(a[name], b[name])


def test_bytes_with_heads_of_their_own(stream: Stream) -> None:
    model = small(last="head")
    model.learn_many(stream[:2])
    assert model.bytes == 4 * 784 * 100 + 2 * 4 * (784 + 100 + 100 * 10)


def test_at_an_earlier_stage_only_the_tasks_learned_by_then_come_into_question(stream: Stream) -> None:
    """Otherwise the curve over stages would show the last one's difficulty at every stage."""
    model = BatchE(nets.FullyConnected((784, 20, 10)), recipe=Recipe(steps=2), device="cpu")
    model.learn_many(stream[:3])
    graded = evaluate(model, stream[:3], "GNu", protocol="strict", stages=[1, 3])
    assert graded.grades[0]["permutation-0"].inferred == 1
    assert graded.grades[1]["permutation-0"].inferred < 0.9, "a test that could fail"
    images = stream[2].test.tensors()[0]
    assert set(model.predict(images, among=["permutation-1"]).tasks) == {"permutation-1"}


def test_unknown_settings() -> None:
    model = BatchE(nets.FullyConnected((4, 3)), recipe=Recipe(steps=1), device="cpu")
    model.own["t"] = {}
    with pytest.raises(SupSupError, match="unknown inference setting"):
        model.infer_task(torch.zeros(1, 4), speed=3)
    with pytest.raises(SupSupError, match="known: trained, random"):
        small(base="other")
    with pytest.raises(SupSupError, match="known: rank-one, head"):
        small(last="other")


def test_defaults() -> None:
    """The paper's for MNIST: W trained with a hundredth of the rate of the vectors."""
    net = nets.FullyConnected((784, 10))
    model, random = BatchE(net, device="cpu"), BatchE(net, base="random", device="cpu")
    recipe = Recipe("adam", 1e-2, weight_decay=1e-4)
    assert (model.base, model.last, model.seed, model.filling) == ("trained", "rank-one", 0, "kaiming_normal")
    assert (model.recipe, model.first) == (recipe, replace(recipe, learning_rate=1e-4))
    assert (random.recipe, random.filling) == (recipe, "kaiming_uniform")
    assert (model.independent, model.first_matters, random.first_matters) == (True, True, False)
