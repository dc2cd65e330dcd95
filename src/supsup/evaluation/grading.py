"""Scenarios, which say when the task is given and which answers are correct, and grading by scenario and protocol.

Protocols, for scenarios where the task is not given at test:
  paper             the first image of each test batch of 128 decides the task of the whole batch; each task's test
                    images are shuffled in an order of their own, so that the deciding images differ
  paper-full-batch  all 128 images of a batch decide together
  strict            every image decides for itself, in batches that mix the tasks
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import islice
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from supsup.data import Task
from supsup.evaluation.learner import InfersTask, Learner
from supsup.masks import philox
from supsup.model.predictor import Outputs, check_outputs
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import choice, quoted, whole

GradingProtocol = Literal["paper", "paper-full-batch", "strict"]
_TASKS_PER_CALL = 32  # tasks whose deciding images go into one call
_MIXED_TASKS = 16  # tasks whose images share batches under the strict protocol
_MIXED_BATCH = {"cpu": 4096, "cuda": 1 << 18}  # images in such a batch


@dataclass(frozen=True)
class Scenario:
    """Named as in the paper: is the task Given or Not in training, then at test; are labels shared or unshared?"""

    name: str
    given_in_training: bool
    given_at_test: bool
    shared_labels: bool  # shared: the label alone counts; unshared: a wrong task is a wrong answer
    meaning: str


GG = Scenario("GG", True, True, False, "the task is given in training and at test")
GNs = Scenario("GNs", True, False, True, "the task is given in training, not at test; the label alone counts")
GNu = Scenario("GNu", True, False, False, "the task is given in training, not at test; a wrong task is wrong")
NNs = Scenario("NNs", False, False, True, "the task is never given; the label alone counts")

SCENARIOS = {scenario.name: scenario for scenario in (GG, GNs, GNu, NNs)}
USUAL_NAMES = {"Task-IL": GG, "Domain-IL": GNs, "Class-IL": GNu}  # in most other papers


def scenario_named(scenario: str | Scenario) -> Scenario:
    """A scenario by its name, that of the paper or the usual one."""
    if isinstance(scenario, Scenario):
        return scenario
    named = SCENARIOS | USUAL_NAMES
    if not isinstance(scenario, str) or scenario not in named:
        usual = {scenario.name: f" ({name})" for name, scenario in USUAL_NAMES.items()}
        known = "; ".join(f"{s.name}{usual.get(s.name, '')}: {s.meaning}" for s in SCENARIOS.values())
        raise SupSupError(f"unknown scenario {quoted(scenario)}; known: {known}")
    return named[scenario]


@dataclass(frozen=True)
class Grade:
    """Shares of one task's test images with the correct answer, and with the correct task."""

    accuracy: float
    inferred: float


@dataclass(frozen=True)
class Answers:
    """A learner's answers to one task's test images, batch by batch."""

    correct: Tensor  # number of correct labels
    size: Tensor  # number of images
    used: list[str]  # the task that was inferred


class GradingCache:
    """Results that later calls of `evaluate` for the same learner and stream can reuse.

    By task: the first image of each test batch, and the number of correct answers per batch with the task given.

    orders  by task, the order in which its test images form batches; `order_of_test` for others
    """

    def __init__(self, batch_size: int = 128, orders: Mapping[str, Tensor] | None = None) -> None:
        self.batch_size = whole(1)(batch_size, "batch_size")
        self.orders = orders or {}
        self.leading: dict[str, Tensor] = {}
        self.correct: dict[str, Tensor] = {}

    def order_of(self, task: Task, device: torch.device) -> Tensor:
        """Positions of the task's test images, batch after batch."""
        order = self.orders.get(task.name)
        return order_of_test(task, device) if order is None else order.to(device)

    def leading_of(self, task: Task, device: torch.device) -> Tensor:
        """Positions of the first image of each batch."""
        if task.name not in self.leading:
            self.leading[task.name] = self.order_of(task, device)[:: self.batch_size].clone()
        return self.leading[task.name]

    def sizes_of(self, task: Task) -> Tensor:
        """Number of images in each batch."""
        starts = torch.arange(0, len(task.test), self.batch_size)
        return (len(task.test) - starts).clamp(max=self.batch_size)


