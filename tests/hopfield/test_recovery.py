"""Recovery: what the paper's steps are, and what several starts add to them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from supsup import HopSupSup, Recovery, SupSupError, nets
from supsup.data import Task
from supsup.hopfield import units as recovery
from supsup.hopfield.memory import energy, settle, to_bipolar
from supsup.hopfield.units import mean_entropy, recombined, recover, start_strings
from supsup.inference.objectives import entropy
from supsup.nets.fully_connected import many_outputs

Hop = tuple[HopSupSup, list[Task], list[list[Tensor]]]


def by_hand(model: HopSupSup, x: Tensor, steps: int) -> list[Tensor]:
    """The protocol line by line, for one model: SGD written out, the energy's gradient in closed form."""
    z = [mean.clone() for mean in model.mean]
    speed = [torch.zeros_like(mean) for mean in model.mean]
    weights = [weight[None] for weight in model.net.weights.values()]
    for t in range(1, steps + 1):
        images = x[(torch.arange(64) + (t - 1) * 64) % len(x)]
        binary = [to_bipolar(string).requires_grad_() for string in z]
        units = [((string + 1) / 2)[None, None] for string in binary]
        unsure = entropy(many_outputs(weights, images[None, None], units), 0).mean()
        pulls = torch.autograd.grad(unsure, binary)
        for layer, pull in enumerate(pulls):
            downhill = -model.psi[layer] @ binary[layer].detach()
            gradient = 1.5e-3 * t / steps * downhill + (1 - t / steps) * pull + 1e-4 * z[layer]
            speed[layer] = 0.9 * speed[layer] + gradient
            z[layer] = z[layer] - 500 * speed[layer]
    return z


def test_the_papers_procedure_is_the_protocol(hop: Hop) -> None:
    model, tasks, _ = hop
    x = tasks[0].test.tensors()[0]
    found = model.recover(x, procedure="paper", history=True)
    expected = by_hand(model, x.flatten(1), steps=30)
    for units, z in zip(found.units, expected):
        assert (units[0] == (z >= 0)).float().mean() > 0.99  # sums are taken in another order
    assert found.history is not None
    assert found.history.shape == (30, 1, 1024)
    assert torch.equal(found.history[-1, 0], torch.cat(found.units, dim=-1)[0])


def test_several_starts_find_the_mask_exactly(hop: Hop) -> None:
    model, tasks, masks = hop
    for task, learned in zip(tasks, masks):
        found = model.recover(task.test.tensors()[0], procedure="best-of")
        for units, true in zip(found.units, learned):
            assert torch.equal(units, true)


def test_no_end_of_several_is_worse_than_the_papers(hop: Hop) -> None:
    """By the only measure there is without labels; and it is a minimum of the energy."""
    model, tasks, _ = hop
    x = tasks[1].test.tensors()[0].flatten(1)
    plain, better = (model.recover(x.view(-1, 1, 28, 28), procedure=name) for name in ("paper", "best-of"))
    assert better.entropy <= plain.entropy + 0.02
    z = [units.float() * 2 - 1 for units in better.units]
    total = torch.zeros(1)
    for psi, string in zip(model.psi, z):
        assert torch.equal(settle(psi, string), string)
        total += energy(psi, string)
    torch.testing.assert_close(better.energy, total)
    weights = [weight[None] for weight in model.net.weights.values()]
    again = mean_entropy(weights, x, [string[:, None] for string in z], batch_size=64)
    torch.testing.assert_close(better.entropy, again[0])


def test_layers_that_ended_in_different_tasks_are_put_together(hop: Hop) -> None:
    """A memory whose every start leads to one right layer only still gives the right mask."""
    model, tasks, masks = hop
    weights = [weight[None] for weight in model.net.weights.values()]
    psi = [matrix[None] for matrix in model.psi]
    x = tasks[0].test.tensors()[0].flatten(1)
    (a1, a2), (b1, b2) = ([mask.float() * 2 - 1 for mask in learned] for learned in masks)
    ends = [settle(psi[0], torch.stack([a1, b1], dim=1)), settle(psi[1], torch.stack([b2, a2], dim=1))]
    best = recombined(weights, x, ends, 64)
    assert torch.equal(best[0], a1)
    assert torch.equal(best[1], a2)


def test_combinations_are_judged_on_every_image_where_there_are_few() -> None:
    for seed in range(12):
        chance = torch.Generator().manual_seed(seed)
        weights = [torch.randn(1, b, a, generator=chance) for a, b in ((20, 30), (30, 24), (24, 6))]
        ends = [to_bipolar(torch.randn(1, 3, width, generator=chance)) for width in (30, 24)]
        x = torch.randn(4, 20, generator=chance)
        choices = [(i, j) for i in range(3) for j in range(3)]
        levels = [mean_entropy(weights, x, [ends[0][:, [i]], ends[1][:, [j]]], 64).item() for i, j in choices]
        i, j = choices[levels.index(min(levels))]
        first, second = recombined(weights, x, ends, 64)
        assert torch.equal(first, ends[0][:, i])
        assert torch.equal(second, ends[1][:, j])


def test_starts_are_the_mean_and_strings_around_it() -> None:
    mean = [torch.tensor([[-1.0, -0.5, 0.5, 1.0]])]
    (starts,) = start_strings(mean, 50)
    assert torch.equal(starts[:, 0], mean[0])
    sure = to_bipolar(starts[0])[:, [0, 3]]
    assert torch.equal(sure, torch.tensor([[-1.0, 1.0]]).expand(50, 2))  # units on which all masks agree stay
    assert to_bipolar(starts[0])[:, 1].unique().numel() == 2
    assert torch.equal(start_strings(mean, 50)[0], starts)


