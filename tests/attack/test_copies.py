"""Copies by pickle, copy, torch.save, joblib, spawned and forked processes: right, or refused with a reason."""

import copy
import io
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import supsup
from supsup import HopSupSup, NewTaskRule, Recipe, Recovery, SupSup, SupSupError, UnitRecipe, nets
from supsup.data import Stream
from supsup.file.repair import verify
from supsup.model.state import state_of
from supsup_paper.baselines import PSP, SI, BatchE

WAIT = 60.0  # seconds for a process that ought to answer at once


def by_pickle(model: Any) -> Any:
    return pickle.loads(pickle.dumps(model))


def by_torch(model: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def by_joblib(model: Any) -> Any:
    joblib = pytest.importorskip("joblib")
    buffer = io.BytesIO()
    joblib.dump(model, buffer)
    buffer.seek(0)
    return joblib.load(buffer)


WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": by_pickle,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "torch": by_torch,
    "joblib": by_joblib,
}


class Own(nn.Module):
    """A network that a file does not know how to build; its bias is not from the seed."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.last = nn.Linear(784, 12), nn.BatchNorm1d(12), nn.Linear(12, 10)
        nn.init.uniform_(self.norm.bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.norm(self.linear(x.flatten(1))).relu())
        return out


class Named(SupSup):
    """A subclass with something of its own."""

    nickname = "none"


def same_answers(model: SupSup, other: SupSup, images: Tensor) -> None:
    for task in (*model.tasks, *reversed(model.tasks), None):
        one, two = model.predict(images, task), other.predict(images, task)
        assert torch.equal(one.labels, two.labels), f"other labels for {task}"
        assert one.tasks == two.tasks


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_answers_as_the_model_and_stands_on_its_own(
    way: str, small: SupSup, images: Tensor, stream: Stream
) -> None:
    """After an answer: the mask that happens to be on must not be the copy's only one."""
    small.notes["why"], small.extras[small.tasks[0]] = ["to", "see"], {"x": torch.ones(2)}
    small.predict(images, small.tasks[1])
    small.predict(images)
    other = WAYS[way](small)
    same_answers(small, other, images)
    assert (other.notes, other.recipe, other.created) == (small.notes, small.recipe, small.created)
    assert torch.equal(other.extras[small.tasks[0]]["x"], torch.ones(2))
    other.notes["why"].append("more")
    other.extras[small.tasks[0]]["x"].zero_()
    other.learn(stream[2])
    other.forget(stream[0].name)
    assert small.notes["why"] == ["to", "see"]
    assert torch.equal(small.extras[small.tasks[0]]["x"], torch.ones(2))
    assert small.tasks == [stream[0].name, stream[1].name]
    small.learn(stream[2])
    assert torch.equal(state_of(small).bank.packed(2), state_of(other).bank.packed(1))


@pytest.mark.parametrize("way", WAYS)
def test_a_network_of_ones_own_and_a_subclass(way: str, images: Tensor, stream: Stream) -> None:
    model = Named(Own(), recipe=Recipe(steps=3), device="cpu")
    model.nickname = "Own"
    model.learn_many(stream[:2])
    model.predict(images, model.tasks[0])
    other = WAYS[way](model)
    assert type(other) is Named
    assert other.nickname == "Own"
    same_answers(model, other, images)


@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
def test_what_is_half_trained_stays_behind(way: str, stream: Stream, images: Tensor) -> None:
    model = SupSup(nets.FullyConnected((784, 20, 10)), new_task_rule=NewTaskRule(every=2), device="cpu")
    for number in range(3):
        model.observe(*stream[0].train.batch(torch.arange(16 * number, 16 * number + 16)))
    other = WAYS[way](model)
    same_answers(model, other, images)
    assert other._observer.name is None
    for each in (model, other):
        each.observe(*stream[0].train.batch(torch.arange(16)))


@pytest.mark.parametrize("way", WAYS)
def test_a_model_in_a_file_has_copies_that_live_in_none(
    way: str, small: SupSup, images: Tensor, stream: Stream, tmp_path: Path
) -> None:
    path = tmp_path / "m.supsup"
    small.save(path)
    with supsup.load(path, in_place=True, device="cpu") as model:
        other = WAYS[way](model)
        other.forget(other.tasks[0])
        other.close()
        with pytest.raises(SupSupError, match="has no file"):
            other.save()
        model.learn(stream[2])
    assert verify(path).clean
    assert len(supsup.load(path, device="cpu").tasks) == 3


@pytest.mark.parametrize("way", WAYS)
def test_a_memory_of_constant_size(way: str, split: Stream) -> None:
    recipe, recovery = UnitRecipe(batch_size=64), Recovery(batch_size=32)
    memory = HopSupSup(nets.HopMLP((784, 48, 48, 10)), recipe=recipe, recovery=recovery, device="cpu")
    memory.learn(split[0])
    x = split[0].test.tensors()[0][:32]
    memory.predict(x)
    other = WAYS[way](memory)
    assert torch.equal(memory.predict(x).labels, other.predict(x).labels)
    memory.learn(split[1])
    assert (other.tasks, len(memory.tasks)) == ([split[0].name], 2)


@pytest.mark.parametrize("way", WAYS)
def test_rivals(way: str, stream: Stream, images: Tensor) -> None:
    for kind in (BatchE, PSP, SI):
        rival = kind(nets.FullyConnected((784, 20, 10)), recipe=Recipe("adam", 1e-3, steps=2), device="cpu")
        rival.learn_many(stream[:2])
        twin = WAYS[way](rival)
        for task in stream[:2]:
            assert torch.equal(rival.predict(images, task.name).confidence, twin.predict(images, task.name).confidence)
        before = rival.predict(images, stream[0].name).confidence
        twin.learn(stream[2])
        assert torch.equal(rival.predict(images, stream[0].name).confidence, before), "a copy shares weights"
        assert rival.tasks == [task.name for task in stream[:2]]