class Grader:
    """Grades a learner, which must not learn meanwhile."""

    def __init__(
        self,
        model: Learner,
        scenario: Scenario,
        protocol: GradingProtocol,
        cache: GradingCache,
        outputs: Outputs = "classes",
    ) -> None:
        choice(*get_args(GradingProtocol))(protocol, "protocol")
        check_outputs(outputs, "outputs")
        if not isinstance(model, Learner):
            raise SupSupError(f"a learner has tasks, learn and predict, which {quoted(model)} has not; give a model")
        mixes = protocol == "strict" and not scenario.given_at_test
        if mixes and getattr(model, "one_task_per_call", False):
            raise SupSupError(
                f"{type(model).__name__} needs images of one task at a time, and the protocol 'strict' mixes tasks; "
                "use protocol='paper', which keeps each task's test images apart"
            )
        self.model, self.scenario, self.protocol, self.cache = model, scenario, protocol, cache
        if outputs == "all" and "outputs" not in signature(model.predict).parameters:
            raise SupSupError(f"{type(model).__name__}.predict has no argument outputs; leave outputs out")
        self._how: dict[str, Any] = {} if outputs == "classes" else {"outputs": outputs}

    def grades(self, tasks: Sequence[Task], among: Sequence[str] | None) -> dict[str, Grade]:
        """Grades of these tasks, with inference among the named ones (all by default)."""
        scenario = self.scenario
        answers: dict[str, Answers] = {}
        if not scenario.given_at_test and self.protocol == "strict":
            for start in range(0, len(tasks), _MIXED_TASKS):
                answers |= self._mixed(tasks[start : start + _MIXED_TASKS], among)
        else:
            leading: dict[str, list[str]] = {}
            if not scenario.given_at_test and self.protocol == "paper" and isinstance(self.model, InfersTask):
                leading = self._decided_by_one_image(self.model, tasks, among)
            for task in tasks:
                answers[task.name] = self._answers(task, leading.get(task.name), among)
        owner = _owners(answers) if not scenario.given_in_training else {}
        grades = {}
        for name, answer in answers.items():
            hit = torch.tensor([owner.get(used, used) == name for used in answer.used])  # the task is correct
            counted = answer.correct if scenario.shared_labels else answer.correct * hit
            images = int(answer.size.sum())
            grades[name] = Grade(int(counted.sum()) / images, int((answer.size * hit).sum()) / images)
        return grades

    def _answers(self, task: Task, deciding: list[str] | None, among: Sequence[str] | None) -> Answers:
        """The answers to one task's test images.

        deciding  the task of each batch, if one image has decided it; None: all images of a batch decide
        """
        size = self.cache.sizes_of(task)
        if self.scenario.given_at_test:
            return Answers(self._correct_with_task_given(task), size, [task.name] * len(size))
        if not isinstance(self.model, InfersTask):
            x, y = self._test(task)
            prediction = self.model.predict(x, among=among, **self._how)
            return Answers((prediction.labels == y).cpu(), torch.ones(len(y), dtype=torch.int64), prediction.tasks)
        if deciding is None:
            deciding = self._decided_by_batches(self.model, self._test(task)[0], among)
        correct = torch.zeros(len(size), dtype=torch.int64)
        for name in set(deciding):
            batches = torch.tensor([used == name for used in deciding])
            if name == task.name:
                correct[batches] = self._correct_with_task_given(task)[batches]
            elif self.scenario.shared_labels or not self.scenario.given_in_training:
                x, y = self._test(task)
                rows = batches.repeat_interleave(size)
                of_batch = torch.arange(len(size)).repeat_interleave(size)[rows]
                rows = rows.to(x.device)
                hits = self.model.predict(x[rows], task=name, **self._how).labels == y[rows]
                correct.index_add_(0, of_batch, hits.cpu().long())
        return Answers(correct, size, deciding)

    def _correct_with_task_given(self, task: Task) -> Tensor:
        """Number of correct answers in each batch."""
        if task.name not in self.cache.correct:
            x, y = self._test(task)
            correct = self.model.predict(x, task=task.name, **self._how).labels == y
            whole = torch.nn.functional.pad(correct, (0, -len(y) % self.cache.batch_size))
            self.cache.correct[task.name] = whole.view(-1, self.cache.batch_size).sum(1).cpu()
        return self.cache.correct[task.name]

    def _test(self, task: Task) -> tuple[Tensor, Tensor]:
        """A task's test images and labels, in the order of the batches."""
        return self._test_at(task, self.cache.order_of(task, self._device))

    def _test_at(self, task: Task, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Test images at these positions in the form that the learner takes, and their labels."""
        if task.inputs is None or not self._takes_raw(task):
            return task.test.batch(positions, self._device)
        labels = task.test.labels.index_select(0, positions.to(task.test.labels.device))
        raw = task.raw_test(positions)
        return (raw if task.inputs.tokens else raw.float()).to(self._device), labels.to(self._device)

    def _takes_raw(self, task: Task) -> bool:
        """Whether the learner normalises this task's inputs by itself."""
        try:
            return hasattr(self.model, "task_info") and self.model.task_info(task.name).inputs is not None
        except SupSupError:  # the task was observed, under a name that the learner gave it
            return False

    @property
    def _device(self) -> torch.device:
        return torch.device(getattr(self.model, "device", "cpu"))

    def _decided_by_one_image(
        self, model: InfersTask, tasks: Sequence[Task], among: Sequence[str] | None
    ) -> dict[str, list[str]]:
        """By task, the inferred task of the first image of each test batch."""
        decided: dict[str, list[str]] = {}
        for start in range(0, len(tasks), _TASKS_PER_CALL):
            some = tasks[start : start + _TASKS_PER_CALL]
            leads = [self._test_at(task, self.cache.leading_of(task, self._device))[0] for task in some]
            names = iter(model.infer_task(torch.cat(leads), among=among))
            decided |= {task.name: list(islice(names, len(lead))) for task, lead in zip(some, leads)}
        return decided

    def _decided_by_batches(self, model: InfersTask, x: Tensor, among: Sequence[str] | None) -> list[str]:
        """The inferred task of each batch."""
        batches = list(x.split(self.cache.batch_size))
        decided: list[str] = []
        whole = len(x) // self.cache.batch_size
        if whole and hasattr(model, "infer_batches"):
            decided = model.infer_batches(torch.stack(batches[:whole]), among=among)
        return decided + [str(model.infer_task(batch, per="batch", among=among)) for batch in batches[len(decided) :]]

    def _mixed(self, tasks: Sequence[Task], among: Sequence[str] | None) -> dict[str, Answers]:
        """Answers to each image by itself, in batches that mix the images of all these tasks in a random order."""
        parts = [self._test_at(task, torch.arange(len(task.test))) for task in tasks]
        x, y = (torch.cat(each) for each in zip(*parts))
        order = philox.permutations(0, ["mixture"], len(y))[0].to(y.device)
        correct = torch.zeros_like(y, dtype=torch.bool)
        used = [""] * len(y)
        for rows in order.split(_MIXED_BATCH[self._device.type]):
            prediction = self.model.predict(x[rows], among=among, **self._how)
            correct[rows] = prediction.labels == y[rows]
            for row, name in zip(rows.tolist(), prediction.tasks):
                used[row] = name
        names, hits = iter(used), correct.cpu().split([len(labels) for _, labels in parts])
        return {
            task.name: Answers(of_task, torch.ones(len(of_task), dtype=torch.int64), list(islice(names, len(of_task))))
            for task, of_task in zip(tasks, hits)
        }


def order_of_test(task: Task, device: torch.device | str = "cpu") -> Tensor:
    """The order in which a task's test images form batches: random, but always the same."""
    return philox.permutations(0, [f"test/{task.name}"], len(task.test), device)[0]


def _owners(answers: dict[str, Answers]) -> dict[str, str]:
    """For masks of unannounced tasks (NNs): the task that each mask is used for most, to grade task inference."""
    votes: dict[str, Counter[str]] = {}
    for name, answer in answers.items():
        for mask, count in Counter(answer.used).items():
            votes.setdefault(mask, Counter())[name] += count
    return {mask: counter.most_common(1)[0][0] for mask, counter in votes.items()}