def test_models_recover_together_as_alone() -> None:
    chance = torch.Generator().manual_seed(0)
    weights = [torch.randn(2, b, a, generator=chance) for a, b in ((20, 30), (30, 24), (24, 6))]
    z = [to_bipolar(torch.randn(2, width, generator=chance)) for width in (30, 24)]
    psi = [string[:, :, None] * string[:, None, :] / string.shape[1] for string in z]
    x, how = torch.randn(90, 20, generator=chance), Recovery(starts=3)
    both = recover(weights, psi, z, x, how, False)
    for index in range(2):
        rows = slice(index, index + 1)
        mine = [[part[rows] for part in parts] for parts in (weights, psi, z)]
        alone = recover(mine[0], mine[1], mine[2], x, how, False)
        torch.testing.assert_close(alone.entropy, both.entropy[rows])
        for one, ours in zip(alone.units, both.units):
            assert torch.equal(one[0], ours[index])


def test_mistakes() -> None:
    with pytest.raises(SupSupError, match="paper, best-of"):
        Recovery(procedure="guess")  # type: ignore[arg-type]
    with pytest.raises(SupSupError, match="batch_size is 1; give a whole number, at least 2"):
        Recovery(batch_size=1)
    with pytest.raises(SupSupError, match=r"momentum is 1\.0; give a number, at least 0 and below 1"):
        Recovery(momentum=1.0)
    with pytest.raises(SupSupError, match="HopMLP"):
        HopSupSup(nets.lenet_300_100())  # type: ignore[arg-type]


@pytest.mark.parametrize(("count", "steps", "size"), [(200, 30, 64), (2000, 32, 64), (1920, 30, 64), (10, 30, 10)])
def test_steps_go_through_the_images_in_order_and_begin_again(
    count: int, steps: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pass over the images, or as many as thirty steps take."""
    shown: list[Tensor] = []
    weights = [torch.ones(1, 3, 1), torch.ones(1, 2, 3)]

    def watched(given: Any, images: Tensor, units: Any) -> Tensor:
        shown.append(images[0, 0, :, 0])
        return many_outputs(given, images, units)

    psi, mean, x = [torch.zeros(1, 3, 3)], [torch.zeros(1, 3)], torch.arange(float(count))[:, None]
    monkeypatch.setattr(recovery, "many_outputs", watched)
    found = recover(weights, psi, mean, x, Recovery("paper"), history=True)
    assert found.history is not None
    assert len(found.history) == steps
    expected = torch.arange(float(size * steps)) % count
    assert torch.equal(torch.cat(shown[:steps]), expected)
    judged = torch.cat(shown[steps:])
    assert torch.equal(judged, torch.arange(float(count)).repeat(2)), "and every image judges"


def test_a_network_of_one_hidden_layer_takes_the_end_of_least_entropy() -> None:
    chance = torch.Generator().manual_seed(0)
    weights = [torch.randn(1, b, a, generator=chance) for a, b in ((20, 30), (30, 6))]
    ends = [to_bipolar(torch.randn(1, 5, 30, generator=chance))]
    x = torch.randn(40, 20, generator=chance)
    best = mean_entropy(weights, x, ends, 64).argmin()
    assert torch.equal(recombined(weights, x, ends, 64)[0], ends[0][:, best])


def test_combinations_are_judged_on_four_batches_from_the_first_image_to_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[Tensor] = []

    def watched(weights: Any, images: Tensor, z: list[Tensor], batch_size: int) -> Tensor:
        shown.append(images[:, 0])
        return torch.zeros(1, z[0].shape[1])

    monkeypatch.setattr(recovery, "mean_entropy", watched)
    ends = [to_bipolar(torch.randn(1, 3, 30)), to_bipolar(torch.randn(1, 3, 24))]
    recombined([], torch.arange(1000.0)[:, None], ends, 16)
    assert len(shown) == 3
    for images in shown:
        assert len(images) == 64
        assert images[[0, -1]].tolist() == [0, 999]
        assert 14 <= images.diff().min() <= images.diff().max() <= 17


def test_starts_and_steps_have_limits() -> None:
    """A file may ask for any number."""
    assert Recovery() == Recovery("best-of", 8, 500.0, 0.9, 1e-4, 1.5e-3, 64, 30)
    assert Recovery(starts=256, least_steps=100_000).starts == 256
    assert Recovery(starts=1, least_steps=1, weight_decay=0, momentum=0, energy_weight=-1).starts == 1
    for wrong in (
        {"starts": 257},
        {"starts": 0},
        {"least_steps": 100_001},
        {"least_steps": 0},
        {"learning_rate": 0},
        {"momentum": -0.1},
        {"weight_decay": -1e-9},
    ):
        with pytest.raises(SupSupError, match=next(iter(wrong))):
            Recovery(**wrong)
    assert Recovery(batch_size=2).batch_size == 2


def test_a_string_at_zero_counts_as_on_everywhere() -> None:
    """On the way, in the end and in the answer."""
    weights = [torch.zeros(1, 3, 4), torch.zeros(1, 2, 3)]
    found = recover(
        weights, [torch.zeros(1, 3, 3)], [torch.zeros(1, 3)], torch.ones(5, 4), Recovery("paper"), history=True
    )
    assert found.history is not None
    assert found.history.all()
    assert found.units[0].all()
