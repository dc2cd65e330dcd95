"""The classifier keeps scikit-learn's contract, and adds tasks to it."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator
from torch import nn

from supsup import Recipe
from supsup.sklearn import SupSupClassifier

QUICK = SupSupClassifier(nn.Linear, outputs=12, device="cpu")
CHECKS = list(estimator_checks_generator(QUICK))


@pytest.mark.parametrize("check", [c for _, c in CHECKS], ids=[getattr(c, "func", c).__name__ for _, c in CHECKS])
def test_the_contract_of_scikit_learn(check: object) -> None:
    check(QUICK)  # type: ignore[operator]


def test_one_task_of_a_table() -> None:
    x, y = load_wine(return_X_y=True)
    x, held_x, y, held_y = train_test_split(x, np.array(["red", "white", "rosé"])[y], random_state=0, stratify=y)
    model = SupSupClassifier(device="cpu").fit(x, y)
    assert model.score(held_x, held_y) > 0.9
    assert set(model.predict(held_x)) <= {"red", "white", "rosé"}
    assert np.allclose(model.predict_proba(held_x).sum(1), 1)


def test_tasks_one_after_the_other() -> None:
    """What was learned first is answered as before, and classes of all tasks are answers."""
    x, y = load_digits(return_X_y=True)
    model = SupSupClassifier(recipe=Recipe("adam", 0.1, 150, schedule="cosine", score_bound=1.0), device="cpu")
    model.partial_fit(x[y < 5], y[y < 5], classes=range(10), task="low")
    before = model.predict_proba(x[y < 5], task="low")
    model.partial_fit(x[y >= 5], y[y >= 5], task="high")
    assert model.tasks_ == ["low", "high"]
    assert list(model.classes_) == list(range(10))
    assert np.array_equal(model.predict_proba(x[y < 5], task="low"), before)
    assert np.mean(model.predict(x[y >= 5], task="high") == y[y >= 5]) > 0.95
    assert set(model.predict(x[:50])) <= set(range(10))


def test_in_a_pipeline() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), SupSupClassifier(device="cpu", outputs=2))
    assert pipeline.fit(x[:400], y[:400]).score(x[400:], y[400:]) > 0.9
