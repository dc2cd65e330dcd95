"""One list of promises, and every learner is held to all of them: what a user may rely on whichever learner it is."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from supsup import HopSupSup, Recipe, Recovery, SupSup, SupSupError, UnitRecipe, evaluate, follow, nets
from supsup.data import Part, Task
from supsup.evaluation.learner import Learner
from supsup.model.prediction import Prediction
from supsup_paper.baselines import PSP, SI, BatchE, LowerBound, OnlineEWC, SeparateHeads, UpperBound

RECIPE = Recipe("adam", 1e-2, steps=15, batch_size=16)
CLASSES = 3


@dataclass(frozen=True)
class Kind:
    """A kind of learner, and what it can do beyond the promises to all.

    infers      answers without being told the task
    mixes       … for every image of a batch that mixes tasks
    looks_back  … as it would have before it learned the later tasks
    """

    name: str
    build: Callable[[], Learner]
    infers: bool = True
    mixes: bool = True
    looks_back: bool = False


def mlp() -> nets.FullyConnected:
    return nets.FullyConnected((64, 32, 12))


def cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 12)
    )


def hop() -> HopSupSup:
    how: dict[str, Any] = {"recipe": UnitRecipe(epochs=5, batch_size=16), "recovery": Recovery(starts=2)}
    return HopSupSup(nets.HopMLP((64, 256, 256, 12)), seed=3, device="cpu", **how)


def rival(kind: type, **settings: Any) -> Callable[[], Learner]:
    return lambda: kind(mlp(), recipe=RECIPE, device="cpu", **settings)


KINDS = [
    Kind("SupSup", lambda: SupSup(mlp(), recipe=RECIPE, device="cpu"), looks_back=True),
    Kind("SupSup-cnn", lambda: SupSup(cnn(), recipe=RECIPE, device="cpu"), looks_back=True),
    Kind("HopSupSup", hop, mixes=False),
    Kind("BatchE", rival(BatchE, first=RECIPE), looks_back=True),
    Kind("PSP", rival(PSP), infers=False),
    Kind("SeparateHeads", rival(SeparateHeads), infers=False),
    Kind("UpperBound", rival(UpperBound), infers=False),
    Kind("LowerBound", rival(LowerBound), infers=False),
    Kind("LowerBound-single", rival(LowerBound, heads="single")),
    Kind("OnlineEWC", rival(OnlineEWC, images=10)),
    Kind("OnlineEWC-unshared", rival(OnlineEWC, images=10, labels="unshared")),
    Kind("SI", rival(SI)),
    Kind("SI-unshared", rival(SI, labels="unshared")),
]


def part(task: int, count: int, seed: int) -> Part:
    """Patterns of a task's classes under noise."""
    patterns = torch.randn(CLASSES, 1, 8, 8, generator=torch.Generator().manual_seed(task))
    labels = torch.arange(count) % CLASSES
    noise = torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(100 + seed))
    return Part(patterns[labels] + 0.3 * noise, labels)


TASKS = [Task(f"task-{i}", part(i, 90, i), part(i, 30, 50 + i), CLASSES) for i in range(3)]
NAMES = [task.name for task in TASKS]


@cache
def learned(kind: Kind) -> Learner:
    """A learner that has learned all tasks; promises that change one build their own."""
    model = kind.build()
    for task in TASKS:
        model.learn(task)
    return model


def images(task: int, count: int = 12) -> Tensor:
    return TASKS[task].test.batch(torch.arange(count))[0]


def well_formed(answer: Prediction, count: int) -> None:
    assert answer.labels.shape == answer.confidence.shape == (count,)
    assert answer.labels.dtype == torch.int64
    assert len(answer.tasks) == count
    assert ((answer.labels >= 0) & (answer.labels < CLASSES)).all()
    assert ((answer.confidence > 0) & (answer.confidence <= 1)).all()
    assert answer.probabilities.shape == (count, CLASSES)
    assert torch.allclose(answer.probabilities.sum(1), torch.ones(count), atol=1e-5)
    assert torch.equal(answer.probabilities.max(1).values, answer.confidence)
    assert answer.names == answer.labels.tolist()
    assert answer.task_confidence.shape == (count,)


