"""`SupSupClassifier`: a SupSup model as a scikit-learn classifier, for tables and images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data
from torch import nn

from supsup import Inference, Recipe, SupSup, SupSupError
from supsup.nets import FullyConnected

_HIDDEN = (300, 100)

Network = nn.Module | Callable[[int, int], nn.Module]


class SupSupClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Many classification tasks on one frozen network, one mask per task; no task changes another.

    net           an nn.Module, or a function (features, outputs) that returns one; LeNet 300-100 by default
    outputs       of the network that the function builds: the most classes a task may have
    recipe        how masks are trained; chosen for each task by default
    inference     how `predict` infers the task if it is not given
    random_state  seed of the frozen weights and of the order of the rows
    device        "auto", "cpu", "cuda"

    `fit` learns all classes as one task and drops earlier tasks. Each call of `partial_fit` learns one more task, with
    new or known classes. `predict` uses all tasks, or the given one.
    """

    def __init__(
        self,
        net: Network | None = None,
        *,
        outputs: int = 100,
        recipe: Recipe | None = None,
        inference: Inference | None = None,
        random_state: int | np.random.RandomState | None = 0,
        device: str = "auto",
    ) -> None:
        self.net = net
        self.outputs = outputs
        self.recipe = recipe
        self.inference = inference
        self.random_state = random_state
        self.device = device

    def fit(self, X: Any, y: Any) -> Self:
        """Learn all classes as one task; earlier tasks are dropped."""
        for name in ("model_", "classes_"):
            if hasattr(self, name):
                delattr(self, name)
        return self.partial_fit(X, y, task="task")

    def partial_fit(self, X: Any, y: Any, classes: Any = None, *, task: str | None = None) -> Self:
        """Learn one more task.

        classes  of later calls, to include in `classes_` from the start
        task     name of the task; task-0, task-1, … by default
        """
        first = not hasattr(self, "model_")
        X, y = validate_data(self, X, y, reset=first, allow_nd=True, dtype=[np.float64, np.float32])
        check_classification_targets(y)
        present = np.unique(y)
        if len(present) < 2:
            raise SupSupError(f"y has only one class ({present[0]}); a task needs at least two")
        if first:
            seed = self.random_state
            if not isinstance(seed, int | np.integer):
                seed = check_random_state(seed).randint(1 << 31)
            net, features = self.net, int(np.prod(X.shape[1:]))
            if not isinstance(net, nn.Module):
                net = FullyConnected((features, *_HIDDEN, self.outputs)) if net is None else net(features, self.outputs)
            self.model_ = SupSup(net, int(seed), recipe=self.recipe, inference=self.inference, device=self.device)
        labels = y.astype(np.int64) if y.dtype.kind == "f" else y  # integers, checked above
        name = task or f"task-{len(self.model_.tasks)}"
        self.model_.learn((X.astype(np.float32), labels), task=name, show_progress=False)
        known = [present] if classes is None else [present, np.asarray(classes)]
        self.classes_: Any = np.unique(np.concatenate(known if first else [self.classes_, *known]))
        return self

    def predict(self, X: Any, task: str | None = None) -> Any:
        """The class of every row; the task is inferred if it is not given."""
        check_is_fitted(self)
        return self.classes_[self.predict_proba(X, task).argmax(1)]

    def predict_proba(self, X: Any, task: str | None = None) -> Any:
        """[rows, classes_]: probabilities of the classes of the row's task; 0 for other classes."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, allow_nd=True, dtype=[np.float64, np.float32])
        answer = self.model_.predict(torch.from_numpy(X.astype(np.float32)), task)
        spread = np.zeros((len(X), len(self.classes_)))
        probabilities = answer.probabilities.double().cpu().numpy()
        used = np.array(answer.tasks)
        for name in dict.fromkeys(answer.tasks):
            called = [self.model_.task_info(name).class_name(label) for label in range(self.model_.classes(name))]
            columns = np.searchsorted(self.classes_, np.array(called, dtype=self.classes_.dtype))
            rows = np.flatnonzero(used == name)
            spread[np.ix_(rows, columns)] = probabilities[rows][:, : len(columns)]
        return spread / spread.sum(1, keepdims=True)

    @property
    def tasks_(self) -> list[str]:
        """Names of the tasks learned, in order."""
        check_is_fitted(self)
        return self.model_.tasks
