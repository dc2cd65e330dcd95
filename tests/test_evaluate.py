"""Grading: what counts as right under each scenario and protocol."""

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from supsup import Allocation, Prediction, Recipe, SupSup, SupSupError, evaluate, follow, nets
from supsup.baselines import LowerBound
from supsup.data import Stream, Task
from supsup.evaluate import order_of_test


class Oracle:
    """Knows every answer by heart, but takes the batch at `wrong_at` for another task's."""

    def __init__(self, stream: Stream, wrong_at: int | None = None) -> None:
        self.tasks = [task.name for task in stream]
        self.known: dict[bytes, tuple[str, int, Tensor]] = {}  # image → task, place, label
        for task in stream:
            for place, (image, label) in enumerate(zip(*task.test.tensors())):
                self.known[image.numpy().tobytes()] = (task.name, place, label)
        self.wrong_at = wrong_at

    def learn(self, data: Task, /) -> str:
        return data.name

    def predict(self, x: Tensor, task: str | None = None) -> Prediction:
        names = self.infer_task(x) if task is None else [task] * len(x)
        labels = torch.stack([self.known[image.numpy().tobytes()][2] for image in x])
        return Prediction(labels, list(names), torch.ones(len(x)))

    def infer_task(self, x: Tensor, *, per: str = "image", among: Sequence[str] | None = None) -> list[str] | str:
        if per == "batch":
            return self.name_of(x[-1])
        return [self.name_of(image) for image in x]

    def name_of(self, image: Tensor) -> str:
        name, place, _ = self.known[image.numpy().tobytes()]
        return "nonsense" if place == self.wrong_at else name


def test_one_image_decides_for_its_batch_and_a_wrong_task_is_wrong(stream: Stream) -> None:
    """1,000 test images make 8 batches of 128; the 4th one's first image (384th in order) is mistaken."""
    order = order_of_test(stream[0])
    right = Oracle(stream[:1])
    assert evaluate(right, stream[:1], "GNu").average_accuracy == 1
    for wrong_at, lost in ((384, 128), (385, 0), (896, 104)):
        oracle = Oracle(stream[:1], int(order[wrong_at]))
        graded = evaluate(oracle, stream[:1], "GNu")
        assert graded.average_accuracy == pytest.approx(1 - lost / 1000)
        assert graded.task_accuracy == pytest.approx(1 - lost / 1000)
        assert evaluate(oracle, stream[:1], "GNs").average_accuracy == 1, "with shared labels the label counts"
        assert evaluate(oracle, stream[:1], "GG").average_accuracy == 1


def test_the_strict_protocol_mixes_tasks_and_loses_only_the_image_itself(stream: Stream) -> None:
    oracle = Oracle(stream[:2], wrong_at=384)
    graded = evaluate(oracle, stream[:2], "GNu", protocol="strict")
    assert graded.per_task == pytest.approx({"permutation-0": 0.999, "permutation-1": 0.999})


def test_the_full_batch_decides_together(stream: Stream) -> None:
    oracle = Oracle(stream[:1], wrong_at=int(order_of_test(stream[0])[127]))
    assert evaluate(oracle, stream[:1], "GNu", protocol="paper-full-batch").average_accuracy == pytest.approx(0.872)


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
    ]
    for call, message in cases:
        with pytest.raises(SupSupError, match=message):
            call()
