"""What counts as right under each scenario and protocol."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from supsup import Prediction, data, evaluate
from supsup.data import Stream, Task
from supsup.evaluation.grading import GradingCache, GradingProtocol, order_of_test
from supsup.runtime.errors import SupSupError


class Oracle:
    """Knows every answer by heart, but takes the batch at `wrong_at` for another task's."""

    def __init__(self, stream: Stream, wrong_at: int | None = None) -> None:
        self.tasks = [task.name for task in stream]
        self.known: dict[bytes, tuple[str, int, Tensor]] = {}  # image → task, place, label
        for task in stream:
            for place, (image, label) in enumerate(zip(*task.test.tensors())):
                self.known[image.numpy().tobytes()] = (task.name, place, label)
        self.wrong_at = wrong_at
        self.asked: list[str] = []  # tasks that it was told
        self.among: set[tuple[str, ...] | None] = set()  # tasks that came into question

    def learn(self, data: Task, /) -> str:
        return data.name

    def predict(self, x: Tensor, task: str | None = None, *, among: Sequence[str] | None = None) -> Prediction:
        names = self.infer_task(x, among=among) if task is None else [task] * len(x)
        self.asked += [] if task is None else [task]
        labels = torch.stack([self.known[image.numpy().tobytes()][2] for image in x])
        return Prediction(labels, list(names), torch.ones(len(x)))

    def infer_task(self, x: Tensor, *, per: str = "image", among: Sequence[str] | None = None) -> list[str] | str:
        self.among.add(None if among is None else tuple(among))
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


def test_batches_may_be_made_in_an_order_of_ones_own(stream: Stream) -> None:
    task = stream[0]
    order = torch.arange(len(task.test)).flip(0)
    for wrong_at, lost in ((999, 128), (998, 0)):  # the first image of all, and the second
        graded = evaluate(Oracle(stream[:1], wrong_at), stream[:1], cache=GradingCache(orders={task.name: order}))
        assert graded.average_accuracy == pytest.approx(1 - lost / 1000)


def test_the_strict_protocol_mixes_tasks_and_loses_only_the_image_itself(stream: Stream) -> None:
    oracle = Oracle(stream[:2], wrong_at=384)
    graded = evaluate(oracle, stream[:2], "GNu", protocol="strict")
    assert graded.per_task == pytest.approx({"permutation-0": 0.999, "permutation-1": 0.999})


def test_the_full_batch_decides_together(stream: Stream) -> None:
    oracle = Oracle(stream[:1], wrong_at=int(order_of_test(stream[0])[127]))
    assert evaluate(oracle, stream[:1], "GNu", protocol="paper-full-batch").average_accuracy == pytest.approx(0.872)


def test_answers_with_the_task_known_are_asked_for_once(stream: Stream) -> None:
    """Later stages grade the earlier tasks again; only what the learner takes them for may have changed."""
    oracle = Oracle(stream[:3])
    graded = evaluate(oracle, stream[:3], "GNu", stages=[1, 2, 3])
    assert graded.curve == [1, 1, 1]
    assert oracle.asked == ["permutation-0", "permutation-1", "permutation-2"]
    oracle.asked.clear()
    assert evaluate(oracle, stream[:3], "GG", stages=[2, 3]).curve == [1, 1]
    assert oracle.asked == ["permutation-0", "permutation-1", "permutation-2"]


def test_answers_are_kept_from_one_grading_to_another(stream: Stream) -> None:
    oracle, known = Oracle(stream[:2]), GradingCache()
    first = evaluate(oracle, stream[:2], "GNu", cache=known)
    oracle.asked.clear()
    assert evaluate(oracle, stream[:2], "GG", cache=known).per_task == first.per_task
    assert oracle.asked == []
    with pytest.raises(SupSupError, match="batches of 128"):
        evaluate(oracle, stream[:2], "GG", cache=known, batch_size=64)


def test_a_wrong_task_is_asked_for_labels_only_where_these_count(stream: Stream) -> None:
    oracle = Oracle(stream[:1], int(order_of_test(stream[0])[0]))
    evaluate(oracle, stream[:1], "GNu")
    assert {*oracle.asked} == {"permutation-0"}
    evaluate(oracle, stream[:1], "GNs")
    assert {*oracle.asked[1:]} == {"nonsense", "permutation-0"}


