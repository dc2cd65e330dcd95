"""The interface of a learner, for grading: `SupSup`, `HopSupSup` and every rival of supsup_paper satisfy `Learner`.

Grading uses nothing else of a learner but what `Learner` says it may have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from supsup.data import Task
from supsup.model.predictor import Prediction


@runtime_checkable
class Learner(Protocol):
    """Learns one task after another and answers.

    Grading also uses, where a learner has them:
      one_task_per_call   True: it answers only if all images of a call come from one task
      task_info(task)     `TaskInfo` of a task, whose `inputs` is None if `predict` takes them as the network sees them
      observe(x, y)       trains on a batch of an unknown task; then also `recipe`, `device` and `seed`
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
