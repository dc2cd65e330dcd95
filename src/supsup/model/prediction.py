"""The answer of a learner: a label and a task for each image, with their probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from supsup.data.labels import Label
from supsup.data.task import TaskInfo
from supsup.inference.candidates import Margin, NoMargin
from supsup.runtime.validation import choice

Outputs = Literal["classes", "all"]  # outputs that may answer: those of the task's classes or, as in the paper, all
check_outputs = choice(*get_args(Outputs))


@dataclass(frozen=True)
class Prediction:
    """One answer per image: the label, the task whose mask gave it, and the probability of the label under it.

    labels         0 … classes − 1 of the task; `names` has the user's own labels
    probabilities  [images, classes]: the probability of each class of the image's task; rows of tasks with fewer
                   classes end in zeros; empty if the learner gives none
    margin         how far the inferred task is ahead, or why there is no margin; a tensor is the confidence itself
    info           metadata of the tasks in `tasks`, by name
    method_used    how the task was found: "given", "the only task", or by which method
    unknown        [images]: which images were rejected; their label is −1, their task and name are None. None unless
                   `predict` was called with `unknown`
    """

    labels: Tensor
    tasks: list[str]
    confidence: Tensor
    probabilities: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    margin: Margin | NoMargin | Tensor = NoMargin.CERTAIN
    info: Mapping[str, TaskInfo] = field(default_factory=dict)
    method_used: str = ""
    unknown: Tensor | None = None

    @classmethod
    def of(
        cls,
        probabilities: Tensor,
        tasks: list[str],
        info: Mapping[str, TaskInfo],
        margin: Margin | NoMargin | Tensor = NoMargin.CERTAIN,
        method_used: str = "",
    ) -> Prediction:
        """The most probable class of each image."""
        confidence, labels = probabilities.max(-1)
        return cls(labels, tasks, confidence, probabilities, margin, info, method_used)

    def without(self, unknown: Tensor) -> Prediction:
        """The same, but that these images [images] are of no task that is known."""
        named: list[Any] = [None if none else task for task, none in zip(self.tasks, unknown.tolist())]
        return replace(self, labels=self.labels.masked_fill(unknown, -1), tasks=named, unknown=unknown)

    @cached_property
    def names(self) -> list[Label]:
        """What the user calls the class of each image; None where it is of no known task."""
        none = TaskInfo()
        called: list[Any] = [
            None if task is None else self.info.get(task, none).class_name(label)
            for task, label in zip(self.tasks, self.labels.tolist())
        ]
        return called

    @cached_property
    def task_confidence(self) -> Tensor:
        """How sure the task of each image is, 0 to 1: 1 where it was given (docs/inference.md)."""
        if isinstance(self.margin, Tensor):
            return self.margin
        if isinstance(self.margin, NoMargin):
            return torch.full_like(self.confidence, self.margin.value)
        return self.margin.confidence()

    def describe(self, digits: int) -> list[dict[str, Any]]:
        """Each answer as plain values, rounded to so many digits, for `supsup predict` and POST /predict."""
        columns = {
            "task": self.tasks,
            "label": self.labels.tolist(),
            "name": self.names,
            "confidence": [round(value, digits) for value in self.confidence.tolist()],
            "task_confidence": [round(value, digits) for value in self.task_confidence.tolist()],
        }
        return [dict(zip(columns, row)) for row in zip(*columns.values(), strict=True)]


def answer_among(outputs: Tensor, classes: Mapping[str, int], info: Mapping[str, TaskInfo]) -> Prediction:
    """Task and label at once, where tasks have outputs of their own: [images, all classes], block after block.

    The largest output says both. Probabilities are those of the classes given the task.
    """
    joint = outputs.softmax(-1)
    names, sizes = list(classes), list(classes.values())
    best = joint.argmax(-1)
    owner = torch.arange(len(sizes), device=best.device).repeat_interleave(torch.tensor(sizes, device=best.device))[
        best
    ]
    padded = torch.stack(
        [pad(block, (0, max(sizes) - block.shape[1])) for block in outputs.split(sizes, -1)], 1
    )  # [images, tasks, most classes]
    mine = padded[torch.arange(len(owner), device=owner.device), owner]
    absent = torch.arange(max(sizes), device=owner.device) >= torch.tensor(sizes, device=owner.device)[owner][:, None]
    probabilities = mine.masked_fill(absent, -torch.inf).softmax(-1)
    shares = torch.stack([block.sum(-1) for block in joint.split(sizes, -1)], 1)
    share = shares[torch.arange(len(owner), device=owner.device), owner]
    return Prediction.of(probabilities, [names[i] for i in owner.tolist()], info, share)
