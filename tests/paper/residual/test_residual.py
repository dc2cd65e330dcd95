"""Residual networks trained by hand agree with autograd; Triton's kernels run in its interpreter here."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from supsup import data, nets
from supsup.masks.frozen import FrozenNet
from supsup.masks.scores import initial_scores, soft_mask
from supsup.training import Job, MaskTraining, Recipe

pytest.importorskip("triton")

from supsup.data import Augmentation, Part
from supsup.training.executors import Feed
from supsup_paper.residual import layers
from supsup_paper.residual import passes as passes_module
from supsup_paper.residual.executor import ResidualTrainer, knows

CPU = torch.device("cpu")
RECIPE = Recipe("adam", 1e-2, steps=4, weight_decay=1e-3, schedule="cosine", selection="edge-popup", budget=2)


@pytest.fixture(scope="module")
def net() -> FrozenNet:
    return FrozenNet(nets.ResNet(3, (1, 1), (4, 8), channels=2), 0, CPU)


def started(net: FrozenNet, tasks: list[str], recipe: Recipe, batch: int = 6, side: int = 8) -> ResidualTrainer:
    kept = [[recipe.kept(shape) for shape in net.shapes.values()] for _ in tasks]
    trainer = ResidualTrainer(net, (2, side, side), kept, recipe, batch, recipe.steps, torch.float32)
    each = [initial_scores(0, name, net.shapes) for name in tasks]
    trainer.start({name: torch.stack([scores[name] for scores in each]) for name in net.shapes})
    return trainer


@pytest.mark.parametrize(("epsilon", "momentum"), [(1e-5, 0.1), (0.3, 0.1), (1e-5, 0.6)])
def test_normalisation_is_that_of_the_module(epsilon: float, momentum: float) -> None:
    """A layer's own ε and momentum count, not the usual ones."""
    module = nets.ResNet(3, (1, 1), (4, 8), channels=2)
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.eps, layer.momentum = epsilon, momentum
    net = FrozenNet(module, 0, CPU)
    assert knows(net, [Job(data.split(data.digits(), 5)[0], RECIPE)])
    compare_gradients(net, batch=6, side=8)


def batches(tasks: int, batch: int = 6, side: int = 8) -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(1)
    x = torch.randn(tasks, batch, 2, side, side, generator=chance)
    return x, torch.randint(3, (tasks, batch), generator=chance)


def load(trainer: ResidualTrainer, x: Tensor, y: Tensor) -> None:
    border = (trainer.passes.x.shape[2] - x.shape[3]) // 2
    trainer.passes.x[:, :, border:-border, border:-border, :2] = x.permute(0, 1, 3, 4, 2)
    trainer.passes.y.copy_(y)


def test_gradients_of_every_layer_are_those_of_autograd(net: FrozenNet) -> None:
    compare_gradients(net, batch=6, side=8)


