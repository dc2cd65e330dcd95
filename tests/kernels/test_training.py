"""The Triton kernels, run by Triton's interpreter, against the torch operations that define them."""

import copy

import pytest
import torch
from torch import Tensor

from supsup import Recipe
from supsup.data import Part
from supsup.training.executors import Feed
from supsup.training.fast import batched
from supsup.training.fast.batched import LayerState, ThreadsOfOne

triton_training = pytest.importorskip("supsup.kernels.triton_training", reason="triton is not installed")


def random_feed(tasks: int, steps: int, batch: int, features: int, dtype: torch.dtype) -> Feed:
    images = (torch.rand(20, 2, 1, features // 2) * 255).to(dtype)
    maps = torch.stack([torch.randperm(features) for _ in range(tasks)]).int()
    maps[0, :3], maps[0, 3:5] = -1, -2
    rows = torch.randint(20, (tasks, steps * batch), dtype=torch.int32)
    labels = torch.randint(5, (tasks, steps * batch), dtype=torch.int32)
    part = Part(images, torch.zeros(20).long(), gain=torch.rand(2), offset=torch.randn(2))
    return Feed(part, rows, labels, None, maps, step=torch.tensor([1]).int())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize(("tasks", "batch"), [(3, 5), (2, 301)])  # one image in a program, and several
def test_gather(dtype: torch.dtype, tasks: int, batch: int) -> None:
    torch.manual_seed(0)
    feed = random_feed(tasks, 2, batch, 18, dtype)
    expected, found = (torch.full((tasks, batch, 18), torch.nan) for _ in range(2))
    labels, found_labels = (torch.full((tasks, batch), -1, dtype=torch.int32) for _ in range(2))
    batched.gather(feed, expected, labels)
    assert feed.maps is not None
    shared = (feed.part.images.flatten(1), *feed.by_feature, feed.maps, feed.rows, feed.labels, feed.step)
    triton_training.triton_gather(shared, found, found_labels)
    assert torch.allclose(found, expected)
    assert torch.equal(found_labels, labels)


def test_loss_gradient() -> None:
    torch.manual_seed(0)
    outputs, y = 4 * torch.randn(2, 3, 16), torch.randint(11, (2, 3), dtype=torch.int32)
    leaf = outputs[..., :11].clone().requires_grad_()
    loss = sum(torch.nn.functional.cross_entropy(leaf[t], y[t].long()) for t in range(2))
    (by_autograd,) = torch.autograd.grad(loss, leaf)  # type: ignore[arg-type]
    expected, found = outputs.clone(), outputs.clone()
    batched.loss_gradient(expected, y, 11)
    triton_training.triton_loss_gradient(found, y, 11)
    assert torch.allclose(expected[..., :11], by_autograd, atol=1e-6)
    assert not expected[..., 11:].any()
    assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("relu", [True, False])
def test_forward_and_backward(relu: bool) -> None:
    torch.manual_seed(0)
    inputs, masked = torch.randn(2, 40, 70), torch.randn(2, 33, 70)
    expected, found = (torch.full((2, 40, 33), torch.nan) for _ in range(2))
    batched.forward(inputs, masked, expected, relu)
    triton_training.triton_product(inputs, masked, found, transposed=True, relu=relu)
    assert torch.allclose(found, expected, atol=1e-4)
    delta = torch.randn(2, 40, 33)
    below = batched.backward(delta, masked, inputs)
    assert torch.allclose(below, (delta @ masked) * (inputs > 0), atol=1e-4)
    found = torch.full_like(below, torch.nan)
    triton_training.triton_product(delta, masked, found, gate=inputs)
    assert torch.allclose(found, below, atol=1e-4)


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(),
        Recipe(weight_decay=0.1),
        Recipe("adam", 1e-3),
        Recipe("adam", 1e-3, weight_decay=0.1),
        Recipe("sgd", 0.1),
        Recipe("sgd", 0.1, momentum=0.9, weight_decay=0.01),
        Recipe(second_decay=0.5, epsilon=0.1),
        Recipe("adam", 1e-2, schedule="cosine"),
        Recipe("sgd", 0.1, schedule="cosine", warm_up=0.9),
        Recipe("adam", 1e-3, first_decay=0.5, second_decay=0.7, epsilon=0.1),
    ],
)
def test_update(recipe: Recipe) -> None:
    """Every compiled optimiser takes the plain one's step; numba's runs only where torch has one thread."""
    torch.manual_seed(0)
    tasks, batch, out_size, in_size = 2, 20, 70, 67

    def state() -> Tensor:
        return torch.rand(tasks, out_size, in_size)

    weight = torch.randn(out_size, in_size).sign() * 0.3
    expected = LayerState(
        weight=weight,
        scores=state() - 0.5,
        masked=torch.full((tasks, out_size, in_size), torch.nan),
        first=state() if recipe.optimiser == "adam" or recipe.momentum else None,
        second=state() if recipe.optimiser in ("rmsprop", "adam") else None,
    )
    by_triton, by_numba = copy.deepcopy(expected), copy.deepcopy(expected)
    step, rates = torch.tensor([3], dtype=torch.int32), torch.tensor([recipe.rate(step, 8) for step in range(8)])
    for _ in range(2):
        delta, inputs = torch.randn(tasks, batch, out_size), torch.randn(tasks, batch, in_size)
        gradient = torch.bmm(delta.transpose(1, 2), inputs)
        batched.plain_update(expected, gradient.clone(), recipe, 4, recipe.rate(3, 8))
        with ThreadsOfOne(1) as thread:
            thread.submit(batched.step_scores, by_numba, gradient, recipe, 3, 8).result()
        triton_training.triton_update(by_triton, delta, inputs, step, rates, recipe.rule)
    for name in ("scores", "masked", "first", "second"):
        for found in (by_triton, by_numba):
            a, b = getattr(expected, name), getattr(found, name)
            assert a is b is None or torch.allclose(a, b, atol=1e-5), name
