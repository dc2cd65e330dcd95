"""Which answers of a learner count as right, under each scenario and protocol.

Protocols, for scenarios where the task is not given at test:
  paper             one image of each test batch of 128 decides the task of the whole batch; test images are shuffled,
                    for each task in another way, so that it is not always the same few that decide
  paper-full-batch  all 128 images decide together
  strict            every image decides for itself, in batches that mix the tasks
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import pairwise
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from supsup.data import Task
from supsup.evaluation.learner import HasTaskInfo, InfersBatches, InfersTask, Learner, OneTaskPerCall
from supsup.evaluation.scenarios import Scenario
from supsup.masks import philox
from supsup.model.prediction import Outputs, check_outputs
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import choice, quoted, whole

Grading = Literal["paper", "paper-full-batch", "strict"]
_ASKED_TOGETHER = 32  # tasks whose deciding images are handed in at once
_MIXED = 16  # tasks whose images share batches under the strict protocol …
_STRICT = {"cpu": 4096, "cuda": 1 << 18}  # … of so many images


@dataclass(frozen=True)
class Grade:
    """Fractions of one task's test images: the right answer, and the right task."""

    accuracy: float
    inferred: float


@dataclass(frozen=True)
class Answers:
    """What a learner said of one task's test images, batch by batch."""

    right: Tensor  # how many labels are right
    size: Tensor  # how many images there are
    used: list[str]  # the task it was taken for

    def grade(self, hit: Tensor, shared_labels: bool) -> Grade:
        """hit: which batches were taken for the right task; other answers count only where labels are shared."""
        counted = self.right if shared_labels else self.right * hit
        images = int(self.size.sum())
        return Grade(int(counted.sum()) / images, int((self.size * hit).sum()) / images)


class CandidateTasks:
    """What later gradings of the same learner on the same stream need not ask again.

    By task: the first image of each test batch, and how many answers are right in each batch if the task is known.

    orders  in which a task's test images are put into batches, by its name; `order_of_test` where there is none
    """

    def __init__(self, batch_size: int = 128, orders: Mapping[str, Tensor] | None = None) -> None:
        self.batch_size = whole(1)(batch_size, "batch_size")
        self.orders = orders or {}
        self.leading: dict[str, Tensor] = {}
        self.right: dict[str, Tensor] = {}

    def order_of(self, task: Task, device: torch.device) -> Tensor:
        """Positions of the task's test images, batch after batch."""
        order = self.orders.get(task.name)
        return order_of_test(task, device) if order is None else order.to(device)

    def leading_of(self, task: Task, device: torch.device) -> Tensor:
        """Positions of the images that stand first in their batches."""
        if task.name not in self.leading:
            self.leading[task.name] = self.order_of(task, device)[:: self.batch_size].clone()
        return self.leading[task.name]

    def sizes_of(self, task: Task) -> Tensor:
        """How many images each batch has."""
        starts = torch.arange(0, len(task.test), self.batch_size)
        return (len(task.test) - starts).clamp(max=self.batch_size)


