"""Promises that every learner keeps, as checks for a learner of your own.

    from supsup.evaluation.promises import check_learner

    check_learner(MyLearner)  # raises BrokenPromises with a line for each promise that is broken

`SupSup`, `HopSupSup` and the baselines of supsup_paper are tested with it. The learner gets three tasks of 8 × 8 grey
images (float32, [n, 1, 8, 8]) with 3 classes each, in one check also 2 and 4 classes; a few seconds are enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from supsup.data import Part, Task
from supsup.evaluation.evaluator import evaluate, learn_and_evaluate
from supsup.evaluation.learner import InfersTask, Learner
from supsup.model.predictor import Prediction
from supsup.runtime.validation import choice

_CLASSES = 3


class BrokenPromises(AssertionError):
    """A learner does not keep all promises; `broken` has the reason for each, by the promise's name."""

    def __init__(self, learner: str, broken: dict[str, str], checked: int) -> None:
        self.broken = broken
        lines = "".join(f"\n- {name}: {reason}" for name, reason in broken.items())
        super().__init__(f"{learner} breaks {len(broken)} of {checked} promises:{lines}")


def check_learner(
    make_learner: Callable[[], Learner], *, infers: bool = True, only: Iterable[str] | None = None
) -> list[str]:
    """Check a learner against the promises; returns the names of those checked, or raises `BrokenPromises`.

    make_learner  returns a new learner that has learned nothing
    infers        whether it answers without the task; if not, `predict` must raise an error that says to give `task=`
    only          names of the promises to check (all by default)
    """
    names = list(PROMISES) if only is None else [choice(*PROMISES)(name, "promise") for name in only]
    subject, broken = _Promises(make_learner, infers), {}
    for name in names:
        try:
            PROMISES[name](subject)
        except Exception as error:  # a learner of the user's own may raise anything
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            broken[name] = f"{PROMISES[name].__doc__} {kind}{error}"
    if broken:
        raise BrokenPromises(getattr(make_learner, "__name__", "the learner"), broken, len(names))
    return names


def _require(condition: object, found: str) -> None:
    if not condition:
        raise AssertionError(found)


def _require_error(call: Callable[[], object], *words: str) -> None:
    """An error of the user's making, whose message has these words."""
    try:
        call()
    except ValueError as error:  # SupSupError is one
        missing = [word for word in words if word not in str(error)]
        _require(not missing, f"The error {str(error)!r} does not mention {', '.join(missing)}.")
        return
    raise AssertionError(f"There was no error; one that mentions {', '.join(words)} was expected.")


def _part(task: int, count: int, seed: int, classes: int = _CLASSES) -> Part:
    """Noisy copies of one pattern per class of a task."""
    patterns = torch.randn(_CLASSES, 1, 8, 8, generator=torch.Generator().manual_seed(task))
    noise = torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(100 + seed))
    return Part(patterns[torch.arange(count) % _CLASSES] + 0.3 * noise, torch.arange(count) % classes)


_TASKS = [Task(f"task-{i}", _part(i, 90, i), _part(i, 30, 50 + i), _CLASSES) for i in range(3)]
_NAMES = [task.name for task in _TASKS]


def _images(task: int, count: int = 12) -> Tensor:
    return _TASKS[task].test.batch(torch.arange(count))[0]


def _require_well_formed(answer: Prediction, count: int) -> None:
    shapes = (tuple(answer.labels.shape), tuple(answer.confidence.shape), len(answer.tasks))
    _require(shapes == ((count,), (count,), count), f"Labels, confidence and tasks of {count} images: {shapes}.")
    _require(answer.labels.dtype == torch.int64, f"Labels are {answer.labels.dtype}, not int64.")
    inside = ((answer.labels >= 0) & (answer.labels < _CLASSES)).all()
    _require(inside, f"Labels of a task with {_CLASSES} classes: {answer.labels.unique().tolist()}.")
    _require(((answer.confidence > 0) & (answer.confidence <= 1)).all(), f"Confidence: {answer.confidence.tolist()}.")
    _require(answer.task_confidence.shape == (count,), "task_confidence needs one number for each image.")
    if answer.probabilities.numel():
        shape = tuple(answer.probabilities.shape)
        _require(shape == (count, _CLASSES), f"Probabilities have the shape {shape}, not {(count, _CLASSES)}.")
        _require((answer.probabilities.sum(1) - 1).abs().max() < 1e-5, "Probabilities of an image do not sum to 1.")
        best = torch.equal(answer.probabilities.max(1).values, answer.confidence)
        _require(best, "The confidence is not the largest probability.")


