"""Many threads ask one model while another changes it: every answer is that of one state of the model, whole."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from supsup import HopSupSup, NewTaskRule, Recipe, SupSup, SupSupError, UnitRecipe, data, nets
from supsup.data import Stream
from supsup.model.state import state_of
from supsup.runtime.locks import ReadersWriter
from supsup_paper.baselines import BatchE, OnlineEWC, UpperBound
from tests.attack import asking
from tests.attack.asking import NETWORKS, Asked, Convolutional, ask_while_another_learns

SECONDS = 1.0


@pytest.fixture(scope="module")
def permutations() -> Stream:
    return asking.permutations()


@pytest.fixture(scope="module")
def x(permutations: Stream) -> Tensor:
    return asking.images(permutations)


def at_once(workers: Sequence[Callable[[threading.Event], Any]], seconds: float = SECONDS) -> None:
    asking.at_once(workers, seconds)


@pytest.mark.parametrize("kind", list(NETWORKS))
def test_answers_while_another_thread_learns_and_forgets(kind: str, permutations: Stream) -> None:
    threads, asked = torch.get_num_threads(), Asked()
    ask_while_another_learns(kind, permutations, SECONDS, asked)
    assert all(asked.known)
    assert all(asked.unknown)
    assert torch.get_num_threads() == threads


def test_networks_with_dropout_learn_in_threads_what_they_learn_alone(permutations: Stream, x: Tensor) -> None:
    """Both draw from one generator of the process, and so does a third that observes."""

    def model(seed: int) -> SupSup:
        torch.manual_seed(seed)
        return SupSup(Convolutional(), seed, recipe=Recipe(steps=15, batch_size=16), device="cpu")

    def masks(model: SupSup) -> dict[str, bytes]:
        return {
            task.name: state_of(model).bank.packed(i).numpy().tobytes() for i, task in enumerate(state_of(model).tasks)
        }

    tasks = permutations[:3]
    alone = [model(seed) for seed in range(2)]
    for each in alone:
        each.learn_many(tasks)
    together, observe_part = [model(seed) for seed in range(2)], model(5)
    before = torch.get_rng_state()
    done = threading.Barrier(len(together) + 1)

    def learn(each: SupSup, end: threading.Event) -> None:
        each.learn_many(tasks)
        done.wait(60)

    def observe(end: threading.Event) -> None:
        images, labels = tasks[0].train.batch(torch.arange(16))
        while not end.is_set():
            observe_part.observe(images, labels)
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

    at_once([look], seconds=0.1)  # what a new thread begins with, which other tests may have changed
    at_once([lambda end, m=model: learn(m, end) for model in models], seconds=1)  # type: ignore[misc]
    at_once([look], seconds=0.1)
    assert (torch.get_num_threads(), later[1]) == (before, later[0])
    masks = [state_of(model).bank.packed(3) for model in models]
    assert torch.equal(masks[0], masks[1])


def test_answers_while_another_thread_observes(permutations: Stream, x: Tensor) -> None:
    recipe = Recipe(steps=2, batch_size=16)
    model = SupSup(nets.FullyConnected((784, 40, 20)), recipe=recipe, new_task_rule=NewTaskRule(every=5), device="cpu")
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
    with state_of(small).lock.reading():
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
