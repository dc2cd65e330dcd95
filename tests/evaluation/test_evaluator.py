"""How good a learner is on a stream, now and at earlier stages."""

import json
import math
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from supsup import Evaluation, NewTaskRule, Recipe, SupSup, SupSupError, evaluate, nets
from supsup.data import Stream
from supsup.evaluation.evaluator import learn_and_evaluate, learn_and_evaluate_steps
from supsup.runtime import progress
from supsup_paper.baselines import LowerBound


def test_a_learner_is_graded_on_what_it_knows(learned: SupSup, stream: Stream) -> None:
    graded = evaluate(learned, stream, "GNu")
    assert list(graded.per_task) == learned.tasks
    assert graded.task_accuracy > 0.99
    assert 0.8 < graded.average_accuracy <= evaluate(learned, stream, "GG").average_accuracy
    assert abs(graded.forgetting) < 0.02
    assert graded.forgetting == -graded.backward_transfer


def test_earlier_stages_can_be_graded_afterwards(learned: SupSup, stream: Stream) -> None:
    """As if only the first tasks had been learned: the same as grading on the way."""
    model = SupSup(nets.lenet_300_100(outputs=50), seed=0, recipe=Recipe(steps=80), device="cpu")
    on_the_way = learn_and_evaluate(model, stream[:2], "GNu")
    looking_back = evaluate(learned, stream, "GNu", stages=[1, 2])
    assert looking_back.grades == on_the_way.grades
    assert looking_back.curve == on_the_way.curve


def test_forgetting_shows_where_it_happens(stream: Stream) -> None:
    net = nets.FullyConnected((784, 30, 10))
    graded = learn_and_evaluate(
        LowerBound(net, heads="single", recipe=Recipe(learning_rate=1e-2, steps=40), device="cpu"), stream[:3], "GNs"
    )
    assert graded.stages == [1, 2, 3]
    assert graded.forgetting > 0.1
    assert graded.fresh["permutation-0"].accuracy > graded.per_task["permutation-0"] + 0.1


def test_the_matrix_and_both_transfers(stream: Stream) -> None:
    model = SupSup(nets.lenet_300_100(outputs=50), recipe=Recipe(steps=40), device="cpu")
    graded = learn_and_evaluate(model, stream[:3], "GNs", ahead=True)
    assert [[math.isnan(cell) for cell in row] for row in graded.matrix] == [
        [False, True, True],
        [False, False, True],
        [False, False, False],
    ]
    assert graded.matrix[2] == list(graded.per_task.values())
    assert list(graded.ahead) == ["permutation-1", "permutation-2"]
    assert 0 < graded.forward_transfer < 0.4, "a permutation never seen before is hardly better than chance"
    changes = [graded.matrix[2][i] - graded.matrix[i][i] for i in (0, 1)]
    assert graded.backward_transfer == pytest.approx(sum(changes) / 2)


def test_figures_go_to_other_programs(learned: SupSup, stream: Stream) -> None:
    graded = evaluate(learned, stream, "Class-IL", stages=[1, 4])
    read = json.loads(graded.to_json())
    assert read["scenario"] == "GNu"
    assert read["average_accuracy"] == graded.average_accuracy
    assert read["forward_transfer"] is None, "not measured"
    assert read["grades"][1]["permutation-3"]["accuracy"] == graded.per_task["permutation-3"]
    lines = graded.to_csv().splitlines()
    assert lines[0] == "stage,task,accuracy,task_accuracy"
    assert len(lines) == 1 + 1 + 4
    assert lines[-1].startswith(f"4,permutation-3,{graded.per_task['permutation-3']}")


def test_forgetting_that_was_not_measured_is_not_a_number(stream: Stream) -> None:
    model = LowerBound(nets.FullyConnected((784, 10)), heads="single", recipe=Recipe(steps=1), device="cpu")
    for task in stream[:2]:
        model.learn(task)
    assert math.isnan(evaluate(model, stream, "GNs").forgetting)