class _Promises:
    """A learner and what is promised of it: a method without an underscore raises an error if it is not so."""

    def __init__(self, make: Callable[[], Learner], infers: bool) -> None:
        self.make, self.infers = make, infers

    @cached_property
    def learned(self) -> Learner:
        """A learner that has learned all tasks, for promises that change nothing."""
        model = self.make()
        for task in _TASKS:
            model.learn(task)
        return model

    def learns_one_task_after_another(self) -> None:
        """`learn` returns the task's name, and `tasks` lists the names in order."""
        model = self.make()
        _require(isinstance(model, Learner), f"{type(model).__name__} lacks tasks, learn or predict.")
        _require(model.tasks == [], f"A new learner has the tasks {model.tasks}.")
        for count, task in enumerate(_TASKS, 1):
            name = model.learn(task)
            _require(name == task.name, f"learn returned {name!r} for {task.name!r}.")
            _require(model.tasks == _NAMES[:count], f"After {count} tasks there are {model.tasks}.")

    def uses_the_given_task(self) -> None:
        """`predict(x, task=name)` answers with that task for every image, and again the same."""
        for index, name in enumerate(_NAMES):
            answer = self.learned.predict(_images(index), task=name)
            _require_well_formed(answer, 12)
            _require(answer.tasks == [name] * 12, f"For {name} the tasks were {sorted(set(answer.tasks))}.")
            again = self.learned.predict(_images(index), name)
            _require(torch.equal(again.labels, answer.labels), f"A second call for {name} gave other labels.")

    def infers_the_task_or_asks_for_it(self) -> None:
        """`predict(x)` answers with known tasks, or raises an error that says to give `task=`; `among` limits them."""
        for among in (None, _NAMES[:1], _NAMES[:2], _NAMES[::-2]):
            if not self.infers:
                _require_error(lambda: self.learned.predict(_images(1), among=among), "task=")  # noqa: B023
                continue
            answer = self.learned.predict(_images(1), among=among)
            _require_well_formed(answer, 12)
            outside = set(answer.tasks) - set(_NAMES if among is None else among)
            _require(not outside, f"Among {among} it answered with {sorted(outside)}.")

    def treats_all_tasks_as_the_default(self) -> None:
        """`predict(x, among=model.tasks)` is `predict(x)`."""
        if self.infers:
            one, other = self.learned.predict(_images(1)), self.learned.predict(_images(1), among=_NAMES)
            _require(torch.equal(one.labels, other.labels) and one.tasks == other.tasks, "The answers differ.")

    def answers_with_classes_of_the_task(self) -> None:
        """Labels, names and probabilities are of the task's classes, whatever the images and however many outputs."""
        for seed, sizes in enumerate(({"three": 3, "two": 2}, {"two": 2, "four": 4, "three": 3})):
            model = self.make()
            for number, (name, classes) in enumerate(sizes.items()):
                part = _part(number, 24, seed, classes)
                model.learn(Task(name, part, part, classes, tuple(f"{name}-{label}" for label in range(classes))))
            noise = 3 * torch.randn(40, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
            answers = [(model.predict(noise, task=name), classes) for name, classes in sizes.items()]
            for answer, classes in answers:
                highest = int(answer.labels.max())
                _require(highest < classes, f"Of {classes} classes it chose {highest}.")
                width = answer.probabilities.shape[1]
                _require(width in (0, classes), f"There are {width} probabilities for {classes} classes.")
            if self.infers and isinstance(model, InfersTask):
                answers.append((model.predict(noise), 0))
            for answer, _ in answers:
                for label, name, called in zip(answer.labels.tolist(), answer.tasks, answer.names):
                    _require(label < sizes[name], f"{name} has {sizes[name]} classes, and the answer was {label}.")
                    _require(called in (label, f"{name}-{label}"), f"Class {label} of {name} was called {called!r}.")

    def refuses_unknown_tasks(self) -> None:
        """An unknown task is an error that names it and those known; so is an empty `among`."""
        for how in ({"task": "nobody"}, {"among": ["task-0", "nobody"]}):
            _require_error(lambda: self.learned.predict(_images(0), **how), "nobody", *_NAMES)  # noqa: B023
        _require_error(lambda: self.learned.predict(_images(0), among=[]), "among")

    def refuses_bad_images(self) -> None:
        """Images with NaN, of another shape or of integers are an error that says so."""
        poisoned = _images(0)
        poisoned[3, 0, 0, 0] = float("nan")
        for x, word in ((poisoned, "NaN"), (_images(0)[:, :, :4], "shape"), (_images(0).long(), "float")):
            _require_error(lambda: self.learned.predict(x, task="task-0"), word)  # noqa: B023

    def refuses_to_answer_before_learning(self) -> None:
        """A learner without tasks says that it has to learn first."""
        model = self.make()
        for how in ({}, {"task": "task-0"}, {"among": ["task-0"]}):
            _require_error(lambda: model.predict(_images(0), **how), "learn")  # noqa: B023
        _require_error(lambda: evaluate(model, _TASKS, "GG"), "learn")

    def refuses_bad_tasks_unchanged(self) -> None:
        """A task that cannot be learned is an error that says why, and leaves the learner as it was."""
        model = self.make()
        model.learn(_TASKS[0])
        before = model.predict(_images(0), task="task-0")
        (x, y), test = _TASKS[1].train.tensors(), _TASKS[1].test
        poisoned = x.clone()
        poisoned[5, 0, 2, 2] = float("inf")
        nothing = Part(x, y[:0], rows=torch.zeros(0, dtype=torch.int64))
        bad = [
            (_TASKS[0], "learned already"),
            (Task("bad", nothing, test, _CLASSES), "empty"),
            (Task("bad", Part(poisoned, y), test, _CLASSES), "infinite"),
            (Task("bad", Part(x[:, :, :4], y), test, _CLASSES), "shape"),
            (Task("bad", Part(x, y - 1), test, _CLASSES), "label"),
            (Task("bad", Part(x, y + 10_000), test, _CLASSES + 10_000), "outputs"),
        ]
        for task, word in bad:
            _require_error(lambda: model.learn(task), word)  # noqa: B023
            _require(model.tasks == ["task-0"], f"After the error ({word}) it has the tasks {model.tasks}.")
            after = model.predict(_images(0), task="task-0")
            same = torch.equal(before.labels, after.labels) and torch.equal(before.confidence, after.confidence)
            _require(same, f"After the error ({word}) answers to an earlier task have changed.")

    def is_graded_with_the_task_given(self) -> None:
        """`evaluate(model, stream, "GG")` grades every task, and the learner is better than chance."""
        graded = evaluate(self.learned, _TASKS, "GG", show_progress=False)
        _require(list(graded.per_task) == _NAMES and graded.task_accuracy == 1, f"Grades: {graded.per_task}.")
        _require(graded.average_accuracy > 0.5, f"The accuracy is {graded.average_accuracy:.2f}; chance is 0.33.")

    def is_graded_without_the_task(self) -> None:
        """`evaluate` works for unknown tasks under each protocol, or says why it cannot."""
        mixes = not getattr(self.learned, "one_task_per_call", False)
        for protocol in ("paper", "strict"):
            if self.infers and (mixes or protocol == "paper"):
                graded = evaluate(self.learned, _TASKS, "GNu", protocol=protocol, show_progress=False)
                _require(list(graded.per_task) == _NAMES, f"Grades under {protocol}: {graded.per_task}.")
            else:
                word = "task=" if not self.infers else "protocol='paper'"
                _require_error(lambda: evaluate(self.learned, _TASKS, "GNu", protocol=protocol), word)  # noqa: B023

    def is_graded_at_earlier_stages(self) -> None:
        """`evaluate(stages=…)` gives the grades of `learn_and_evaluate`, or says to use that."""
        if not isinstance(self.learned, InfersTask):  # it cannot answer as it did before it learned the later tasks
            _require_error(lambda: evaluate(self.learned, _TASKS, "GG", stages=[1, 3]), "learn_and_evaluate")
            return
        how: dict[str, Any] = {"protocol": "strict", "stages": [1, 3], "show_progress": False}
        later = evaluate(self.learned, _TASKS, "GNu", **how)
        found = [list(grades) for grades in later.grades]
        _require(found == [_NAMES[:1], _NAMES], f"Tasks graded at stages 1 and 3: {found}.")
        first = later.grades[0]["task-0"].inferred
        _require(first == 1, f"With one task to choose from, the task was correct for {first:.0%} of the images.")
        meanwhile = learn_and_evaluate(self.make(), _TASKS, "GNu", **how)
        _require(later.grades == meanwhile.grades, "Grades while learning differ from those of looking back.")


PROMISES: dict[str, Callable[[_Promises], None]] = {
    name: promise for name, promise in vars(_Promises).items() if callable(promise) and not name.startswith("_")
}