@pytest.mark.parametrize(("bottleneck", "large_images", "side"), [(True, False, 6), (True, True, 9), (False, True, 10)])
def test_gradients_of_other_networks_are_those_of_autograd(
    bottleneck: bool, large_images: bool, side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bottlenecks, the stem for large images with its max-pooling, odd sizes, channels that one program cannot hold."""
    monkeypatch.setattr(layers, "_CHANNELS", 16)
    module = nets.ResNet(3, (1, 1), (5, 6), bottleneck, large_images, channels=2)
    compare_gradients(FrozenNet(module, 0, CPU), batch=2, side=side)


def compare_gradients(net: FrozenNet, batch: int, side: int) -> None:
    trainer = started(net, ["one", "two"], RECIPE, batch, side)
    x, y = batches(2, batch, side)
    load(trainer, x, y)
    trainer.differentiate()
    for i, task in enumerate(("one", "two")):
        scores = initial_scores(0, task, net.shapes)
        masks = {name: soft_mask(value, RECIPE.kept(value.shape)) for name, value in scores.items()}
        weights = {name: weight.requires_grad_() for name, weight in net.masked(masks).items()}
        statistics = {name: value.clone() for name, value in net.statistics.items()}
        with net.training() as module:
            loss = cross_entropy(net.run(x[i], weights | statistics, module), y[i])
        expected = dict(zip(weights, torch.autograd.grad(loss, list(weights.values()))))
        for layer in trainer.layers:
            start = layer.gradient_first
            parts = trainer.gradients[i : i + 1, start : start + layer.splits * layer.weights]
            found = layer.from_flat(parts.view(layer.splits, layer.weights).sum(0)[None])[0]
            assert torch.allclose(found, expected[layer.name], rtol=1e-3, atol=1e-5), layer.name
        for name, rows in trainer.statistics().items():
            assert torch.allclose(rows[i], statistics[name], rtol=1e-4, atol=1e-5), name


@pytest.mark.parametrize("recipe", [RECIPE, Recipe("adam", 1e-2, steps=4)])
def test_a_few_steps_end_with_the_scores_and_masks_of_the_plain_path(net: FrozenNet, recipe: Recipe) -> None:
    trainer = started(net, ["one", "two"], recipe)
    plain = [MaskTraining(net, initial_scores(0, name, net.shapes), recipe) for name in ("one", "two")]
    x, y = batches(2)
    load(trainer, x, y)
    for _ in range(3):
        trainer.step()
        for i, other in enumerate(plain):
            other.step(x[i], y[i])
    for i, other in enumerate(plain):
        for name, found in trainer.final_scores().items():
            near = torch.isclose(found[i], other.scores[name], rtol=1e-3, atol=1e-4).float().mean()
            assert near > 0.98, name  # Adam's first steps have the sign of a gradient, however small
        agreeing = [(trainer.masks()[name][i] == mask).float().mean() for name, mask in other.mask().items()]
        assert min(agreeing) > 0.97
        counts = [int(mask[i].sum()) for mask in trainer.masks().values()]
        assert counts == [int(mask.sum()) for mask in other.mask().values()] or recipe.selection == "threshold"


@pytest.mark.parametrize("selection", [{}, {"selection": "edge-popup", "budget": 2.0}])
@pytest.mark.parametrize(
    "kind", [{"optimiser": "rmsprop"}, {"optimiser": "sgd"}, {"optimiser": "sgd", "momentum": 0.9}]
)
def test_every_optimiser_steps_as_that_of_torch(kind: dict[str, Any], selection: dict[str, Any]) -> None:
    net = FrozenNet(nets.ResNet(3, (1,), (4,), channels=2), 0, CPU)
    recipe = Recipe(**kind, learning_rate=0.1, steps=4, weight_decay=0.1, schedule="cosine", **selection)
    trainer = started(net, ["one"], recipe, batch=2)
    scores = {name: value.requires_grad_() for name, value in initial_scores(0, "one", net.shapes).items()}
    optimiser = recipe.build(scores.values())
    chance = torch.Generator().manual_seed(2)
    for step in range(3):
        trainer.gradients.zero_()
        for layer in trainer.layers:
            gradient = torch.randn(net.shapes[layer.name], generator=chance)
            span = slice(layer.gradient_first, layer.gradient_first + layer.weights)
            trainer.gradients[:, span] = layer.to_flat(gradient[None])[:, : layer.weights]
            own = scores[layer.name]
            masked = net.weights[layer.name] * soft_mask(own, recipe.kept(own.shape))
            (own.grad,) = torch.autograd.grad(masked, own, gradient)
        optimiser.param_groups[0]["lr"] = recipe.rate(step, 4)
        optimiser.step()
        trainer._update()
        trainer.step_count += 1
    for name, found in trainer.final_scores().items():
        assert torch.allclose(found[0], scores[name], rtol=1e-4, atol=1e-6), name


def test_the_selection_is_exactly_the_largest(net: FrozenNet) -> None:
    trainer = started(net, ["a", "b", "c"], RECIPE)
    for layer in trainer.layers:
        span = slice(layer.first, layer.first + layer.weights)
        chosen = layer.from_flat((trainer.masked != 0).float()[:, layer.first : layer.first + layer.blocks * 1024])
        assert torch.equal(chosen.bool(), trainer.masks()[layer.name])
        assert int((trainer.masked[0, span] != 0).sum()) == RECIPE.kept(net.shapes[layer.name])


def test_a_batch_is_cropped_mirrored_and_normalised(net: FrozenNet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes_module, "_PIXELS", 64)  # an image is written by several programs
    trainer = started(net, ["a", "b"], RECIPE, batch=2)
    chance = torch.Generator().manual_seed(0)
    images = torch.randint(256, (5, 2, 8, 8), dtype=torch.uint8, generator=chance)
    rows = torch.tensor([[4, 1, 0, 2], [3, 3, 1, 0]], dtype=torch.int32)
    crops = torch.tensor([[[0, 3, 1], [1, 0, 0], [2, 2, 1], [2, 4, 0]], [[4, 4, 1], [0, 0, 0], [1, 3, 1], [4, 0, 1]]])
    draws = (crops[..., 0] + 256 * crops[..., 1] + 65536 * crops[..., 2]).int()
    gain, offset = torch.tensor([0.01, 0.02]), torch.tensor([-1.0, 0.5])
    part = Part(images, torch.zeros(5).long(), gain, offset, augmentation=Augmentation(padding=2, flip=True))
    feed = Feed(part, rows, rows % 3, draws, None, step=torch.zeros(1).int())
    trainer.step_count += 1
    trainer.step = lambda: None  # type: ignore[method-assign]
    trainer.step_from(feed)
    surrounded = torch.nn.functional.pad(images, (2, 2, 2, 2))
    for task in range(2):
        for place in range(2):
            line, column, mirrored = crops[task, 2 + place].tolist()
            image = surrounded[rows[task, 2 + place], :, line : line + 8, column : column + 8].float()
            image = image.flip(-1) if mirrored else image
            expected = image * gain[:, None, None] + offset[:, None, None]
            assert torch.allclose(trainer.passes.x[task, place, 1:-1, 1:-1, :2].permute(2, 0, 1), expected)
            assert not trainer.passes.x[task, place, :, :, 2:].any()
    assert torch.equal(trainer.passes.y, rows[:, 2:] % 3)