def test_unannounced_tasks(stream: Stream) -> None:
    model = SupSup(
        nets.lenet_300_100(outputs=100), recipe=Recipe(steps=150), new_task_rule=NewTaskRule(every=50), device="cpu"
    )
    graded = learn_and_evaluate(model, stream[:3], "NNs")
    assert graded.masks == 3
    assert graded.task_accuracy > 0.99
    assert graded.average_accuracy > 0.6
    assert evaluate(model, stream[:3], "NNs").per_task == graded.per_task


def test_a_learner_without_observe_is_not_given_unannounced_tasks(stream: Stream) -> None:
    with pytest.raises(SupSupError, match="batches of unknown tasks"):
        learn_and_evaluate(LowerBound(nets.lenet_300_100(), device="cpu"), stream[:1], "NNs")


def test_any_learner_with_observe_can_learn_unannounced_tasks(stream: Stream) -> None:
    """Batch by batch through its public method, with the same grades as ours has through the fast way."""

    class Wrapped:
        def __init__(self, model: SupSup) -> None:
            self.model, self.batches = model, 0
            self.recipe, self.seed, self.device = model.recipe, model.seed, model.device
            self.predict, self.learn, self.infer_task = model.predict, model.learn, model.infer_task

        @property
        def tasks(self) -> list[str]:
            return self.model.tasks

        def observe(self, x: torch.Tensor, y: torch.Tensor) -> str | None:
            self.batches += 1
            return self.model.observe(x, y)

    def model() -> SupSup:
        rule = NewTaskRule(every=10)
        return SupSup(nets.FullyConnected((784, 30, 10)), recipe=Recipe(steps=20), new_task_rule=rule, device="cpu")

    wrapped = Wrapped(model())
    assert (
        learn_and_evaluate(wrapped, stream[:2], "NNs").grades == learn_and_evaluate(model(), stream[:2], "NNs").grades
    )
    assert wrapped.batches == 40


def test_wrong_questions(learned: SupSup, stream: Stream) -> None:
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: evaluate(learned, stream, "NNu"), "known: GG"),
        (lambda: evaluate(learned, stream, protocol="lenient"), "paper-full-batch"),  # type: ignore[arg-type]
        (lambda: evaluate(learned, stream[4:]), "has learned no task"),
        (lambda: evaluate(learned, stream, stages=[5]), "stages"),
        (lambda: evaluate(learned, stream, stages=[0, 1]), "stages"),
        (lambda: evaluate(learned, stream, stages=[]), "stages"),
        (lambda: learn_and_evaluate(learned, []), "no tasks"),
        (lambda: learn_and_evaluate(learned, stream, "GNu", ahead=True), "tasks share"),
    ]
    for call, message in cases:
        with pytest.raises(SupSupError, match=message):
            call()


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, list[float]]]:
    """What every bar was to count to, and what it was told."""
    seen: list[tuple[str, int, list[float]]] = []

    @contextmanager
    def bar(description: str, total: int, *rest: Any, **how: Any) -> Iterator[Callable[[float], None]]:
        seen.append((description, total, []))
        yield seen[-1][2].append

    monkeypatch.setattr(progress, "bar", bar)
    return seen


def small_bound(steps: int = 1) -> LowerBound:
    return LowerBound(nets.FullyConnected((784, 10)), heads="single", recipe=Recipe(steps=steps), device="cpu")


def test_bars_end_where_the_work_does(small: SupSup, stream: Stream, bars: list[tuple[str, int, list[float]]]) -> None:
    evaluate(small, stream, "GNu")
    evaluate(small, stream, "GNu", stages=[1, 2])
    learn_and_evaluate(small_bound(), stream[:2], "GNs")
    model = SupSup(
        nets.FullyConnected((784, 10)), recipe=Recipe(steps=4), new_task_rule=NewTaskRule(every=2), device="cpu"
    )
    learn_and_evaluate(model, stream[:2], "NNs", description="observing")
    assert [(name, total) for name, total, _ in bars] == [
        ("grading", 3),
        ("grading", 2),
        ("learning", 2),
        ("observing", 2),
    ]
    assert [sum(replaced) for _, _, replaced in bars] == [total for _, total, _ in bars]


