"""Grading a learner on a stream: accuracy per task at every stage, task inference, forgetting.

Protocols, for scenarios where the task is not given at test:
  paper             one image of each test batch of 128 decides the task of the whole batch (batches in a fixed random
                    order: in that of the file, a batch of MNIST is the hand of a few writers)
  paper-full-batch  all 128 images decide together
  strict            every image decides for itself, in batches that mix the tasks
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor

from supsup import philox, progress
from supsup.data import Task
from supsup.errors import SupSupError
from supsup.learner import SupSup
from supsup.prediction import Prediction
from supsup.scenario import Scenario, scenario_named
from supsup.training.order import many_positions

Grading = Literal["paper", "paper-full-batch", "strict"]
_ASKED_TOGETHER = 32  # tasks whose deciding images are handed in at once
_MIXED = 16  # tasks whose images share batches under the strict protocol


class Learner(Protocol):
    """What is needed of anything that is graded."""

    @property
    def tasks(self) -> list[str]: ...

    def learn(self, data: Task, /) -> str: ...

    def predict(self, x: Tensor, task: str | None = None) -> Prediction: ...


@runtime_checkable
class LooksBack(Protocol):
    """A learner that can answer as if it knew some of its tasks only, so that earlier stages can be graded later."""

    def infer_task(self, x: Tensor, *, per: str = "image", among: Sequence[str] | None = None) -> list[str] | str: ...


@runtime_checkable
class InfersBatches(Protocol):
    """A learner that can decide on many batches [r, b, …] in one call."""

    def infer_batches(self, x: Tensor, *, among: Sequence[str] | None = None) -> list[str]: ...


@dataclass(frozen=True)
class Grade:
    """Fractions of one task's test images: the right answer, and the right task."""

    accuracy: float
    inferred: float


@dataclass(frozen=True)
class Evaluation:
    """Grades of every task known at every stage; `fresh` are those of each task when it was the newest."""

    scenario: str
    protocol: str
    stages: list[int]  # how many of the tasks had been learned
    grades: list[dict[str, Grade]]  # one mapping for each stage
    fresh: dict[str, Grade]
    masks: int  # how many masks or models the learner holds

    @property
    def per_task(self) -> dict[str, float]:
        """Accuracy of each task at the last stage."""
        return {name: grade.accuracy for name, grade in self.grades[-1].items()}

    @property
    def curve(self) -> list[float]:
        """Average accuracy at each stage."""
        return [_mean(grade.accuracy for grade in stage.values()) for stage in self.grades]

    @property
    def average_accuracy(self) -> float:
        """Mean over the tasks at the last stage."""
        return self.curve[-1]

    @property
    def task_accuracy(self) -> float:
        """How often the task was inferred right at the last stage (1 where it is given)."""
        return _mean(grade.inferred for grade in self.grades[-1].values())

    @property
    def backward_transfer(self) -> float:
        """How much the accuracy of the earlier tasks has changed since each was learned; NaN if that is not known."""
        last = self.per_task
        earlier = list(last)[:-1]
        if not earlier:
            return 0.0
        return _mean(last[name] - self.fresh[name].accuracy if name in self.fresh else math.nan for name in earlier)

    @property
    def forgetting(self) -> float:
        """How much accuracy the earlier tasks have lost since each was learned; NaN if that is not known."""
        return -self.backward_transfer if self.backward_transfer else 0.0