def test_other_images_decide_for_another_task(stream: Stream) -> None:
    orders = [order_of_test(task) for task in stream[:2]]
    assert not torch.equal(*orders)
    assert torch.equal(orders[0], order_of_test(stream[0]))
    assert torch.equal(orders[0].sort().values, torch.arange(len(stream[0].test)))


@pytest.mark.parametrize("protocol", ["paper", "paper-full-batch", "strict"])
def test_tasks_learned_later_do_not_come_into_question_at_an_earlier_stage(
    stream: Stream, protocol: GradingProtocol
) -> None:
    """Otherwise a curve over the number of tasks learned would show the last one's difficulty everywhere."""
    oracle = Oracle(stream[:3])
    evaluate(oracle, stream[:3], "GNu", protocol=protocol, stages=[2])
    assert oracle.among == {("permutation-0", "permutation-1")}


class Unannounced(Oracle):
    """Has a mask for each of two tasks, but takes one batch in four of the second task for the first."""

    def name_of(self, image: Tensor) -> str:
        name, place, _ = self.known[image.numpy().tobytes()]
        return "mask-1" if name == "permutation-1" and place not in self.mistaken else "mask-0"

    mistaken: frozenset[int] = frozenset()


@pytest.mark.parametrize("mistaken", [2, 6])
def test_a_mask_nobody_announced_belongs_to_the_task_it_is_used_for_most(stream: Stream, mistaken: int) -> None:
    """The share of tasks inferred right under NNs hangs on it; 8 batches of each task, of which some are mistaken."""
    oracle = Unannounced(stream[:2])
    oracle.mistaken = frozenset(order_of_test(stream[1])[::128][:mistaken].tolist())
    grades = evaluate(oracle, stream[:2], "NNs").grades[0]
    assert grades["permutation-0"].inferred == 1
    assert grades["permutation-1"].inferred == pytest.approx(1 - 0.128 * mistaken)
    assert [grade.accuracy for grade in grades.values()] == [1, 1], "with shared labels the label counts"


@pytest.mark.parametrize(("tasks", "asked"), [(40, [32, 8]), (32, [32])])
def test_deciding_images_of_many_tasks_are_handed_in_together(
    tasks: int, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by one they would take as many passes as there are tasks; all at once may not fit."""
    images, labels = torch.rand(5, 1, 4, 4), torch.arange(5)
    stream = data.permuted(data.arrays(images, labels, images, labels, normalise=False), tasks)
    oracle, sizes = Oracle(stream), list[int]()
    infer = oracle.infer_task

    def watched(x: Tensor, **how: object) -> list[str] | str:
        sizes.append(len(x))
        return infer(x, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(oracle, "infer_task", watched)
    assert evaluate(oracle, stream, "GNu", stages=[tasks]).average_accuracy == 1
    assert sizes == asked, "one image of each task decides"


def test_strict_batches_mix_sixteen_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = torch.rand(300, 1, 4, 4), torch.arange(300) % 5
    stream = data.permuted(data.arrays(images, labels, images, labels, normalise=False), 20)
    oracle, sizes = Oracle(stream), list[int]()
    predict = oracle.predict

    def watched(x: Tensor, task: str | None = None, *, among: Sequence[str] | None = None) -> Prediction:
        sizes.append(len(x))
        return predict(x, task, among=among)

    monkeypatch.setattr(oracle, "predict", watched)
    graded = evaluate(oracle, stream, "GNu", protocol="strict", stages=[20])
    assert (graded.average_accuracy, graded.task_accuracy) == (1, 1)
    assert sizes == [4096, 16 * 300 - 4096, 4 * 300]


class OneTaskPerCall(Oracle):
    one_task_per_call = True


def test_who_needs_images_of_one_task_at_a_time_is_not_given_a_mixture(stream: Stream) -> None:
    """Where the task is given, or one image of a batch decides, there is none."""
    model = OneTaskPerCall(stream[:2])
    for scenario, protocol in (("GNu", "paper"), ("GNu", "paper-full-batch"), ("GG", "strict"), ("GG", "paper")):
        assert evaluate(model, stream[:2], scenario, protocol=protocol).average_accuracy == 1  # type: ignore[arg-type]
    with pytest.raises(SupSupError, match="needs images of one task at a time"):
        evaluate(model, stream[:2], "GNu", protocol="strict")
    model.one_task_per_call = False
    assert evaluate(model, stream[:2], "GNu", protocol="strict").average_accuracy == 1
