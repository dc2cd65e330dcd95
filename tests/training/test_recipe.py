"""Recipes: what cannot be trained with is said at once."""

import pytest
import torch

from supsup import Recipe, SupSupError, training
from supsup.training import SPLIT_CIFAR100


@pytest.mark.parametrize(
    "wrong",
    [
        {"optimiser": "lion"},
        {"steps": 0},
        {"batch_size": 0},
        {"learning_rate": 0.0},
        {"weight_decay": -1.0},
        {"optimiser": "adam", "momentum": 0.9},
    ],
)
def test_recipes_that_make_no_sense(wrong: dict[str, object]) -> None:
    with pytest.raises(SupSupError):
        Recipe(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("optimiser", ["rmsprop", "adam", "sgd"])
def test_every_optimiser_moves_the_scores(optimiser: str) -> None:
    scores = torch.ones(3, requires_grad=True)
    built = Recipe(optimiser=optimiser, learning_rate=0.1).build([scores])  # type: ignore[arg-type]
    scores.sum().backward()
    built.step()
    assert (scores < 1).all()


def test_the_cosine_is_that_of_torch() -> None:
    """A straight line has the same ends and the same middle, and other accuracies."""
    recipe, steps = Recipe("sgd", 0.3, schedule="cosine"), 40
    optimiser = recipe.build([torch.zeros(1, requires_grad=True)])
    torchs = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=steps)
    for step in range(steps):
        assert recipe.rate(step, steps) == pytest.approx(torchs.get_last_lr()[0])
        optimiser.step()
        torchs.step()
    assert recipe.rate(10, steps) == pytest.approx(0.3 * (1 + 0.5**0.5) / 2)


def test_a_warm_up_rises_in_a_line_and_the_cosine_begins_where_it_ends() -> None:
    """SplitImageNet's first 5 of 100 epochs."""
    recipe = Recipe("sgd", 0.8, schedule="cosine", warm_up=0.1)
    whole = Recipe("sgd", 0.8, schedule="cosine")
    assert [recipe.rate(step, 40) for step in range(4)] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert [recipe.rate(step, 40) for step in range(4, 40)] == pytest.approx([whole.rate(i, 36) for i in range(36)])
    assert Recipe("sgd", 0.8, warm_up=0.1).rate(39, 40) == 0.8


def test_epochs_are_whole_passes() -> None:
    assert SPLIT_CIFAR100.steps_for(2500) == 250 * 20
    assert Recipe(epochs=3, batch_size=10).steps_for(11) == 6
    assert Recipe(steps=7).steps_for(10**6) == 7


@pytest.mark.parametrize(
    ("recipe", "kind", "settings"),
    [
        (Recipe(), torch.optim.RMSprop, {"lr": 1e-4, "alpha": 0.99, "eps": 1e-8, "momentum": 0, "weight_decay": 0}),
        (
            Recipe("adam", 1e-2, weight_decay=1e-3),
            torch.optim.Adam,
            {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-3},
        ),
        (
            Recipe("sgd", 0.1, momentum=0.9, weight_decay=1e-4),
            torch.optim.SGD,
            {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4},
        ),
    ],
)
def test_the_optimiser_has_what_the_recipe_says(
    recipe: Recipe, kind: type[torch.optim.Optimizer], settings: dict[str, object]
) -> None:
    """A setting that got lost here would be lost on every network that has no executor of its own."""
    built = recipe.build([torch.zeros(1, requires_grad=True)])
    assert type(built) is kind
    assert {name: built.param_groups[0][name] for name in settings} == settings


def test_recipes_by_name_are_those_of_the_paper() -> None:
    """Experiments set a budget of their own, so a wrong one would reach users alone."""
    common = {"optimiser": "adam", "learning_rate": 1e-3, "schedule": "cosine", "selection": "edge-popup", "budget": 8}
    cifar, imagenet = {"epochs": 250, "weight_decay": 1e-4}, {"epochs": 100, "batch_size": 256, "warm_up": 0.05}
    assert Recipe(**common, **cifar) == training.SPLIT_CIFAR100  # type: ignore[arg-type]
    assert Recipe(**common, **imagenet) == training.SPLIT_IMAGENET  # type: ignore[arg-type]
    assert Recipe(optimiser="rmsprop", learning_rate=1e-4, batch_size=128, steps=1000) == training.MNIST
