"""How good a learner is on a stream: accuracy per task at every stage, task inference, forgetting.

What counts as right, under which scenario and protocol, is in evaluation/grading.py.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field

from supsup.data import Stream, Task
from supsup.evaluation.grading import CandidateTasks, Grade, Grader, Grading
from supsup.evaluation.learner import InfersTask, Learner, Observes
from supsup.evaluation.scenarios import Scenario, scenario_named
from supsup.model.prediction import Outputs
from supsup.model.supsup import SupSup, observe_batches
from supsup.runtime import progress
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import given, listed, whole
from supsup.training import MNIST, AutoRecipe
from supsup.training.batches import many_positions


@dataclass(frozen=True)
class Evaluation:
    """Grades of every task known at every stage.

    stages  how many of the tasks had been learned
    grades  one mapping for each stage
    fresh   the grade of each task when it was the newest
    masks   how many masks or models the learner holds
    ahead   the grade of each task but the first just before it was learned (`follow(…, ahead=True)`)
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

    @property
    def forward_transfer(self) -> float:
        """Mean accuracy of tasks just before each was learned; NaN without `follow(…, ahead=True)`.

        What chance gives is not taken off: for ten classes 0.1 means no transfer.
        """
        return _mean(grade.accuracy for grade in self.ahead.values()) if self.ahead else math.nan

    def to_json(self) -> str:
        """Everything, and the figures that follow from it; numbers that are not known are null."""
        summary = ("average_accuracy", "task_accuracy", "backward_transfer", "forward_transfer", "forgetting")
        figures = {name: getattr(self, name) for name in summary}
        known = {name: None if math.isnan(value) else value for name, value in figures.items()}
        return json.dumps(known | asdict(self), indent=1, allow_nan=False)

    def to_csv(self) -> str:
        """A line for each stage and task: how many tasks were known, the task, its accuracy, and how often found."""
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
    protocol: Grading = "paper",
    batch_size: int = 128,
    stages: Sequence[int] | None = None,
    show_progress: bool | None = None,
    known: CandidateTasks | None = None,
    outputs: Outputs = "classes",
) -> Evaluation:
    """Grade a learner on the whole test part of every task of the stream that it knows.

    known   answers with the task known from earlier gradings of the same learner on the same stream
    stages  also grade as if only the first n tasks had been learned, for each n given (where the learner can answer
            so). Without it: now, and each task as it was when it was the newest, for forgetting.
    outputs "all": an answer may be an output that stands for no class of the task, as in the paper
    """
    setting = scenario_named(scenario)
    stream = tasks_of(stream)
    known = CandidateTasks(batch_size) if known is None else given(known, CandidateTasks, "known")
    if known.batch_size != batch_size:
        raise SupSupError(f"the known answers are for batches of {known.batch_size}, not {batch_size}")
    grader = Grader(model, setting, protocol, known, outputs)
    names = model.tasks
    order = {name: index for index, name in enumerate(names)}
    tasks = [task for task in stream if not setting.given_in_training or task.name in order]
    if not tasks:
        raise SupSupError("the model knows no task of this stream; learn some first")
    if not setting.given_in_training:
        grades = grader.grades(tasks, None)
        return Evaluation(setting.name, protocol, [len(tasks)], [grades], {}, len(names))
    tasks.sort(key=lambda task: order[task.name])
    looks_back = isinstance(model, InfersTask)
    ends = [len(tasks)] if stages is None else _checked_stages(model, stages, len(tasks), looks_back)

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
            # With the task given, the answer does not depend on what else is known.
            newest = graded[-1] if setting.given_at_test else None
            fresh[task.name] = (newest or grader.grades([task], up_to(task)))[task.name]
            advance(1)
    for end, stage in zip(ends, graded):
        fresh.setdefault(tasks[end - 1].name, stage[tasks[end - 1].name])
    return Evaluation(setting.name, protocol, ends, graded, fresh, len(names))