def learns_one_task_after_another(kind: Kind) -> None:
    model = kind.build()
    assert isinstance(model, Learner)
    assert model.tasks == []
    for count, task in enumerate(TASKS, 1):
        assert model.learn(task) == task.name
        assert model.tasks == NAMES[:count]


def answers_for_a_known_task_with_that_task(kind: Kind) -> None:
    for index, name in enumerate(NAMES):
        answer = learned(kind).predict(images(index), task=name)
        well_formed(answer, 12)
        assert answer.tasks == [name] * 12
        assert torch.equal(learned(kind).predict(images(index), name).labels, answer.labels)


def answers_without_the_task_or_asks_for_it(kind: Kind) -> None:
    if kind.infers:
        answer = learned(kind).predict(images(1))
        well_formed(answer, 12)
        assert set(answer.tasks) <= set(NAMES)
    else:
        with pytest.raises(SupSupError, match=r"has to be told the task: predict\(x, task="):
            learned(kind).predict(images(1))


def answers_among_the_tasks_asked_for(kind: Kind) -> None:
    for among in (NAMES[:1], NAMES[:2], NAMES[::-2]):
        if kind.infers:
            answer = learned(kind).predict(images(1), among=among)
            well_formed(answer, 12)
            assert set(answer.tasks) <= set(among)
        else:
            with pytest.raises(SupSupError, match="has to be told the task"):
                learned(kind).predict(images(1), among=among)


def all_tasks_are_among_all_tasks(kind: Kind) -> None:
    if kind.infers:
        one, two = learned(kind).predict(images(1)), learned(kind).predict(images(1), among=NAMES)
        assert torch.equal(one.labels, two.labels)
        assert one.tasks == two.tasks


