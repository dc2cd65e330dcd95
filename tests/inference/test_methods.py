"""Every method of task inference against plain autograd through the superposition of k float masks."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from supsup import Inference, SupSupError
from supsup.inference.gradient import Goal, alpha_gradient, choose_layers
from supsup.inference.objectives import LEVELS, OBJECTIVES
from supsup.masks.bank import Bank
from supsup.masks.frozen import FrozenNet
from supsup.nets import FullyConnected
from supsup_paper.bench.bare_masks import infer_indices

METHODS = ("one-shot", "binary", "gamma", "descent", "exhaustive")


@dataclass
class Case:
    """A random network, random masks, random images."""

    net: FrozenNet
    bank: Bank
    masks: list[dict[str, Tensor]]
    x: Tensor
    classes: int
    layers: list[str]

    def gradient(self, images: Tensor, alpha: Tensor, objective: str) -> Tensor:
        """−∂Obj/∂α by autograd, counting only the chosen layers."""
        alpha = alpha.clone().requires_grad_()
        outputs = self.superposed(images, alpha)
        return -torch.autograd.grad(OBJECTIVES[objective](outputs, self.classes).mean(), alpha)[0]

    def tie(self, images: Tensor, alpha: Tensor, objective: str) -> float:
        """How close the two largest probabilities are: which of them M goes by is rounding's choice where they tie."""
        if objective != "M":
            return math.inf
        return min(margin(row, 1) for row in self.superposed(images, alpha).softmax(-1))

    def superposed(self, images: Tensor, alpha: Tensor) -> Tensor:
        """Outputs at Σ αᵢ Mⁱ; a gradient goes through the chosen layers alone."""
        weights = {}
        for name, weight in self.net.weights.items():
            floats = torch.stack([mask[name].float() for mask in self.masks])
            coefficients = alpha if name in self.layers else alpha.detach()
            weights[name] = weight * torch.tensordot(coefficients, floats, 1)
        for name in self.net.statistics:
            weights[name] = torch.tensordot(alpha.detach(), torch.stack([mask[name] for mask in self.masks]), 1)
        return self.net.run(images, weights)


@st.composite
def cases(draw: st.DrawFn, most: int = 60) -> Case:
    torch.manual_seed(draw(st.integers(0, 2**31)))
    depth = draw(st.integers(1, 3))
    widths = [draw(st.integers(2, 12)) for _ in range(depth)] + [draw(st.integers(4, 12))]
    net = FrozenNet(FullyConnected(widths), draw(st.integers(0, 1000)), torch.device("cpu"))
    masks = [
        {name: torch.rand(shape) < 0.5 for name, shape in net.shapes.items()} for _ in range(draw(st.integers(1, most)))
    ]
    bank = Bank(net.shapes)
    for mask in masks:
        bank.add(mask)
    x = 2 * torch.randn(draw(st.integers(1, 4)), draw(st.integers(1, 3)), widths[0])
    layers = draw(st.sets(st.sampled_from(list(net.weights)), min_size=1))
    return Case(net, bank, masks, x, draw(st.integers(1, widths[-1] - 1)), sorted(layers))


@st.composite
def normalised_cases(draw: st.DrawFn) -> Case:
    """A small convolutional network in which every task has statistics of its own."""
    torch.manual_seed(draw(st.integers(0, 2**31)))
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 2), nn.BatchNorm2d(3), nn.Flatten(),
        nn.Linear(3, 6),
    )  # fmt: skip
    net = FrozenNet(module, draw(st.integers(0, 1000)), torch.device("cpu"))
    masks, bank = [], Bank(net.shapes, statistics=net.statistics)
    for _ in range(draw(st.integers(1, 20))):
        masks.append({name: torch.rand(shape) < 0.5 for name, shape in net.shapes.items()})
        for name, value in net.statistics.items():
            masks[-1][name] = 0.3 + torch.rand_like(value) if name.endswith("var") else torch.randn_like(value)
        bank.add(masks[-1])
    x = torch.randn(draw(st.integers(1, 4)), draw(st.integers(1, 3)), 2, 4, 4)
    layers = draw(st.sets(st.sampled_from(list(net.weights)), min_size=1))
    return Case(net, bank, masks, x, draw(st.integers(1, 5)), sorted(layers))


@given(st.one_of(cases(), normalised_cases()), st.sampled_from("HGM"), st.booleans())
def test_the_gradient_equals_autograd(case: Case, objective: str, uniform: bool) -> None:
    k = len(case.masks)
    alpha = torch.full((k,), 1 / k) if uniform else torch.rand(k).softmax(0)
    assume(all(case.tie(images, alpha, objective) > 1e-6 for images in case.x))
    given = None if uniform else alpha
    result = alpha_gradient(case.net, case.bank, case.x, given, Goal(objective, case.classes), case.layers)
    expected = torch.stack([case.gradient(images, alpha, objective) for images in case.x])
    assert (result - expected).norm() <= 1e-5 * expected.norm() + 1e-6


