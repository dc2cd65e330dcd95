"""The interface of a learner, for grading: `SupSup`, `HopSupSup` and every rival of supsup_paper satisfy `Learner`.

Grading uses nothing else of a learner. The protocols after `Learner` are for abilities that only some learners have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from supsup.data import Task
from supsup.model.predictor import Prediction
from supsup.training import AutoRecipe, Recipe


@runtime_checkable
class Learner(Protocol):
    """Learns one task after another and answers.

    Grading also uses, where a learner has them:
      one_task_per_call   True: it answers only if all images of a call come from one task
      task_info(task)     `TaskInfo` of a task, whose `inputs` is None if `predict` takes them as the network sees them
      infer_batches(x)    names for r batches [r, b, …] in one call, with `among` as for `infer_task`
    """

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks learned, in order."""

    def learn(self, data: Task, /) -> str:
        """Learn one more task; returns its name."""

    def predict(self, x: Tensor, task: str | None = None, *, among: Sequence[str] | None = None) -> Prediction:
        """A label, a task and a confidence for every image.

        task   the task that the images belong to, if it is known
        among  where it is not: only these tasks come into question (all by default)
        """


@runtime_checkable
class InfersTask(Protocol):
    """Infers the task of images among any of its tasks as if it had learned no others: it can look back."""

    def infer_task(self, x: Tensor, *, per: str = "image", among: Sequence[str] | None = None) -> list[str] | str:
        """A name for each image, or one from the whole "batch"."""


@runtime_checkable
class Observes(Protocol):
    """Learns from batches of unknown tasks."""

    @property
    def recipe(self) -> Recipe | AutoRecipe:
        """Gives the number of batches of a task, and their size."""

    @property
    def device(self) -> torch.device:
        """Where it learns."""

    @property
    def seed(self) -> int:
        """Decides the order of the images."""

    def observe(self, x: Tensor, y: Tensor) -> str | None:
        """Learn one batch; returns the name of the task that it was taken for."""