def test_a_damaged_copy_is_refused(small: SupSup) -> None:
    """What is unpickled goes through the checks of the model file."""
    rebuild, (content, *others) = state_of(small).__reduce__()
    broken = bytearray(content)
    broken[len(broken) // 2] ^= 1
    with pytest.raises(SupSupError):
        rebuild(bytes(broken), *others)


def answer(model: SupSup, images: Tensor, task: str | None) -> list[int]:
    """For a process: it must be found by name there."""
    labels: list[int] = model.predict(images, task).labels.tolist()
    return labels


def test_a_spawned_process(small: SupSup, images: Tensor, tmp_path: Path) -> None:
    """By a pickle on its way to a fresh interpreter."""
    path = tmp_path / "model.pickled"
    small.predict(images, small.tasks[1])
    path.write_bytes(pickle.dumps((small, images)))
    code = f"""
import pickle, pathlib
model, images = pickle.loads(pathlib.Path({str(path)!r}).read_bytes())
print([model.predict(images, task).labels.tolist() for task in (*model.tasks, None)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == str([answer(small, images, task) for task in (*small.tasks, None)]), done.stderr


def forked(work: Callable[[], Any]) -> Any:
    """What a forked process makes of it; an error if it dies or never ends."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            try:
                result = work()
            except Exception as error:
                result = error
            with os.fdopen(write, "wb") as pipe:
                pickle.dump(result, pipe)
        finally:
            os._exit(0)
    os.close(write)
    ended = threading.Timer(WAIT, os.kill, (child, 9))
    ended.start()
    with os.fdopen(read, "rb") as pipe:
        content = pipe.read()
    ended.cancel()
    assert os.waitpid(child, 0)[1] == 0, "the process died"
    result = pickle.loads(content)
    if isinstance(result, Exception):
        raise result
    return result


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_answers_and_learns(threads: int, small: SupSup, images: Tensor, stream: Stream) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        expected = [answer(small, images, task) for task in (*small.tasks, None)] + [answer(small, images[:1], None)]

        def work() -> Any:
            found = [answer(small, images, task) for task in (*small.tasks, None)] + [answer(small, images[:1], None)]
            small.learn(stream[2])
            return found, state_of(small).bank.packed(2)

        found, mask = forked(work)
        assert found == expected
        assert len(small.tasks) == 2
        small.learn(stream[2])
        assert torch.equal(state_of(small).bank.packed(2), mask)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_while_threads_ask_and_learn(small: SupSup, images: Tensor, stream: Stream) -> None:
    """The locks that other threads hold at that moment are held by nobody in the new process."""
    end = threading.Event()

    def ask() -> None:
        while not end.is_set():
            small.predict(images)

    def learn() -> None:
        while not end.is_set():
            small.learn(stream[3])
            small.forget(stream[3].name)

    threads = [threading.Thread(target=work) for work in (ask, ask, learn)]
    for thread in threads:
        thread.start()
    try:
        names = [task.name for task in stream[:2]]
        expected = [answer(small, images, name) for name in names]

        def work() -> Any:
            with state_of(small).changing:
                pass
            return [answer(small, images, name) for name in names], small.tasks[:2]

        for _ in range(8):
            assert forked(work) == (expected, names)
            time.sleep(0.01)
    finally:
        end.set()
        for thread in threads:
            thread.join()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_leaves_the_file_to_its_parent(
    small: SupSup, images: Tensor, stream: Stream, tmp_path: Path
) -> None:
    path = tmp_path / "m.supsup"
    small.save(path)
    with supsup.load(path, in_place=True, device="cpu") as model:
        expected = answer(model, images, None)

        def work() -> Any:
            found, messages = answer(model, images, None), []
            calls: list[Callable[[], None]] = [lambda: model.forget(model.tasks[0]), model.save, state_of(model).commit]
            for call in calls:
                try:
                    call()
                except SupSupError as error:
                    messages.append(str(error))
            model.save(path.with_name("of-the-child.supsup"))
            model.close()
            model.forget(model.tasks[0])
            return found, messages, len(model.tasks)

        found, messages, left = forked(work)
        assert (found, left) == (expected, 1)
        assert len(messages) == 3
        assert all("close() the model here" in message for message in messages)
        with pytest.raises(SupSupError, match="being written by another process"):
            supsup.load(path, in_place=True, device="cpu")
        model.learn(stream[2])
    assert len(supsup.load(path, device="cpu").tasks) == 3
    assert verify(path).clean
    assert len(supsup.load(path.with_name("of-the-child.supsup"), device="cpu").tasks) == 2


POOL = """
import multiprocessing, torch
from supsup import Recipe, SupSup, nets

def answer(model, images, task):
    return model.predict(images, task).labels.tolist()

model, images = SupSup(nets.FullyConnected((6, 8, 4)), recipe=Recipe(steps=2, batch_size=4)), torch.randn(9, 6)
for name in "abc":
    model.learn((torch.randn(12, 6), torch.arange(12) % 4), task=name)
with multiprocessing.get_context("fork").Pool(2) as pool:
    asked = [pool.apply_async(answer, (model, images, task)) for task in (*model.tasks, None)]
    found = [each.get(60) for each in asked]
assert found == [answer(model, images, task) for task in (*model.tasks, None)]
"""


def test_a_pool_of_forked_processes() -> None:
    """From a program of its own: what other tests have left running does not survive a fork."""
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("processes cannot be forked here")
    done = subprocess.run([sys.executable, "-c", POOL], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
