"""The paper's analysis of its objectives, held for random outputs."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy

from supsup import SupSupError
from supsup.inference.candidates import Margin
from supsup.inference.objectives import LEVELS, OBJECTIVES
from supsup.inference.objectives import gradient as closed_form
from supsup.inference.profiles.profile import CALIBRATED


@st.composite
def outputs_and_classes(draw: st.DrawFn) -> tuple[Tensor, int]:
    size = draw(st.integers(2, 40))
    values = draw(st.lists(st.floats(-20, 20), min_size=size, max_size=size))
    return torch.tensor(values, dtype=torch.float64), draw(st.integers(1, size - 1))


def gradient(name: str, y: Tensor, classes: int) -> Tensor:
    y = y.clone().requires_grad_()
    return torch.autograd.grad(OBJECTIVES[name](y, classes), y)[0]


@given(outputs_and_classes(), st.sampled_from("HGM"))
def test_the_closed_form_gradient_is_that_of_autograd(case: tuple[Tensor, int], name: str) -> None:
    y, classes = case
    assert torch.allclose(closed_form(name, y, classes), gradient(name, y, classes), atol=1e-10)


@given(outputs_and_classes(), st.integers(0, 1000))
def test_lemma_1(case: tuple[Tensor, int], label: int) -> None:
    """∂G/∂y is the gradient of the training loss on every superfluous output and 0 on the real ones."""
    y, classes = case
    trained = y.clone().requires_grad_()
    loss = cross_entropy(trained, torch.tensor(label % classes))
    (expected,) = torch.autograd.grad(loss, trained)
    result = gradient("G", y, classes)
    assert torch.allclose(result[classes:], expected[classes:], atol=1e-12)
    assert not result[:classes].any()


@given(outputs_and_classes())
def test_entropy_decomposes_into_minus_the_mean_output_plus_g(case: tuple[Tensor, int]) -> None:
    y, classes = case
    expected = -(y.softmax(-1) * y).sum(-1) + OBJECTIVES["G"](y, classes)
    assert torch.allclose(OBJECTIVES["H"](y, classes), expected, atol=1e-9)


@given(outputs_and_classes())
def test_m_is_minus_the_largest_probability(case: tuple[Tensor, int]) -> None:
    y, classes = case
    assert torch.allclose(OBJECTIVES["M"](y, classes), -y.softmax(-1).max())


@given(outputs_and_classes())
def test_the_level_of_g_is_the_share_of_the_superfluous_outputs(case: tuple[Tensor, int]) -> None:
    y, classes = case
    assert torch.allclose(LEVELS["G"](y, classes).exp(), y.softmax(-1)[classes:].sum(), atol=1e-12)


def test_g_needs_superfluous_outputs() -> None:
    with pytest.raises(SupSupError, match="more than 10 outputs"):
        OBJECTIVES["G"](torch.zeros(3, 10), 10)


def test_levels_for_finding_a_task_are_of_its_own_classes() -> None:
    """−log Σ exp, and −(log p of the surest class + 0.3 · energy): by hand, the outputs after the classes left out."""
    outputs = torch.tensor([[1.0, -2.0, 9.0], [0.5, 0.5, -3.0]])
    for row, (first, second, _) in enumerate(outputs.tolist()):
        energy = math.log(math.exp(first) + math.exp(second))
        surest = max(first, second) - energy
        assert CALIBRATED["energy"](outputs, 2)[row].item() == pytest.approx(energy)
        assert CALIBRATED["mixture"](outputs, 2)[row].item() == pytest.approx(surest + 0.3 * energy)


@pytest.mark.parametrize("k", [4, 5, 9, 60])
def test_confidence_is_the_chance_that_the_best_of_the_others_is_worse(k: int) -> None:
    """From the others' own mean and deviation, though those of all are what is at hand."""
    scores = torch.randn(6, k, generator=torch.Generator().manual_seed(k)).double()
    best = scores.max(1)
    found = Margin.of(best.values, scores).confidence()
    for row, index, confidence in zip(scores, best.indices.tolist(), found.tolist()):
        others = torch.cat([row[:index], row[index + 1 :]])
        deviations = (row[index] - others.mean()) / others.std(correction=0)
        assert confidence == pytest.approx(float(torch.special.ndtr(deviations) ** (k - 1)), rel=1e-4)


@pytest.mark.parametrize("k", [2, 3])
def test_confidence_among_few_is_a_softmax_against_the_mean_of_the_others(k: int) -> None:
    scores = torch.tensor([[1.5, -0.5, 0.25][:k]])
    rest = scores[0, 1:].mean()
    expected = 1 / (1 + (k - 1) * float((rest - 1.5).exp()))
    assert float(Margin.of(scores[:, 0], scores).confidence()) == pytest.approx(expected)
