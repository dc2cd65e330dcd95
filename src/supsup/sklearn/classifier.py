"""`SupSupClassifier`: a model of masks as a scikit-learn classifier, over tables or images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data
from torch import nn

from supsup.inference.settings import Inference
from supsup.model.supsup import SupSup
from supsup.nets import FullyConnected
from supsup.runtime.errors import SupSupError
from supsup.training import Recipe

_OUTPUTS = 100
_HIDDEN = (300, 100)

Network = nn.Module | Callable[[int, int], nn.Module]


class SupSupClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Many classification tasks on one frozen network, one mask each; nothing learned is forgotten.

    net           a module, or a function of (features, outputs) that makes one; LeNet 300-100 by default
    outputs       of that function's network: the most classes that a task may have
    recipe        how a mask is trained; chosen for each task by default
    inference     how the task is found in `predict` when nobody says it
    random_state  decides the frozen weights and the order of the rows
    device        "auto", "cpu", "cuda"

    `fit` learns one task with all classes and forgets earlier ones; `partial_fit` learns one more task on each call, of
    classes that may be new or not. `predict` answers for all tasks learned, or for the one that is named.
    """

    def __init__(
        self,
        net: Network | None = None,
        *,
        outputs: int = _OUTPUTS,
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
        """Learn all classes as one task, in place of whatever was learned before."""
        for name in ("model_", "classes_"):
            if hasattr(self, name):
                delattr(self, name)
        return self.partial_fit(X, y, task="task")

    def partial_fit(self, X: Any, y: Any, classes: Any = None, *, task: str | None = None) -> Self:
        """Learn one more task.

        classes  those to come in later calls, which `classes_` then has from the beginning
        task     its name; task-0, task-1, … by default
        """
        first = not hasattr(self, "model_")
        X, y = validate_data(self, X, y, reset=first, allow_nd=True, dtype=[np.float64, np.float32])
        check_classification_targets(y)
        present = np.unique(y)
        if len(present) < 2:
            raise SupSupError(f"only one class ({present[0]}) is there; give rows of two or more to tell apart")
        if first:
            seed = self.random_state
            if not isinstance(seed, int | np.integer):
                seed = check_random_state(seed).randint(1 << 31)
            self.model_ = SupSup(
                self._network(X), int(seed), recipe=self.recipe, inference=self.inference, device=self.device
            )
        labels = y.astype(np.int64) if y.dtype.kind == "f" else y  # whole numbers, as was checked
        self.model_.learn((X.astype(np.float32), labels), task=task or self._free_name(), show_progress=False)
        known = [present] if classes is None else [present, np.asarray(classes)]
        self.classes_: Any = np.unique(np.concatenate(known if first else [self.classes_, *known]))
        return self

    def predict(self, X: Any, task: str | None = None) -> Any:
        """The class of every row, with its task known or found."""
        check_is_fitted(self)
        return self.classes_[self.predict_proba(X, task).argmax(1)]

    def predict_proba(self, X: Any, task: str | None = None) -> Any:
        """[rows, classes_]: the probability of each class of the row's task; 0 for classes that it does not have."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, allow_nd=True, dtype=[np.float64, np.float32])
        answer = self.model_.predict(torch.from_numpy(X.astype(np.float32)), task)
        spread = np.zeros((len(X), len(self.classes_)))
        probabilities = answer.probabilities.double().cpu().numpy()
        used = np.array(answer.tasks)
        for name in dict.fromkeys(answer.tasks):
            columns = np.searchsorted(self.classes_, self._classes_of(name))
            rows = np.flatnonzero(used == name)
            spread[np.ix_(rows, columns)] = probabilities[rows][:, : len(columns)]
        return spread / spread.sum(1, keepdims=True)

    @property
    def tasks_(self) -> list[str]:
        """Names of the tasks learned, in order."""
        check_is_fitted(self)
        return self.model_.tasks

    def _classes_of(self, task: str) -> Any:
        names = [self.model_.task_info(task).class_name(label) for label in range(self.model_.classes(task))]
        return np.array(names, dtype=self.classes_.dtype)

    def _free_name(self) -> str:
        number = len(self.model_.tasks)
        return f"task-{number}"

    def _network(self, X: Any) -> nn.Module:
        if isinstance(self.net, nn.Module):
            return self.net
        features = int(np.prod(X.shape[1:]))
        return (
            FullyConnected((features, *_HIDDEN, self.outputs)) if self.net is None else self.net(features, self.outputs)
        )