def evaluate(
    model: Learner,
    stream: Sequence[Task],
    scenario: str | Scenario = "GNu",
    *,
    protocol: Grading = "paper",
    batch_size: int = 128,
    stages: Sequence[int] | None = None,
    show_progress: bool | None = None,
) -> Evaluation:
    """Grade a learner on the whole test part of every task of the stream that it knows.

    stages  also grade as if only the first n tasks had been learned, for each n given (where the learner can answer
            so). Without it: now, and each task as it was when it was the newest, for forgetting.
    """
    setting = _check(scenario, protocol)
    known = set(model.tasks)
    tasks = list(stream) if not setting.given_in_training else [task for task in stream if task.name in known]
    if not tasks:
        raise SupSupError("the model knows no task of this stream; learn some first")
    if not setting.given_in_training:
        grades = _grade(model, tasks, setting, protocol, batch_size, None)
        return Evaluation(setting.name, protocol, [len(tasks)], [grades], {}, len(model.tasks))
    tasks.sort(key=lambda task: model.tasks.index(task.name))
    looks_back = isinstance(model, LooksBack)
    if stages is None:
        ends = [len(tasks)]
    else:
        ends = list(stages)
        if not ends or not all(1 <= n <= len(tasks) for n in ends) or (not looks_back and ends != [len(tasks)]):
            raise SupSupError(
                f"stages must lie between 1 and the {len(tasks)} tasks known, and earlier ones need a learner that can "
                f"look back; got {ends} (use follow to grade while learning)"
            )
    graded: list[dict[str, Grade]] = []
    fresh: dict[str, Grade] = {}
    want_fresh = looks_back and stages is None
    with progress.bar("grading", len(ends) + (len(tasks) if want_fresh else 0), "stages", show_progress) as advance:
        for end in ends:
            graded.append(_grade(model, tasks[:end], setting, protocol, batch_size, _up_to(model, tasks[end - 1])))
            advance(1)
        for task in tasks if want_fresh else []:
            # With the task given, the answer does not depend on what else is known.
            newest = graded[-1] if setting.given_at_test else None
            among = _up_to(model, task)
            fresh[task.name] = (newest or _grade(model, [task], setting, protocol, batch_size, among))[task.name]
            advance(1)
    for end, stage in zip(ends, graded):
        fresh.setdefault(tasks[end - 1].name, stage[tasks[end - 1].name])
    return Evaluation(setting.name, protocol, ends, graded, fresh, len(model.tasks))


def follow(
    model: Learner,
    stream: Sequence[Task],
    scenario: str | Scenario = "GNu",
    *,
    protocol: Grading = "paper",
    batch_size: int = 128,
    stages: Sequence[int] | None = None,
    show_progress: bool | None = None,
    description: str = "learning",
) -> Evaluation:
    """Let a learner learn the stream and grade it after each of the stages (every task by default)."""
    setting = _check(scenario, protocol)
    if not len(stream):
        raise SupSupError("the stream has no tasks; make it with tasks=1 or more")
    ends = list(range(1, len(stream) + 1) if stages is None else stages)
    graded: list[dict[str, Grade]] = []
    fresh: dict[str, Grade] = {}
    with progress.bar(description, len(stream), show=show_progress) as advance:
        for count, task in enumerate(stream, 1):
            if setting.given_in_training:
                model.learn(task)
            else:
                _observe(model, task)
            if count in ends:
                graded.append(_grade(model, list(stream[:count]), setting, protocol, batch_size, None))
                fresh[task.name] = graded[-1][task.name]
            advance(1)
    return Evaluation(setting.name, protocol, ends, graded, fresh, len(model.tasks))


def _check(scenario: str | Scenario, protocol: str) -> Scenario:
    if protocol not in get_args(Grading):
        raise SupSupError(f"unknown protocol {protocol!r}; known: {', '.join(get_args(Grading))}")
    return scenario_named(scenario)


def _observe(model: Learner, task: Task) -> None:
    """The task's batches, without a word about where they come from."""
    if not isinstance(model, SupSup):
        raise SupSupError(f"{type(model).__name__} cannot learn without being told the task (NNs)")
    recipe = model.recipe
    drawn = recipe.steps * recipe.batch_size
    order = many_positions(model.seed, [task.name], len(task.train), drawn, model.device)[0]
    model.observe_batches(task.train, order.view(recipe.steps, recipe.batch_size))


def _up_to(model: Learner, task: Task) -> list[str]:
    names = model.tasks
    return names[: names.index(task.name) + 1]


def _grade(
    model: Learner,
    tasks: Sequence[Task],
    scenario: Scenario,
    protocol: Grading,
    batch_size: int,
    among: Sequence[str] | None,
) -> dict[str, Grade]:
    """Grades of these tasks, with inference among the named ones (all by default)."""
    answers: dict[str, Answers] = {}
    if not scenario.given_at_test and protocol == "strict":
        for start in range(0, len(tasks), _MIXED):
            answers |= _mixed_answers(model, tasks[start : start + _MIXED], batch_size, among)
    else:
        leading: dict[str, list[str]] = {}
        if not scenario.given_at_test and protocol == "paper" and isinstance(model, LooksBack):
            leading = _decided_by_one_image(model, tasks, batch_size, among)
        for task in tasks:
            answers[task.name] = _answers(model, task, scenario, batch_size, leading.get(task.name), among)
    owner = _owners(answers) if not scenario.given_in_training else {}
    grades = {}
    for name, answer in answers.items():
        right = answer.right
        hit = answer.per_image([owner.get(task, task) == name for task in answer.used])
        counted = right if scenario.shared_labels else right & hit
        grades[name] = Grade(float(counted.double().mean()), float(hit.double().mean()))
    return grades