class Grader:
    """Grades a learner that does not learn meanwhile."""

    def __init__(
        self, model: Learner, scenario: Scenario, protocol: Grading, known: CandidateTasks, outputs: Outputs = "classes"
    ) -> None:
        choice(*get_args(Grading))(protocol, "protocol")
        check_outputs(outputs, "outputs")
        if not isinstance(model, Learner):
            raise SupSupError(f"a learner has tasks, learn and predict; {quoted(model)} has not, give a model")
        mixes = protocol == "strict" and not scenario.given_at_test
        if mixes and isinstance(model, OneTaskPerCall) and model.one_task_per_call:
            raise SupSupError(
                f"{type(model).__name__} needs images of one task at a time, and the protocol 'strict' mixes tasks; "
                "use protocol='paper', which asks about each task's test images on their own"
            )
        self.model, self.scenario, self.protocol, self.known = model, scenario, protocol, known
        if outputs == "all" and "outputs" not in signature(model.predict).parameters:
            raise SupSupError(
                f"{type(model).__name__} answers with outputs of its tasks' classes alone; leave outputs out"
            )
        self._how: dict[str, Any] = {} if outputs == "classes" else {"outputs": outputs}

    def grades(self, tasks: Sequence[Task], among: Sequence[str] | None) -> dict[str, Grade]:
        """Grades of these tasks, with inference among the named ones (all by default)."""
        scenario = self.scenario
        answers: dict[str, Answers] = {}
        if not scenario.given_at_test and self.protocol == "strict":
            for start in range(0, len(tasks), _MIXED):
                answers |= self._mixed(tasks[start : start + _MIXED], among)
        else:
            leading: dict[str, list[str]] = {}
            if not scenario.given_at_test and self.protocol == "paper" and isinstance(self.model, InfersTask):
                leading = self._decided_by_one_image(self.model, tasks, among)
            for task in tasks:
                answers[task.name] = self._answers(task, leading.get(task.name), among)
        owner = _owners(answers) if not scenario.given_in_training else {}
        grades = {}
        for name, answer in answers.items():
            hit = torch.tensor([owner.get(used, used) == name for used in answer.used])
            grades[name] = answer.grade(hit, scenario.shared_labels)
        return grades

    def _answers(self, task: Task, deciding: list[str] | None, among: Sequence[str] | None) -> Answers:
        """The answers to one task's test images.

        deciding: the task of each batch where one image has decided it; else all images of a batch decide.
        """
        size = self.known.sizes_of(task)
        if self.scenario.given_at_test:
            return Answers(self._with_the_task_known(task), size, [task.name] * len(size))
        if not isinstance(self.model, InfersTask):
            x, y = self._test(task)
            prediction = self.model.predict(x, among=among, **self._how)
            right = (prediction.labels == y).cpu()
            return Answers(right, torch.ones(len(y), dtype=torch.int64), prediction.tasks)
        if deciding is None:
            deciding = self._decided_by_batches(self.model, self._test(task)[0], among)
        right = torch.zeros(len(size), dtype=torch.int64)
        for name in set(deciding):
            batches = torch.tensor([used == name for used in deciding])
            if name == task.name:
                right[batches] = self._with_the_task_known(task)[batches]
            elif self.scenario.shared_labels or not self.scenario.given_in_training:
                x, y = self._test(task)
                rows = batches.repeat_interleave(size)
                of_batch = torch.arange(len(size)).repeat_interleave(size)[rows]
                rows = rows.to(x.device)
                correct = self.model.predict(x[rows], task=name, **self._how).labels == y[rows]
                right.index_add_(0, of_batch, correct.cpu().long())
        return Answers(right, size, deciding)

    def _with_the_task_known(self, task: Task) -> Tensor:
        """How many answers are right in each batch."""
        if task.name not in self.known.right:
            x, y = self._test(task)
            correct = self.model.predict(x, task=task.name, **self._how).labels == y
            whole = torch.nn.functional.pad(correct, (0, -len(y) % self.known.batch_size))
            self.known.right[task.name] = whole.view(-1, self.known.batch_size).sum(1).cpu()
        return self.known.right[task.name]

    def _test(self, task: Task) -> tuple[Tensor, Tensor]:
        """A task's test images, in the order in which they make batches."""
        return self._asked(task, self.known.order_of(task, self._device))

    def _asked(self, task: Task, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Test images at these positions as the learner takes them, and their labels."""
        if task.inputs is None or not self._takes_raw(task):
            return task.test.batch(positions, self._device)
        labels = task.test.labels.index_select(0, positions.to(task.test.labels.device))
        raw = task.raw_test(positions)
        return (raw if task.inputs.tokens else raw.float()).to(self._device), labels.to(self._device)

    def _takes_raw(self, task: Task) -> bool:
        """Whether the learner normalises this task's inputs by itself."""
        try:
            return isinstance(self.model, HasTaskInfo) and self.model.task_info(task.name).inputs is not None
        except SupSupError:  # the task was observed, under a name that the learner gave it
            return False

    @property
    def _device(self) -> torch.device:
        return torch.device(getattr(self.model, "device", "cpu"))

    def _decided_by_one_image(
        self, model: InfersTask, tasks: Sequence[Task], among: Sequence[str] | None
    ) -> dict[str, list[str]]:
        """For each task the task that the first image of each of its test batches seems to belong to."""
        decided: dict[str, list[str]] = {}
        for start in range(0, len(tasks), _ASKED_TOGETHER):
            asked = tasks[start : start + _ASKED_TOGETHER]
            leads = [self._asked(task, self.known.leading_of(task, self._device))[0] for task in asked]
            names = iter(model.infer_task(torch.cat(leads), among=among))
            decided |= {task.name: [next(names) for _ in lead] for task, lead in zip(asked, leads)}
        return decided

    def _decided_by_batches(self, model: InfersTask, x: Tensor, among: Sequence[str] | None) -> list[str]:
        """The task that each batch seems to belong to."""
        batches = list(x.split(self.known.batch_size))
        decided: list[str] = []
        whole = len(x) // self.known.batch_size
        if whole and isinstance(model, InfersBatches):
            decided = model.infer_batches(torch.stack(batches[:whole]), among=among)
        return decided + [str(model.infer_task(batch, per="batch", among=among)) for batch in batches[len(decided) :]]

    def _mixed(self, tasks: Sequence[Task], among: Sequence[str] | None) -> dict[str, Answers]:
        """Each image on its own, in batches of all these tasks' images in a random order."""
        parts = [self._asked(task, torch.arange(len(task.test))) for task in tasks]
        x, y = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
        order = philox.permutations(0, ["mixture"], len(y))[0].to(y.device)
        right = torch.zeros_like(y, dtype=torch.bool)
        used = [""] * len(y)
        for rows in order.split(_STRICT[self._device.type]):
            prediction = self.model.predict(x[rows], among=among, **self._how)
            right[rows] = prediction.labels == y[rows]
            for row, name in zip(rows.tolist(), prediction.tasks):
                used[row] = name
        right = right.cpu()
        bounds = [0]
        for part in parts:
            bounds.append(bounds[-1] + len(part[1]))
        return {
            task.name: Answers(right[a:b], torch.ones(b - a, dtype=torch.int64), used[a:b])
            for task, (a, b) in zip(tasks, pairwise(bounds))
        }


def order_of_test(task: Task, device: torch.device | str = "cpu") -> Tensor:
    """The order in which a task's test images are put into batches: random, but always the same."""
    return philox.permutations(0, [f"test/{task.name}"], len(task.test), device)[0]


def _owners(answers: dict[str, Answers]) -> dict[str, str]:
    """Where masks were opened unannounced: the task that each is used for most, so that inference can be graded."""
    votes: dict[str, Counter[str]] = {}
    for name, answer in answers.items():
        for mask, count in Counter(answer.used).items():
            votes.setdefault(mask, Counter())[name] += count
    return {mask: counter.most_common(1)[0][0] for mask, counter in votes.items()}
