"""Accuracy of a learner on a stream: per task and stage, of task inference, and the loss by forgetting.

`grading.py` decides which answers are correct, by scenario and protocol.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from supsup.data import Stream, Task
from supsup.evaluation.grading import Grade, Grader, GradingCache, GradingProtocol, Scenario, scenario_named
from supsup.evaluation.learner import InfersTask, Learner
from supsup.model.predictor import Outputs
from supsup.model.supsup import SupSup, observe_batches
from supsup.runtime import progress
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import given, listed, whole
from supsup.training.executors import many_positions


@dataclass(frozen=True)
class Evaluation:
    """Grades of every learned task at every stage.

    stages  number of tasks that had been learned
    grades  for each stage, grades by task
    fresh   grade of each task right after it was learned
    masks   number of masks or models that the learner holds
    ahead   grade of each task but the first right before it was learned (`learn_and_evaluate(…, ahead=True)`)
    """

    scenario: str
    protocol: str
    stages: list[int]
    grades: list[dict[str, Grade]]
    fresh: dict[str, Grade]
    masks: int
    ahead: dict[str, Grade] = field(default_factory=dict)

    @property
    def per_task(self) -> dict[str, float]:
        """Accuracy of each task at the last stage."""
        return {name: grade.accuracy for name, grade in self.grades[-1].items()}

    @property
    def curve(self) -> list[float]:
        """Average accuracy at each stage."""
        return [_mean(grade.accuracy for grade in stage.values()) for stage in self.grades]

    @property
    def matrix(self) -> list[list[float]]:
        """The accuracy matrix: a row for each stage, a column for each task in order; NaN for tasks to come."""
        names = list(self.grades[-1])
        return [[stage[name].accuracy if name in stage else math.nan for name in names] for stage in self.grades]

    @property
    def average_accuracy(self) -> float:
        """Mean over the tasks at the last stage."""
        return self.curve[-1]

    @property
    def task_accuracy(self) -> float:
        """Share of test images whose task was inferred correctly at the last stage (1 if it is given)."""
        return _mean(grade.inferred for grade in self.grades[-1].values())

    @property
    def backward_transfer(self) -> float:
        """Mean change in accuracy of the earlier tasks since each was learned; NaN if unknown."""
        last = self.per_task
        earlier = list(last)[:-1]
        if not earlier:
            return 0.0
        return _mean(last[name] - self.fresh[name].accuracy if name in self.fresh else math.nan for name in earlier)

    @property
    def forgetting(self) -> float:
        """Mean loss in accuracy of the earlier tasks since each was learned; NaN if unknown."""
        return -self.backward_transfer if self.backward_transfer else 0.0

    @property
    def forward_transfer(self) -> float:
        """Mean accuracy of tasks right before each was learned; NaN without `learn_and_evaluate(…, ahead=True)`.

        Chance is not subtracted: for ten classes 0.1 means no transfer.
        """
        return _mean(grade.accuracy for grade in self.ahead.values()) if self.ahead else math.nan

    def to_json(self) -> str:
        """All fields and the summary figures; unknown numbers are null."""
        summary = ("average_accuracy", "task_accuracy", "backward_transfer", "forward_transfer", "forgetting")
        figures = {name: getattr(self, name) for name in summary}
        finite = {name: None if math.isnan(value) else value for name, value in figures.items()}
        return json.dumps(finite | asdict(self), indent=1, allow_nan=False)

    def to_csv(self) -> str:
        """A row for each stage and task: number of tasks learned, task, accuracy, accuracy of task inference."""
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(("stage", "task", "accuracy", "task_accuracy"))
        for stage, grades in zip(self.stages, self.grades):
            lines.writerows((stage, name, grade.accuracy, grade.inferred) for name, grade in grades.items())
        return text.getvalue()


def evaluate(
    model: Learner,
    stream: Sequence[Task],
    scenario: str | Scenario = "GNu",
    *,
    protocol: GradingProtocol = "paper",
    batch_size: int = 128,
    stages: Sequence[int] | None = None,
    show_progress: bool | None = None,
    cache: GradingCache | None = None,
    outputs: Outputs = "classes",
) -> Evaluation:
    """Grade a learner on the whole test part of every task of the stream that it has learned.

    cache   answers from earlier calls for the same learner and stream, to be reused
    stages  numbers of tasks: grade as if only the first n had been learned, for each n, if the learner can answer so.
            None: grade now, and each task as of the time it was learned, for `forgetting`
    outputs "all": an answer may be an output that no class of the task uses, as in the paper
    """
    setting = scenario_named(scenario)
    stream = as_tasks(stream)
    cache = GradingCache(batch_size) if cache is None else given(cache, GradingCache, "cache")
    if cache.batch_size != batch_size:
        raise SupSupError(f"the cache holds answers for batches of {cache.batch_size}, not {batch_size}")
    grader = Grader(model, setting, protocol, cache, outputs)
    names = model.tasks
    order = {name: index for index, name in enumerate(names)}
    tasks = [task for task in stream if not setting.given_in_training or task.name in order]
    if not tasks:
        raise SupSupError("the model has learned no task of this stream; learn some first")
    if not setting.given_in_training:
        grades = grader.grades(tasks, None)
        return Evaluation(setting.name, protocol, [len(tasks)], [grades], {}, len(names))
    tasks.sort(key=lambda task: order[task.name])
    looks_back = isinstance(model, InfersTask)
    ends = [len(tasks)] if stages is None else _checked_stages(stages, len(tasks))
    if not looks_back and ends != [len(tasks)]:
        raise SupSupError(
            f"{type(model).__name__} cannot look back: learning later tasks has changed its answers. Of the stages "
            f"{ends} only [{len(tasks)}] can be graded now; use supsup.evaluation.learn_and_evaluate"
        )

    def up_to(task: Task) -> list[str]:
        return names[: order[task.name] + 1]

    graded: list[dict[str, Grade]] = []
    fresh: dict[str, Grade] = {}
    want_fresh = looks_back and stages is None
    with progress.bar("grading", len(ends) + (len(tasks) if want_fresh else 0), "stages", show_progress) as advance:
        for end in ends:
            graded.append(grader.grades(tasks[:end], up_to(tasks[end - 1])))
            advance(1)
        for task in tasks if want_fresh else []:
            # With the task given, answers do not depend on the other tasks.
            newest = graded[-1] if setting.given_at_test else None
            fresh[task.name] = (newest or grader.grades([task], up_to(task)))[task.name]
            advance(1)
    for end, stage in zip(ends, graded):
        fresh.setdefault(tasks[end - 1].name, stage[tasks[end - 1].name])
    return Evaluation(setting.name, protocol, ends, graded, fresh, len(names))


def learn_and_evaluate(
    model: Learner,
    stream: Sequence[Task],
    scenario: str | Scenario = "GNu",
    *,
    protocol: GradingProtocol = "paper",
    batch_size: int = 128,
    stages: Sequence[int] | None = None,
    ahead: bool = False,
    show_progress: bool | None = None,
    description: str = "learning",
) -> Evaluation:
    """Let a learner learn the stream, and grade it at each stage (by default after every task).

    This works for learners that forget, too. `ahead`: also grade each task right before it is learned, for
    `forward_transfer`; tasks must share their labels (GNs, NNs).
    """
    stream = as_tasks(stream)
    how: dict[str, Any] = {"protocol": protocol, "batch_size": batch_size, "stages": stages, "ahead": ahead}
    steps = learn_and_evaluate_steps(model, stream, scenario, **how)
    with progress.bar(description, len(stream), show=show_progress) as advance:
        while True:
            try:
                advance(next(steps))
            except StopIteration as end:
                graded: Evaluation = end.value
                return graded


def learn_and_evaluate_steps(
    model: Learner,
    stream: Sequence[Task],
    scenario: str | Scenario = "GNu",
    *,
    protocol: GradingProtocol = "paper",
    batch_size: int = 128,
    stages: Sequence[int] | None = None,
    learned: int = 0,
    ahead: bool = False,
    outputs: Outputs = "classes",
) -> Generator[int, None, Evaluation]:
    """`learn_and_evaluate` as a generator, so that several learners can take turns.

    Yields 1 after each task, and 0 between the decisions of an unannounced task (NNs). `learned` is the number of
    tasks that the learner has learned before.
    """
    setting = scenario_named(scenario)
    cache = GradingCache(batch_size)
    grader = Grader(model, setting, protocol, cache, outputs)
    stream = as_tasks(stream)
    if not len(stream):
        raise SupSupError("the stream has no tasks; make it with tasks=1 or more")
    if ahead and not setting.shared_labels:
        raise SupSupError(f"ahead=True needs labels that tasks share, and {setting.name} has none; use GNs or NNs")
    ends = list(range(1, len(stream) + 1)) if stages is None else _checked_stages(stages, len(stream))
    graded: list[dict[str, Grade]] = []
    fresh: dict[str, Grade] = {}
    before: dict[str, Grade] = {}
    for count, task in enumerate(stream, 1):
        if ahead and count > max(learned, 1):
            cache.correct.clear()
            before |= grader.grades([task], None)
        if count > learned and setting.given_in_training:
            model.learn(task)
        elif count > learned:
            for _ in _observe(model, task):
                yield 0
        if count in ends:
            cache.correct.clear()  # the learner has changed
            graded.append(grader.grades(list(stream[:count]), None))
            fresh[task.name] = graded[-1][task.name]
        if count > learned:
            yield 1
    return Evaluation(setting.name, protocol, ends, graded, fresh, len(model.tasks), before)


def _observe(model: Any, task: Task) -> Iterator[tuple[str | None, int]]:
    """Train on the task's batches without its name; yields a mask and a number of batches for each decision."""
    if not hasattr(model, "observe"):
        raise SupSupError(
            f"{type(model).__name__} cannot learn from batches of unknown tasks (NNs); use GG, GNs or GNu"
        )
    recipe = model.recipe.stepwise
    drawn = recipe.steps * recipe.batch_size
    order = many_positions(model.seed, [task.name], len(task.train), drawn, model.device)[0]
    positions = order.view(recipe.steps, recipe.batch_size)
    if isinstance(model, SupSup):
        return observe_batches(model, task.train, positions)
    return ((model.observe(*task.train.batch(batch, model.device)), 1) for batch in positions)


def _checked_stages(stages: Sequence[int], tasks: int) -> list[int]:
    ends = [whole()(stage, "a stage") for stage in listed(stages, "stages", "numbers of tasks")]
    if not ends or not all(1 <= end <= tasks for end in ends):
        raise SupSupError(f"stages must lie between 1 and the number of tasks, {tasks}; got {ends}")
    return ends


def as_tasks(stream: Iterable[Task]) -> Sequence[Task]:
    """The tasks of any iterable as a sequence; a stream stays as it is."""
    if isinstance(stream, Stream):
        return stream
    return [given(task, Task, "a task of the stream") for task in listed(stream, "the stream", "tasks")]


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
