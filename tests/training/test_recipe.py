"""Recipes: what cannot be trained with is said at once."""

import pytest
import torch

from supsup import Recipe, SupSupError


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
