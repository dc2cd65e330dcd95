"""Outputs and gradients of residual networks with any weights are those of autograd; kernels run in the interpreter."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from supsup import nets
from supsup_paper.residual.passes import Passes, ResidualFunction

pytest.importorskip("triton")


CPU = torch.device("cpu")
TASKS, BATCH = 2, 4
STYLES: dict[str, dict[str, Any]] = {
    "basic": {},
    "bottleneck": {"bottleneck": True},
    "large images": {"large_images": True},
}


def network(style: str = "basic") -> nets.ResNet:
    return nets.ResNet(3, (1, 1), (5, 8), channels=2, **STYLES[style])


def weights_of(module: nn.Module, shared: set[str]) -> dict[str, Tensor]:
    chance = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(*(() if name in shared else (TASKS,)), *value.shape, generator=chance)
        for name, value in module.named_parameters()
    }


def prepared(module: nets.ResNet, side: int) -> tuple[Passes, Tensor, Tensor]:
    """Passes with a batch, fresh statistics, and the batch as modules see it."""
    chance = torch.Generator().manual_seed(1)
    x = torch.randn(TASKS, BATCH, 2, side, side, generator=chance)
    passes = Passes(module, (2, side, side), TASKS, BATCH, torch.float32, CPU)
    border = (passes.x.shape[2] - side) // 2
    passes.x[:, :, border:-border, border:-border, :2] = x.permute(0, 1, 3, 4, 2)
    for name, statistic in passes.statistics.items():
        statistic[:] = module.get_buffer(name)
    return passes, x, torch.randint(3, (TASKS, BATCH), generator=chance)


def by_autograd(module: nn.Module, weights: Mapping[str, Tensor], shared: set[str], x: Tensor, y: Tensor) -> Any:
    """Outputs, loss of all tasks, and their statistics."""
    outputs, statistics = [], []
    for task in range(TASKS):
        own = {name: value if name in shared else value[task] for name, value in weights.items()}
        buffers = {name: value.clone() for name, value in module.named_buffers()}
        outputs.append(functional_call(module.train(), own | buffers, (x[task],)))
        statistics.append(buffers)
    found = torch.stack(outputs)
    return found, cross_entropy(found.flatten(0, 1), y.flatten()), statistics


@pytest.mark.parametrize(
    ("style", "side", "sharing"), [("basic", 12, False), ("bottleneck", 6, True), ("large images", 10, True)]
)
def test_outputs_gradients_and_statistics_are_those_of_autograd(style: str, side: int, sharing: bool) -> None:
    """Some weights may be one tensor for all tasks, whose gradient is then the sum of theirs."""
    module = network(style)
    names = [name for name, _ in module.named_parameters()]
    shared = {names[0], names[2], names[-1]} if sharing else set()
    weights = {name: value.requires_grad_() for name, value in weights_of(module, shared).items()}
    passes, x, y = prepared(module, side)
    assert style != "basic" or passes.layers[0].splits > 1, "gradients come in shares"
    expected, loss, statistics = by_autograd(module, weights, shared, x, y)
    right = dict(zip(weights, torch.autograd.grad(loss, list(weights.values()))))
    found = ResidualFunction(passes)(weights)
    assert torch.allclose(found, expected, rtol=1e-3, atol=1e-4)
    loss = cross_entropy(found.flatten(0, 1), y.flatten())
    for name, gradient in zip(weights, torch.autograd.grad(loss, list(weights.values()))):
        assert gradient.shape == weights[name].shape
        assert torch.allclose(gradient, right[name], rtol=1e-3, atol=1e-5), name
    for task, buffers in enumerate(statistics):
        for name, statistic in passes.statistics.items():
            assert torch.allclose(statistic[task], buffers[name], rtol=1e-4, atol=1e-5), name


def test_below_a_frozen_trunk_nothing_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads over a frozen trunk are trained by a forward pass and one product."""
    module = network()
    *trunk, head = (name for name, _ in module.named_parameters())
    weights = weights_of(module, set(trunk))
    weights[head].requires_grad_()
    passes, x, y = prepared(module, 8)
    _, loss, _ = by_autograd(module, weights, set(trunk), x, y)
    (right,) = torch.autograd.grad(loss, weights[head])
    monkeypatch.setattr(Passes, "_block_back", None)
    outputs = ResidualFunction(passes)(weights)
    (gradient,) = torch.autograd.grad(cross_entropy(outputs.flatten(0, 1), y.flatten()), weights[head])
    assert torch.allclose(gradient, right, rtol=1e-3, atol=1e-5)
    assert not passes.gradients[:, : -passes.layers[-1].weights].any()


def test_gradients_lie_as_the_weights_do() -> None:
    """An optimiser takes them as they are, without a copy for each layer."""
    module = network()
    weights = {name: value.requires_grad_() for name, value in weights_of(module, set()).items()}
    passes, _, _ = prepared(module, 8)
    ResidualFunction(passes)(weights).sum().backward()
    gradients = [value.grad for value in weights.values()]
    assert all(gradient is not None and gradient.is_contiguous() for gradient in gradients)
    assert len({gradient.untyped_storage().data_ptr() for gradient in gradients if gradient is not None}) == 1