def reference(case: Case, images: Tensor, how: Inference) -> tuple[int, float]:
    """The answer for one decision from the definitions, and how close the closest call on the way was."""
    k = len(case.masks)
    if how.method == "exhaustive":
        values = torch.stack(
            [LEVELS[how.objective](case.net.run(images, case.net.masked(m)), case.classes).mean() for m in case.masks]
        )
        return int(values.argmin()), margin(-values, 1)
    alpha, closest = torch.full((k,), 1 / k), math.inf
    if how.method == "descent":
        for _ in range(how.steps):
            closest = min(closest, case.tie(images, alpha, how.objective))
            moved = (alpha + how.step_size * case.gradient(images, alpha, how.objective)).clamp(min=0)
            alpha = moved / moved.sum() if float(moved.sum()) > 0 else alpha
        return int(alpha.argmax()), min(closest, margin(alpha, 1))
    kept = list(range(k))
    while len(kept) > 1:
        alpha = torch.zeros(k).index_fill_(0, torch.tensor(kept), 1 / len(kept))
        g = case.gradient(images, alpha, how.objective)[kept]
        gamma = {"one-shot": 1 / k, "binary": 0.5, "gamma": how.gamma}[how.method]
        keep = min(len(kept) - 1, max(1, math.ceil(round(gamma * len(kept), 6))))
        closest = min(closest, margin(g, keep), case.tie(images, alpha, how.objective))
        kept = [kept[i] for i in g.argsort(descending=True)[:keep].tolist()]
    return kept[0], closest


def margin(values: Tensor, keep: int) -> float:
    """How far the last value kept is from the first one dropped."""
    ordered = values.sort(descending=True).values
    return float(ordered[keep - 1] - ordered[keep]) if len(values) > keep else math.inf


@settings(max_examples=60)
@pytest.mark.parametrize("method", METHODS)
@given(st.one_of(cases(), normalised_cases()), st.sampled_from("HGM"), st.floats(0.05, 0.95))
def test_every_method_equals_its_definition(method: str, case: Case, objective: str, gamma: float) -> None:
    how = Inference(method, objective, layers=case.layers, gamma=gamma, steps=4)
    result = infer_indices(case.net, case.bank, case.x, None, case.classes, how)
    for images, answer in zip(case.x, result.tolist()):
        expected, closest = reference(case, images, how)
        assert answer == expected or closest < 1e-4


@settings(max_examples=30)
@given(st.one_of(cases(), normalised_cases()), st.sampled_from(METHODS))
def test_among_some_masks_is_as_if_there_were_no_others(case: Case, method: str) -> None:
    members = sorted(torch.randperm(len(case.masks))[: 1 + len(case.masks) // 2].tolist())
    how = Inference(method, "H", steps=3)
    result = infer_indices(case.net, case.bank, case.x, members, case.classes, how)
    alone = infer_indices(case.net, case.bank.subset(members), case.x, range(len(members)), case.classes, how)
    rest = Case(case.net, case.bank, [case.masks[i] for i in members], case.x, case.classes, list(case.net.weights))
    for images, a, b in zip(case.x, result.tolist(), alone.tolist()):
        assert a == members[b] or reference(rest, images, how)[1] < 1e-4


def test_gamma_of_one_in_k_is_one_shot_and_a_half_is_binary() -> None:
    torch.manual_seed(0)
    net = FrozenNet(FullyConnected((8, 10, 9)), 0, torch.device("cpu"))
    bank = Bank(net.shapes)
    for _ in range(20):
        bank.add({name: torch.rand(shape) < 0.5 for name, shape in net.shapes.items()})
    x = torch.randn(50, 1, 8)
    for gamma, method in ((1 / 20, "one-shot"), (0.5, "binary")):
        interpolated = infer_indices(net, bank, x, range(20), 3, Inference("gamma", gamma=gamma))
        named = infer_indices(net, bank, x, range(20), 3, Inference(method))
        assert torch.equal(interpolated, named)


@settings(max_examples=40)
@given(cases(), st.sampled_from("HGM"))
def test_all_coordinates_are_one_shot(case: Case, objective: str) -> None:
    """With every coordinate the short way is the exact one; with few it stays among the candidates asked for."""
    members = range(0, len(case.masks), 2)
    exact = Inference("one-shot", objective, layers=case.layers)
    rest = Case(case.net, case.bank, [case.masks[i] for i in members], case.x, case.classes, case.layers)
    for coordinates in (10**6, 3):
        how = Inference("one-shot", objective, layers=case.layers, coordinates=coordinates)
        result = infer_indices(case.net, case.bank, case.x, members, case.classes, how)
        assert set(result.tolist()) <= set(members)
        if coordinates > 3:
            for images, answer in zip(case.x, result.tolist()):
                expected, closest = reference(rest, images, exact)
                assert answer == members[expected] or closest < 1e-4


def test_choice_of_layers() -> None:
    net = FrozenNet(FullyConnected((4, 4, 4, 4)), 0, torch.device("cpu"))
    names = list(net.weights)
    assert choose_layers(net, "all") == names
    assert choose_layers(net, "first") == names[:1]
    assert choose_layers(net, "last") == names[-1:]
    assert choose_layers(net, [names[2], names[0]]) == [names[0], names[2]]
    for wrong in ("middle", ["no.weight"], []):
        with pytest.raises(SupSupError, match="layers"):
            choose_layers(net, wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"method": "guess"}, "one-shot, binary, gamma, descent, exhaustive"),
        ({"objective": "X"}, "H, G, M"),
        ({"gamma": 1.0}, "above 0 and below 1"),
        ({"method": "binary", "coordinates": 100}, "one-shot"),
        ({"steps": 0}, "steps"),
    ],
)
def test_settings_that_make_no_sense(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(SupSupError, match=message):
        Inference(**wrong)  # type: ignore[arg-type]


def test_defaults_and_limits() -> None:
    assert Inference() == Inference("one-shot", "H", "all", gamma=0.5, steps=20, step_size=0.1, coordinates=None)
    assert Inference(steps=10_000, step_size=1e-30, coordinates=1).steps == 10_000
    for wrong in ({"steps": 10_001}, {"step_size": 0}, {"coordinates": 0}, {"gamma": 0}):
        with pytest.raises(SupSupError, match=next(iter(wrong))):
            Inference(**wrong)  # type: ignore[arg-type]