@dataclass(frozen=True)
class Answers:
    """What a learner said of one task's test images: is the label right, and which task was each batch taken for?"""

    right: Tensor  # booleans, one per image
    used: list[str]  # one per batch
    batch: int

    def per_image(self, batches: Sequence[bool]) -> Tensor:
        """What holds for each batch, for each image."""
        values = torch.tensor(batches, device=self.right.device)
        return values.repeat_interleave(self.batch)[: len(self.right)]


def order_of_test(task: Task) -> Tensor:
    """The order in which test images are put into batches: random, but always the same for so many images."""
    return philox.permutations(0, ["test"], len(task.test))[0]


def _decided_by_one_image(
    model: LooksBack, tasks: Sequence[Task], batch_size: int, among: Sequence[str] | None
) -> dict[str, list[str]]:
    """For each task the task that the first image of each of its test batches seems to belong to."""
    decided: dict[str, list[str]] = {}
    for start in range(0, len(tasks), _ASKED_TOGETHER):
        asked = tasks[start : start + _ASKED_TOGETHER]
        leads = [task.test.batch(order_of_test(task)[::batch_size])[0] for task in asked]
        names = iter(model.infer_task(torch.cat(leads), among=among))
        decided |= {task.name: [next(names) for _ in lead] for task, lead in zip(asked, leads)}
    return decided


def _answers(
    model: Learner,
    task: Task,
    scenario: Scenario,
    batch_size: int,
    deciding: list[str] | None,
    among: Sequence[str] | None,
) -> Answers:
    """The answers to one task's test images.

    deciding: the task of each batch where one image has decided it; else all images of a batch decide.
    """
    x, y = task.test.batch(order_of_test(task), getattr(model, "device", "cpu"))
    if scenario.given_at_test:
        return Answers(model.predict(x, task=task.name).labels == y, [task.name], len(y))
    if not isinstance(model, LooksBack):
        prediction = model.predict(x)
        return Answers(prediction.labels == y, prediction.tasks, 1)
    if deciding is None:
        deciding = _decided_by_batches(model, x, batch_size, among)
    answers = Answers(torch.zeros_like(y, dtype=torch.bool), deciding, batch_size)
    for name in set(deciding):
        rows = answers.per_image([used == name for used in deciding])
        answers.right[rows] = model.predict(x[rows], task=name).labels == y[rows]
    return answers


def _decided_by_batches(model: LooksBack, x: Tensor, batch_size: int, among: Sequence[str] | None) -> list[str]:
    """The task that each batch seems to belong to."""
    batches = list(x.split(batch_size))
    decided: list[str] = []
    whole = len(x) // batch_size
    if whole and isinstance(model, InfersBatches):
        decided = model.infer_batches(torch.stack(batches[:whole]), among=among)
    return decided + [str(model.infer_task(batch, per="batch", among=among)) for batch in batches[len(decided) :]]


def _mixed_answers(
    model: Learner, tasks: Sequence[Task], batch_size: int, among: Sequence[str] | None
) -> dict[str, Answers]:
    """Each image on its own, in batches of all these tasks' images in a random order."""
    parts = [task.test.tensors(getattr(model, "device", "cpu")) for task in tasks]
    x, y = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
    order = philox.permutations(0, ["mixture"], len(y))[0].to(y.device)
    right = torch.zeros_like(y, dtype=torch.bool)
    used = [""] * len(y)
    predict: Callable[[Tensor], Prediction] = model.predict
    if isinstance(model, SupSup):
        predict = lambda batch: model.predict(batch, among=among)  # noqa: E731
    for rows in order.split(8 * batch_size):
        prediction = predict(x[rows])
        right[rows] = prediction.labels == y[rows]
        for row, name in zip(rows.tolist(), prediction.tasks):
            used[row] = name
    bounds = [0]
    for part in parts:
        bounds.append(bounds[-1] + len(part[1]))
    return {task.name: Answers(right[a:b], used[a:b], 1) for task, (a, b) in zip(tasks, pairwise(bounds))}


def _owners(answers: dict[str, Answers]) -> dict[str, str]:
    """Where masks were opened unannounced: the task that each is used for most, so that inference can be graded."""
    votes: dict[str, Counter[str]] = {}
    for name, answer in answers.items():
        for mask, count in Counter(answer.used).items():
            votes.setdefault(mask, Counter())[name] += count
    return {mask: counter.most_common(1)[0][0] for mask, counter in votes.items()}


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