def answers_with_classes_that_the_task_has(kind: Kind) -> None:
    """After a step or two a network of 12 outputs would answer with any of them."""
    for seed in range(4):
        model = kind.build()
        if isinstance(model, HopSupSup):
            model.recipe = UnitRecipe(epochs=1, batch_size=16)
        else:
            for setting in ("recipe", "first"):
                if hasattr(model, setting):
                    setattr(model, setting, Recipe("adam", 1e-2, steps=1, batch_size=16))
        sizes = {"two": 2, "four": 4, "three": 3} if seed % 2 else {"three": 3, "two": 2}
        for number, (name, classes) in enumerate(sizes.items()):
            x, _ = part(number, 24, seed).tensors()
            some = Part(x, torch.arange(24) % classes)
            model.learn(Task(name, some, some, classes, tuple(f"{name}-{label}" for label in range(classes))))
        noise = 3 * torch.randn(40, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
        for name, classes in sizes.items():
            answer = model.predict(noise, task=name)
            assert answer.labels.max() < classes
            assert answer.probabilities.shape == (40, classes)
            assert set(answer.names) <= {f"{name}-{label}" for label in range(classes)}
        if kind.infers and kind.looks_back:
            answer = model.predict(noise)
            assert all(label < sizes[name] for label, name in zip(answer.labels.tolist(), answer.tasks))
            assert all(str(called).startswith(name) for called, name in zip(answer.names, answer.tasks))
            assert torch.allclose(answer.probabilities.sum(1), torch.ones(40), atol=1e-5)


def refuses_unknown_tasks(kind: Kind) -> None:
    calls: list[Callable[[], object]] = [
        lambda: learned(kind).predict(images(0), task="nobody"),
        lambda: learned(kind).predict(images(0), among=["task-0", "nobody"]),
    ]
    for call in calls:
        with pytest.raises(SupSupError, match="unknown task 'nobody'; known: task-0, task-1, task-2"):
            call()
    with pytest.raises(SupSupError, match=r"among=\[\] leaves no task"):
        learned(kind).predict(images(0), among=[])


def refuses_what_is_not_images(kind: Kind) -> None:
    poisoned = images(0)
    poisoned[3, 0, 0, 0] = float("nan")
    for x, message in ((poisoned, "NaN"), (images(0)[:, :, :4], "shape"), (images(0).long(), "floating point")):
        with pytest.raises(SupSupError, match=message):
            learned(kind).predict(x, task="task-0")


def refuses_to_answer_before_it_has_learned(kind: Kind) -> None:
    model = kind.build()
    calls: list[Callable[[], object]] = [
        lambda: model.predict(images(0)),
        lambda: model.predict(images(0), task="task-0"),
        lambda: model.predict(images(0), among=["task-0"]),
        lambda: evaluate(model, TASKS, "GG"),
    ]
    for call in calls:
        with pytest.raises(SupSupError, match="learn"):
            call()


def refuses_bad_tasks_and_learns_nothing_of_them(kind: Kind) -> None:
    model = kind.build()
    model.learn(TASKS[0])
    before = model.predict(images(0), task="task-0")
    x, y = TASKS[1].train.tensors()
    poisoned = x.clone()
    poisoned[5, 0, 2, 2] = float("inf")
    test = TASKS[1].test
    bad = [
        (TASKS[0], "learned already"),
        (Task("bad", Part(x, y[:0], rows=torch.zeros(0, dtype=torch.int64)), test, CLASSES), "is empty"),
        (Task("bad", Part(poisoned, y), test, CLASSES), "NaN or infinite"),
        (Task("bad", Part(x[:, :, :4], y), test, CLASSES), "shape"),
        (Task("bad", Part(x, y - 1), test, CLASSES), "count from 0"),
        (Task("bad", Part(x, y + 20), test, CLASSES + 20), "outputs"),
    ]
    for task, message in bad:
        with pytest.raises(SupSupError, match=message):
            model.learn(task)
        assert model.tasks == ["task-0"], message
        after = model.predict(images(0), task="task-0")
        assert torch.equal(before.labels, after.labels), message
        assert torch.equal(before.confidence, after.confidence), message


def is_graded_with_the_task_given(kind: Kind) -> None:
    graded = evaluate(learned(kind), TASKS, "GG")
    assert list(graded.per_task) == NAMES
    assert graded.task_accuracy == 1
    assert graded.average_accuracy > 0.5, "chance is a third at best"


def is_graded_as_of_earlier_stages_or_says_why_not(kind: Kind) -> None:
    """At the first stage there is one task to choose from, whatever was learned since."""
    if kind.looks_back:
        graded = evaluate(learned(kind), TASKS, "GNu", protocol="strict", stages=[1, 3])
        assert [list(grades) for grades in graded.grades] == [NAMES[:1], NAMES]
        assert graded.grades[0]["task-0"].inferred == 1
        on_the_way = follow(kind.build(), TASKS, "GNu", protocol="strict", stages=[1, 3])
        assert graded.grades == on_the_way.grades
    else:
        with pytest.raises(SupSupError, match=r"cannot look back.*use follow|one task at a time|told the task"):
            evaluate(learned(kind), TASKS, "GNu", protocol="strict", stages=[1, 3])
        with pytest.raises(SupSupError, match=r"cannot look back.*use follow"):
            evaluate(learned(kind), TASKS, "GG", stages=[1, 3])


def is_graded_without_the_task_or_says_why_not(kind: Kind) -> None:
    if kind.infers:
        assert list(evaluate(learned(kind), TASKS, "GNu").per_task) == NAMES
    else:
        with pytest.raises(SupSupError, match="has to be told the task"):
            evaluate(learned(kind), TASKS, "GNu")
    if kind.mixes and kind.infers:
        assert list(evaluate(learned(kind), TASKS, "GNu", protocol="strict").per_task) == NAMES
    elif kind.infers:
        with pytest.raises(SupSupError, match=r"one task at a time.*use protocol='paper'"):
            evaluate(learned(kind), TASKS, "GNu", protocol="strict")


PROMISES = [
    learns_one_task_after_another,
    answers_for_a_known_task_with_that_task,
    answers_without_the_task_or_asks_for_it,
    answers_among_the_tasks_asked_for,
    all_tasks_are_among_all_tasks,
    answers_with_classes_that_the_task_has,
    refuses_unknown_tasks,
    refuses_what_is_not_images,
    refuses_to_answer_before_it_has_learned,
    refuses_bad_tasks_and_learns_nothing_of_them,
    is_graded_with_the_task_given,
    is_graded_as_of_earlier_stages_or_says_why_not,
    is_graded_without_the_task_or_says_why_not,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_every_learner(promise: Callable[[Kind], None], kind: Kind) -> None:
    promise(kind)