def follow(
    model: Learner,
    stream: Sequence[Task],
    scenario: str | Scenario = "GNu",
    *,
    protocol: Grading = "paper",
    batch_size: int = 128,
    stages: Sequence[int] | None = None,
    ahead: bool = False,
    show_progress: bool | None = None,
    description: str = "learning",
) -> Evaluation:
    """Let a learner learn the stream and grade it after each of the stages (every task by default).

    ahead  also grade each task just before it is learned, for `forward_transfer`; labels must be shared (GNs, NNs)
    """
    stream = tasks_of(stream)
    way = following(model, stream, scenario, protocol=protocol, batch_size=batch_size, stages=stages, ahead=ahead)
    with progress.bar(description, len(stream), show=show_progress) as advance:
        while True:
            try:
                advance(next(way))
            except StopIteration as end:
                graded: Evaluation = end.value
                return graded


def following(
    model: Learner,
    stream: Sequence[Task],
    scenario: str | Scenario = "GNu",
    *,
    protocol: Grading = "paper",
    batch_size: int = 128,
    stages: Sequence[int] | None = None,
    seen: int = 0,
    ahead: bool = False,
    outputs: Outputs = "classes",
) -> Generator[int, None, Evaluation]:
    """`follow` in small pieces, so that several learners can take turns.

    Yields the number of tasks just finished: 1 after each, and 0 between the decisions of a task nobody announced.

    seen  how many of the tasks it has learned before
    """
    setting = scenario_named(scenario)
    known = CandidateTasks(batch_size)
    grader = Grader(model, setting, protocol, known, outputs)
    stream = tasks_of(stream)
    if not len(stream):
        raise SupSupError("the stream has no tasks; make it with tasks=1 or more")
    if ahead and not setting.shared_labels:
        raise SupSupError(
            f"before a task is learned only labels that tasks share can be right; {setting.name} has none"
        )
    ends = list(range(1, len(stream) + 1)) if stages is None else _stages(stages, len(stream))
    graded: list[dict[str, Grade]] = []
    fresh: dict[str, Grade] = {}
    before: dict[str, Grade] = {}
    for count, task in enumerate(stream, 1):
        if ahead and count > max(seen, 1):
            known.right.clear()
            before |= grader.grades([task], None)
        if count > seen and setting.given_in_training:
            model.learn(task)
        elif count > seen:
            for _ in _observe(model, task):
                yield 0
        if count in ends:
            known.right.clear()  # it has learned since
            graded.append(grader.grades(list(stream[:count]), None))
            fresh[task.name] = graded[-1][task.name]
        if count > seen:
            yield 1
    return Evaluation(setting.name, protocol, ends, graded, fresh, len(model.tasks), before)


def _observe(model: Learner, task: Task) -> Iterator[tuple[str | None, int]]:
    """The task's batches, without a word about where they come from, from decision to decision."""
    if not isinstance(model, Observes):
        raise SupSupError(f"{type(model).__name__} cannot learn without being told the task (NNs); use GG, GNs or GNu")
    recipe = MNIST if isinstance(model.recipe, AutoRecipe) else model.recipe
    drawn = recipe.steps * recipe.batch_size
    order = many_positions(model.seed, [task.name], len(task.train), drawn, model.device)[0]
    positions = order.view(recipe.steps, recipe.batch_size)
    if isinstance(model, SupSup):
        return observe_batches(model, task.train, positions)
    return ((model.observe(*task.train.batch(batch, model.device)), 1) for batch in positions)


def _checked_stages(model: Learner, stages: Sequence[int], known: int, looks_back: bool) -> list[int]:
    """The stages to grade, or an error if the learner cannot answer as it would have then."""
    ends = _stages(stages, known)
    if not looks_back and ends != [known]:
        raise SupSupError(
            f"{type(model).__name__} cannot look back: it no longer answers as it did before it learned the later "
            f"tasks, so of the stages {ends} only [{known}] can be graded now; use follow to grade while learning"
        )
    return ends


def _stages(stages: Sequence[int], known: int) -> list[int]:
    ends = [whole()(stage, "a stage") for stage in listed(stages, "stages", "numbers of tasks")]
    if not ends or not all(1 <= end <= known for end in ends):
        raise SupSupError(f"stages must lie between 1 and the {known} tasks known; got {ends}")
    return ends


def tasks_of(stream: Iterable[Task]) -> Sequence[Task]:
    """A stream as it is, or the tasks of any other iterable."""
    if isinstance(stream, Stream):
        return stream
    return [given(task, Task, "a task of the stream") for task in listed(stream, "the stream", "tasks")]


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
