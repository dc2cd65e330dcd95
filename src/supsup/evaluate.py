"""How good a learner is on a stream: accuracy per task at every stage, task inference, forgetting.

What counts as right, under which scenario and protocol, is in grading.py.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass

from supsup import progress
from supsup.data import Stream, Task
from supsup.errors import SupSupError
from supsup.grading import Grade, Grader, Grading, Known
from supsup.protocol import InfersTask, Learner, Observes, Outputs
from supsup.scenario import Scenario, scenario_named
from supsup.training.order import many_positions
from supsup.validation import given, listed, whole


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
    known: Known | None = None,
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
    known = Known(batch_size) if known is None else given(known, Known, "known")
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
    show_progress: bool | None = None,
    description: str = "learning",
) -> Evaluation:
    """Let a learner learn the stream and grade it after each of the stages (every task by default)."""
    stream = tasks_of(stream)
    way = following(model, stream, scenario, protocol=protocol, batch_size=batch_size, stages=stages)
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
    outputs: Outputs = "classes",
) -> Generator[int, None, Evaluation]:
    """`follow` in small pieces, so that several learners can take turns.

    Yields the number of tasks just finished: 1 after each, and 0 between the decisions of a task nobody announced.

    seen  how many of the tasks it has learned before
    """
    setting = scenario_named(scenario)
    known = Known(batch_size)
    grader = Grader(model, setting, protocol, known, outputs)
    stream = tasks_of(stream)
    if not len(stream):
        raise SupSupError("the stream has no tasks; make it with tasks=1 or more")
    ends = list(range(1, len(stream) + 1)) if stages is None else _stages(stages, len(stream))
    graded: list[dict[str, Grade]] = []
    fresh: dict[str, Grade] = {}
    for count, task in enumerate(stream, 1):
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
    return Evaluation(setting.name, protocol, ends, graded, fresh, len(model.tasks))


def _observe(model: Learner, task: Task) -> Iterator[tuple[str | None, int]]:
    """The task's batches, without a word about where they come from, from decision to decision."""
    if not isinstance(model, Observes):
        raise SupSupError(f"{type(model).__name__} cannot learn without being told the task (NNs); use GG, GNs or GNu")
    recipe = model.recipe
    drawn = recipe.steps * recipe.batch_size
    order = many_positions(model.seed, [task.name], len(task.train), drawn, model.device)[0]
    return model.observing(task.train, order.view(recipe.steps, recipe.batch_size))


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
