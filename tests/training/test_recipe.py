"""Recipes: what cannot be trained with is said at once."""

from dataclasses import asdict

import pytest
import torch

from supsup import AutoRecipe, Recipe, SupSupError, training
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


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("steps", (1, 10**9), (0, 10**9 + 1)),
        ("batch_size", (1, 10**9), (0, 10**9 + 1)),
        ("epochs", (1, 10**9, None), (0, 10**9 + 1)),
        ("weight_decay", (0,), (-1e-9,)),
        ("learning_rate", (1e-30,), (0,)),
        ("warm_up", (0, 0.999), (-0.1, 1)),
        ("first_decay", (0, 0.999), (-0.1, 1)),
        ("second_decay", (0, 0.999, None), (-0.1, 1)),
        ("epsilon", (1e-30,), (0,)),
        ("score_bound", (1e-30, None), (0,)),
        ("crops", (0, 1, None), (-0.1, 1.1)),
    ],
)
def test_settings_have_limits(name: str, inside: tuple[float, ...], outside: tuple[float, ...]) -> None:
    for value in inside:
        assert getattr(Recipe(**{name: value}), name) == value  # type: ignore[arg-type]
    for value in outside:
        with pytest.raises(SupSupError, match=name):
            Recipe(**{name: value})  # type: ignore[arg-type]


def test_momentum_and_density_have_limits() -> None:
    assert Recipe("sgd", momentum=0.99).momentum == 0.99
    assert Recipe(selection="edge-popup", density=1).density == 1
    for wrong in ({"momentum": 1.0}, {"momentum": -0.1}):
        with pytest.raises(SupSupError, match="momentum"):
            Recipe("sgd", **wrong)  # type: ignore[arg-type]
    for wrong in ({"density": 0.0}, {"density": 1.01}, {"budget": 0.0}):
        with pytest.raises(SupSupError, match=next(iter(wrong))):
            Recipe(selection="edge-popup", **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"budget": 8}, "go with selection 'edge-popup'"),
        ({"density": 0.5}, "go with selection 'edge-popup'"),
        ({"selection": "edge-popup"}, "needs either budget"),
        ({"selection": "edge-popup", "budget": 8, "density": 0.5}, "needs either budget"),
        ({"selection": "edge-popup", "budget": 8, "start": "kept"}, "never keeps every weight"),
        ({"momentum": 0.9}, "goes with optimiser 'sgd'"),
    ],
)
def test_settings_that_do_not_go_together(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(SupSupError, match=said):
        Recipe(**wrong)  # type: ignore[arg-type]


def test_which_tasks_begin_with_every_weight() -> None:
    popup = Recipe(selection="edge-popup", density=0.5)
    cases = {(Recipe(), True): True, (Recipe(), False): False, (popup, True): False, (popup, False): False}
    for start, kept in (("kept", True), ("random", False)):
        cases |= {(Recipe(start=start), pretrained): kept for pretrained in (True, False)}  # type: ignore[arg-type]
    assert {case: case[0].keeps_all_of(case[1]) for case in cases} == cases
    assert Recipe(steps=3, second_decay=0.5).differing == {"steps": 3, "second_decay": 0.5}
    assert (Recipe(second_decay=0.5).rule.second_decay, Recipe("adam").rule.second_decay) == (0.5, 0.999)
    assert (Recipe().kept(torch.Size([4, 6])), popup.kept(torch.Size([4, 6]))) == (None, 12)
    assert Recipe("sgd", 0.8, warm_up=0.1).rate(0, 7) == 0.8, "less than a step to rise in"


@pytest.mark.parametrize("recipe", [Recipe(), training.SPLIT_CIFAR100, AutoRecipe(rounds=2, self_labels="rotations")])
def test_a_recipe_is_its_flat_fields(recipe: Recipe | AutoRecipe) -> None:
    """Model files and results have them so."""
    assert training.recipe_from_dict(asdict(recipe)) == recipe
    assert all(value is None or isinstance(value, str | int | float) for value in asdict(recipe).values())
    assert training.recipe_from_dict({"steps": 7}) == Recipe(steps=7)
