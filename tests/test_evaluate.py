"""How good a learner is on a stream, now and at earlier stages."""

import json
import math
from collections.abc import Callable

import pytest

from supsup import Allocation, Recipe, SupSup, SupSupError, evaluate, follow, nets
from supsup.baselines import LowerBound
from supsup.data import Stream


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
    on_the_way = follow(model, stream[:2], "GNu")
    looking_back = evaluate(learned, stream, "GNu", stages=[1, 2])
    assert looking_back.grades == on_the_way.grades
    assert looking_back.curve == on_the_way.curve


def test_forgetting_shows_where_it_happens(stream: Stream) -> None:
    net = nets.FullyConnected((784, 30, 10))
    graded = follow(
        LowerBound(net, heads="single", recipe=Recipe(learning_rate=1e-2, steps=40), device="cpu"), stream[:3], "GNs"
    )
    assert graded.stages == [1, 2, 3]
    assert graded.forgetting > 0.1
    assert graded.fresh["permutation-0"].accuracy > graded.per_task["permutation-0"] + 0.1


def test_the_matrix_and_both_transfers(stream: Stream) -> None:
    model = SupSup(nets.lenet_300_100(outputs=50), recipe=Recipe(steps=40), device="cpu")
    graded = follow(model, stream[:3], "GNs", ahead=True)
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
        nets.lenet_300_100(outputs=100), recipe=Recipe(steps=150), allocation=Allocation(every=50), device="cpu"
    )
    graded = follow(model, stream[:3], "NNs")
    assert graded.masks == 3
    assert graded.task_accuracy > 0.99
    assert graded.average_accuracy > 0.6
    assert evaluate(model, stream[:3], "NNs").per_task == graded.per_task


def test_only_supsup_learns_unannounced(stream: Stream) -> None:
    with pytest.raises(SupSupError, match="without being told"):
        follow(LowerBound(nets.lenet_300_100(), device="cpu"), stream[:1], "NNs")


def test_wrong_questions(learned: SupSup, stream: Stream) -> None:
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: evaluate(learned, stream, "NNu"), "known: GG"),
        (lambda: evaluate(learned, stream, protocol="lenient"), "paper-full-batch"),  # type: ignore[arg-type]
        (lambda: evaluate(learned, stream[4:]), "knows no task"),
        (lambda: evaluate(learned, stream, stages=[5]), "stages"),
        (lambda: follow(learned, []), "no tasks"),
        (lambda: follow(learned, stream, "GNu", ahead=True), "tasks share"),
    ]
    for call, message in cases:
        with pytest.raises(SupSupError, match=message):
            call()