def walked(way: Generator[int, None, Evaluation]) -> tuple[list[int], Evaluation]:
    """What a way tells as it goes, and what it returns."""
    replaced = []
    while True:
        try:
            replaced.append(next(way))
        except StopIteration as end:
            return replaced, end.value


def test_tasks_are_graded_before_they_are_learned_only_if_asked_for(stream: Stream) -> None:
    """It would cost as much again, and what is not asked for is not known."""
    model = small_bound()
    assert math.isnan(learn_and_evaluate(model, stream[:2], "GNs").forward_transfer)
    replaced, graded = walked(learn_and_evaluate_steps(small_bound(), stream[:2], "GNs"))
    assert replaced == [1, 1]
    assert graded.ahead == {}
    assert graded.stages == [1, 2]


def test_who_has_seen_some_tasks_learns_the_others(stream: Stream) -> None:
    """A training that was interrupted goes on, and is graded as if it had not been."""
    whole = learn_and_evaluate(small_bound(3), stream[:3], "GNs", stages=[2, 3], ahead=True)
    model = small_bound(3)
    for task in stream[:2]:
        model.learn(task)
    replaced, graded = walked(learn_and_evaluate_steps(model, stream[:3], "GNs", stages=[2, 3], learned=2, ahead=True))
    assert replaced == [1]
    assert (graded.grades, graded.stages, graded.masks) == (whole.grades, [2, 3], whole.masks)
    assert list(graded.ahead) == ["permutation-2"]
    assert graded.ahead["permutation-2"] == whole.ahead["permutation-2"]


def test_figures_by_hand() -> None:
    """Two tasks: the first fell from 0.9 to 0.6 after the second was learned."""
    from supsup.evaluation.grading import Grade

    early, late = {"a": Grade(0.9, 1.0)}, {"a": Grade(0.6, 0.8), "b": Grade(0.8, 0.4)}
    fresh = {"a": Grade(0.9, 1.0), "b": Grade(0.8, 0.4)}
    graded = Evaluation("GNu", "paper", [1, 2], [early, late], fresh, 2, {"b": Grade(0.1, 0.0), "c": Grade(0.3, 0.0)})
    assert graded.curve == pytest.approx([0.9, 0.7])
    assert graded.average_accuracy == pytest.approx(0.7)
    assert graded.task_accuracy == pytest.approx(0.6)
    assert graded.backward_transfer == pytest.approx(-0.3)
    assert graded.forgetting == pytest.approx(0.3)
    assert graded.forward_transfer == pytest.approx(0.2)
    alone = Evaluation("GNu", "paper", [1], [early], fresh, 1)
    assert (alone.backward_transfer, alone.forgetting) == (0, 0)
    assert str(alone.forgetting) == "0.0"
    unknown = Evaluation("GNu", "paper", [1], [{"a": Grade(math.nan, 1.0)}], {}, 1)
    with pytest.raises(ValueError, match="JSON"):
        unknown.to_json()


def test_what_was_known_before_a_task_was_learned_is_asked_again(stream: Stream) -> None:
    """With the task given too: a trunk that went on has other answers."""
    recipe = Recipe(learning_rate=1e-2, steps=30)
    model = LowerBound(nets.FullyConnected((784, 30, 10)), recipe=recipe, device="cpu")
    graded = learn_and_evaluate(model, stream[:2], "GG")
    assert graded.grades[-1] == evaluate(model, stream[:2], "GG").grades[-1]
    assert graded.grades[0]["permutation-0"].accuracy > graded.grades[1]["permutation-0"].accuracy
