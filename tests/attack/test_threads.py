"""Many threads ask one model while another changes it: every answer is that of one state of the model, whole."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from supsup import Allocation, HopSupSup, Recipe, SupSup, SupSupError, UnitRecipe, data, nets
from supsup.baselines import BatchE, OnlineEWC, UpperBound
from supsup.concurrency.locks import ReadersWriter
from supsup.data import Stream

SECONDS = 1.0
ALWAYS, COMING_AND_GOING = 4, 3  # tasks that stay, and tasks of which one at a time is there


class Convolutional(nn.Module):
    """Statistics, dropout and a forward pass of its own: nothing about it is known beforehand."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, stride=4, bias=False), nn.BatchNorm2d(4)
        self.drop, self.linear = nn.Dropout(0.3), nn.Linear(196, 20)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(self.drop(self.norm(self.conv(x.view(-1, 1, 28, 28))).relu().flatten(1)))
        return out


class Attentive(nn.Module):
    """Attention, whose kernel is a setting of the whole process."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.linear = nn.MultiheadAttention(28, 4, batch_first=True), nn.Linear(28, 20)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.view(-1, 28, 28)
        out: Tensor = self.linear(self.attention(rows, rows, rows, need_weights=False)[0].mean(1))
        return out


def networks() -> dict[str, Callable[[], nn.Module]]:
    return {
        "fully connected": lambda: nets.FullyConnected((784, 40, 20)),
        "convolutional": Convolutional,
        "attentive": Attentive,
        "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 30), nn.Tanh(), nn.Linear(30, 20)),
    }


@pytest.fixture(scope="module")
def permutations() -> Stream:
    return data.permuted(data.digits(), ALWAYS + COMING_AND_GOING, seed=3)


@pytest.fixture(scope="module")
def x(permutations: Stream) -> Tensor:
    return torch.cat([task.test.batch(torch.arange(3))[0] for task in permutations])


def at_once(workers: Sequence[Callable[[threading.Event], Any]], seconds: float = SECONDS) -> None:
    """Run these side by side for a while, then raise the first error of any of them."""
    end, errors = threading.Event(), list[BaseException]()

    def guarded(worker: Callable[[threading.Event], Any]) -> None:
        try:
            worker(end)
        except BaseException as error:
            errors.append(error)
            end.set()

    threads = [threading.Thread(target=guarded, args=[worker], daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    end.wait(seconds)
    end.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread waits for ever"
    if errors:
        raise errors[0]


@pytest.mark.parametrize("kind", list(networks()))
def test_answers_while_another_thread_learns_and_forgets(kind: str, permutations: Stream, x: Tensor) -> None:
    stay, others = permutations[:ALWAYS], permutations[ALWAYS:]
    model = SupSup(networks()[kind](), seed=2, recipe=Recipe(steps=2, batch_size=16), device="cpu")
    model.learn_many(permutations)
    known = {task.name: model.predict(x, task.name) for task in permutations}
    for task in others:
        model.forget(task.name)
    inferred = []
    for come in [[], *([task] for task in others)]:
        for task in come:
            model.learn(task)
        inferred.append(model.predict(x).tasks)
        for task in come:
            model.forget(task.name)
    possible = [set(choices) for choices in zip(*inferred)]
    asked = [0] * 8

    def check(prediction: Any, rows: range) -> None:
        for position, row in enumerate(rows):
            name = prediction.tasks[position]
            assert prediction.labels[position] == known[name].labels[row], "a label of another mask"
            assert abs(float(prediction.confidence[position] - known[name].confidence[row])) < 1e-4

    def asker(number: int, end: threading.Event) -> None:
        while not end.is_set():
            name = stay[(number + asked[number]) % ALWAYS].name
            check(model.predict(x, name), range(len(x)))
            row = (number + asked[number]) % len(x)
            for rows in (range(row, row + 1), range(len(x))):
                found = model.predict(x[rows.start : rows.stop])
                assert all(found.tasks[i] in possible[row] for i, row in enumerate(rows)), "a task of no state"
                check(found, rows)
            assert model.tasks[:ALWAYS] == [task.name for task in stay]
            asked[number] += 1

    def changer(end: threading.Event) -> None:
        masks: dict[str, Tensor] = {}
        while not end.is_set():
            for task in others:
                model.learn(task)
                found = torch.cat([bits.flatten() for bits in model.mask(task.name).values()])
                assert torch.equal(masks.setdefault(task.name, found), found), "another mask than last time"
                model.forget(task.name)

    threads = torch.get_num_threads()
    at_once([changer, *(lambda end, n=n: asker(n, end) for n in range(8))])
    assert all(asked)
    assert torch.get_num_threads() == threads


def test_networks_with_dropout_learn_in_threads_what_they_learn_alone(permutations: Stream, x: Tensor) -> None:
    """Both draw from one generator of the process, and so does a third that observes."""

    def model(seed: int) -> SupSup:
        torch.manual_seed(seed)
        return SupSup(Convolutional(), seed, recipe=Recipe(steps=15, batch_size=16), device="cpu")

    def masks(model: SupSup) -> dict[str, bytes]:
        return {task.name: model.bank.packed(i).numpy().tobytes() for i, task in enumerate(model.state.tasks)}

    tasks = permutations[:3]
    alone = [model(seed) for seed in range(2)]
    for each in alone:
        each.learn_many(tasks)
    together, observing = [model(seed) for seed in range(2)], model(5)
    before = torch.get_rng_state()
    done = threading.Barrier(len(together) + 1)

    def learn(each: SupSup, end: threading.Event) -> None:
        each.learn_many(tasks)
        done.wait(60)

    def observe(end: threading.Event) -> None:
        images, labels = tasks[0].train.batch(torch.arange(16))
        while not end.is_set():
            observing.observe(images, labels)
            alone[0].predict(x[:2])

    def stop(end: threading.Event) -> None:
        done.wait(60)
        end.set()

    at_once([*(lambda end, each=each: learn(each, end) for each in together), observe, stop], seconds=60)
    assert [masks(each) for each in together] == [masks(each) for each in alone]
    assert not torch.equal(torch.get_rng_state(), before), "only the one that observes may move the generator"


def test_learning_in_threads_leaves_torch_its_threads(permutations: Stream) -> None:
    before, later = torch.get_num_threads(), list[int]()
    models = [SupSup(nets.FullyConnected((784, 8, 10)), recipe=Recipe(steps=3), device="cpu") for _ in range(3)]

    def learn(model: SupSup, end: threading.Event) -> None:
        model.learn_many(permutations)

    def look(end: threading.Event) -> None:
        later.append(torch.get_num_threads())

    at_once([lambda end, m=model: learn(m, end) for model in models], seconds=1)  # type: ignore[misc]
    at_once([look], seconds=0.1)
    assert (torch.get_num_threads(), later) == (before, [before])
    masks = [model.bank.packed(3) for model in models]
    assert torch.equal(masks[0], masks[1])


def test_answers_while_another_thread_observes(permutations: Stream, x: Tensor) -> None:
    recipe = Recipe(steps=2, batch_size=16)
    model = SupSup(nets.FullyConnected((784, 40, 20)), recipe=recipe, allocation=Allocation(every=5), device="cpu")
    model.learn_many(permutations[:2])
    expected = model.predict(x, permutations[0].name)

    def observe(end: threading.Event) -> None:
        number = 0
        while not end.is_set():
            first = number % 100
            model.observe(*permutations[2 + number // 40 % 3].train.batch(torch.arange(first, first + 16)))
            number += 1

    def ask(end: threading.Event) -> None:
        while not end.is_set():
            found = model.predict(x, permutations[0].name)
            assert torch.equal(found.labels, expected.labels)
            assert set(model.predict(x).tasks) <= set(model.tasks)

    at_once([observe, *[ask] * 4], seconds=0.7)


@pytest.mark.parametrize("kind", [BatchE, OnlineEWC, UpperBound])
def test_rivals_answer_while_they_learn(kind: Any, permutations: Stream, x: Tensor) -> None:
    """A rival forgets, so only what it must not touch is compared: tasks with weights of their own."""
    torch.manual_seed(0)
    brief: dict[str, Any] = {"images": 20} if kind is OnlineEWC else {}
    model = kind(Convolutional(), recipe=Recipe("adam", 1e-3, steps=3, batch_size=16), device="cpu", **brief)
    model.learn(permutations[0])
    expected = model.predict(x, permutations[0].name)

    def learn(end: threading.Event) -> None:
        for task in permutations[1:]:
            if not end.is_set():
                model.learn(task)

    def ask(end: threading.Event) -> None:
        while not end.is_set():
            found = model.predict(x, permutations[0].name)
            assert found.confidence.isfinite().all()
            if kind is not OnlineEWC:
                assert torch.equal(found.labels, expected.labels)
            assert set(model.predict(x, model.tasks[-1]).tasks) <= set(model.tasks)

    at_once([learn, *[ask] * 4], seconds=0.7)


def test_a_memory_answers_while_it_learns() -> None:
    split = data.split(data.digits(), 2)
    model = HopSupSup(nets.HopMLP((784, 64, 64, 10)), recipe=UnitRecipe(batch_size=64), device="cpu")
    model.learn(split[0])
    images = split[0].test.tensors()[0][:20]

    def learn(end: threading.Event) -> None:
        for task in split[1:]:
            model.learn(task)

    def ask(end: threading.Event) -> None:
        while not end.is_set():
            found = model.predict(images)
            assert set(found.tasks) <= set(model.tasks)

    at_once([learn, *[ask] * 4], seconds=0.7)
    assert len(model.tasks) == len(split)


def test_reading_again_and_changing_from_inside(small: SupSup, images: Tensor, stream: Stream) -> None:
    """A thread must never wait for itself."""
    with small.state.lock.reading():
        assert small.predict(images).tasks == small.predict(images).tasks
        with pytest.raises(SupSupError, match="from inside one of its own answers"):
            small.forget(small.tasks[0])
    small.forget(small.tasks[0])
    assert len(small.tasks) == 1


def test_a_writer_comes_to_its_turn_however_many_read() -> None:
    lock, written = ReadersWriter(), list[int]()
    torn: list[int] = [0, 0]

    def read(end: threading.Event) -> None:
        while not end.is_set():
            with lock.reading(), lock.reading():
                assert torn[0] == torn[1]

    def write(end: threading.Event) -> None:
        for number in range(200):
            with lock.writing():
                torn[0] = number
                torn[1] = number
            written.append(number)
        end.set()

    at_once([write, *[read] * 8], seconds=30)
    assert len(written) == 200
