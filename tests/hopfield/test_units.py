"""Training masks on units: many networks at once are each as if alone, and the recipe is the paper's."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from supsup import SupSupError, UnitRecipe, nets
from supsup.data import Stream
from supsup.hopfield.units import train_units
from supsup.masks.frozen import FrozenNet
from supsup.masks.scores import soft_mask
from supsup.training.executors import batch_positions

CPU = torch.device("cpu")


def frozen(seed: int) -> FrozenNet:
    return FrozenNet(nets.HopMLP((784, 48, 40, 12)), seed, CPU)


def test_it_is_sgd_on_scores_from_zero_through_the_plain_module(stream: Stream) -> None:
    recipe, net = UnitRecipe(batch_size=500), frozen(1)
    part = stream[0].train
    (first, second) = train_units([w[None] for w in net.weights.values()], [1], "a", part, 2, recipe)
    scores = [torch.zeros(48, requires_grad=True), torch.zeros(40, requires_grad=True)]
    optimiser = torch.optim.SGD(scores, lr=0.1, momentum=0.9, weight_decay=1e-4)
    for positions in batch_positions(1, "a", len(part), 500, steps=8):
        x, y = part.batch(positions)
        loss = cross_entropy(net.module(x, [soft_mask(score, None) for score in scores]), y + 2)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert (first[0] == (scores[0] >= 0)).float().mean() > 0.95  # sums are taken in another order
    assert (second[0] == (scores[1] >= 0)).float().mean() > 0.95
    assert 0.1 < first.float().mean() < 0.95


def test_networks_trained_together_get_the_masks_they_get_alone(stream: Stream) -> None:
    recipe, seeds = UnitRecipe(batch_size=400), [3, 4, 5]
    weights = [torch.stack(layer) for layer in zip(*(frozen(seed).weights.values() for seed in seeds))]
    together = train_units(weights, seeds, "a", stream[0].train, 0, recipe)
    for index, seed in enumerate(seeds):
        alone = train_units([w[index : index + 1] for w in weights], [seed], "a", stream[0].train, 0, recipe)
        for both, one in zip(together, alone):
            assert (both[index] == one[0]).float().mean() > 0.95


def test_steps_and_mistakes() -> None:
    assert UnitRecipe().steps(12665) == 99
    assert UnitRecipe(epochs=3, batch_size=100).steps(100) == 3
    with pytest.raises(SupSupError, match="batch_size is 1; give a whole number, at least 2"):
        UnitRecipe(batch_size=1)
    with pytest.raises(SupSupError, match="learning_rate"):
        UnitRecipe(learning_rate=0)


def test_a_batch_has_two_images_at_least() -> None:
    """One alone has no variance to be normalised by."""
    assert UnitRecipe(batch_size=2, weight_decay=0.0).batch_size == 2
    with pytest.raises(SupSupError, match="batch_size"):
        UnitRecipe(batch_size=1)


def test_epochs_and_batches_have_limits() -> None:
    assert UnitRecipe() == UnitRecipe(0.1, 0.9, 1e-4, 1, 128)
    assert UnitRecipe(epochs=10**9, batch_size=10**9, momentum=0, weight_decay=0).epochs == 10**9
    for wrong in ({"epochs": 10**9 + 1}, {"epochs": 0}, {"batch_size": 10**9 + 1}, {"momentum": 1}, {"momentum": -0.1}):
        with pytest.raises(SupSupError, match=next(iter(wrong))):
            UnitRecipe(**wrong)
    with pytest.raises(SupSupError, match="weight_decay"):
        UnitRecipe(weight_decay=-1e-9)
