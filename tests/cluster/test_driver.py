"""A cluster gives the masks of a model that learns alone, whoever trains them and whoever is lost on the way."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from supsup import AutoRecipe, Recipe, SupSup, SupSupError, data, load, nets
from supsup.cluster.worker import GroupResult
from supsup.cluster.workers import LocalProcesses
from supsup.data import Stream, Task
from supsup.model.state import state_of


def new(recipe: Recipe | AutoRecipe | None = None) -> SupSup:
    return SupSup(nets.FullyConnected((784, 20, 20)), seed=1, recipe=recipe or Recipe(steps=8), device="cpu")


def same_masks(one: SupSup, other: SupSup) -> bool:
    assert sorted(one.tasks) == sorted(other.tasks)
    pairs = [(state_of(one).tasks.index(name), state_of(other).tasks.index(name)) for name in one.tasks]
    return all(
        torch.equal(state_of(one).bank.packed(i), state_of(other).bank.packed(j))
        and torch.equal(state_of(one).bank.flat_statistics(i), state_of(other).bank.flat_statistics(j))
        for i, j in pairs
    )


def same_traces(one: SupSup, other: SupSup) -> bool:
    """But for a count that depends on who was learned before in the same place."""
    profiles = [(state_of(one).tasks[name].profile, state_of(other).tasks[name].profile) for name in one.tasks]
    pairs = [(mine.tensors(), theirs.tensors()) for mine, theirs in profiles if mine is not None and theirs is not None]
    same = (torch.equal(mine[name], theirs[name]) for mine, theirs in pairs for name in mine if name != "checked")
    return len(pairs) == len(one.tasks) and all(same)


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every task is a group."""
    monkeypatch.setattr("supsup.cluster.driver.tasks_per_group", lambda *_: 1)


class Inline(Executor):
    """Calls at once, but for one call that comes a second later."""

    def __init__(self, held_back: int | None = None) -> None:
        self._held_back, self._calls = held_back, 0

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if self._calls == self._held_back:
            threading.Timer(1.0, lambda: future.set_result(function(*arguments))).start()
        else:
            future.set_result(function(*arguments))
        self._calls += 1
        return future


@pytest.mark.parametrize("recipe", [None, AutoRecipe(rounds=1)], ids=["recipe", "fitting"])
def test_masks_facts_and_recipes_are_those_of_learning_alone(stream: Stream, recipe: AutoRecipe | None) -> None:
    alone, together = new(recipe), new(recipe)
    alone.learn_many(stream[:3])
    threads = torch.get_num_threads()  # a thread that begins while a training starts would have one: other last bits
    with ThreadPoolExecutor(2, initializer=torch.set_num_threads, initargs=(threads,)) as pool:
        assert together.learn_many(stream[:3], cluster=pool) == alone.tasks
    assert same_masks(alone, together)
    assert same_traces(alone, together)
    for name in alone.tasks:
        assert alone.recipe_of(name) == together.recipe_of(name)
        assert alone.classes(name) == together.classes(name)


def test_what_tasks_are_found_by_is_made_by_workers(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes as long as a short training: made by the driver, it would keep every worker waiting."""
    alone, together = new(), new()
    alone.learn_many(stream[:3])

    def nothing_to_do(*_: Any) -> None:
        raise AssertionError("the driver makes a trace")

    monkeypatch.setattr("supsup.model.learning.ProfileFitter", nothing_to_do)
    together.learn_many(stream[:3], cluster="local:2")
    assert same_masks(alone, together)
    x = torch.cat([task.test.tensors()[0][:20] for task in stream[:3]])
    assert together.infer_task(x, method="features") == alone.infer_task(x, method="features")


def test_statistics_and_a_network_of_ones_own_come_along(stream: Stream, convolutional: nn.Module) -> None:
    recipe = Recipe("adam", 1e-2, 3, 16)
    alone, together = (SupSup(convolutional, recipe=recipe, device="cpu") for _ in range(2))
    tasks = [Task(task.name, *(_five_classes(task),) * 2, 5) for task in stream[:3]]
    alone.learn_many(tasks)
    together.learn_many(tasks, cluster=Inline())
    assert same_masks(alone, together)


def _five_classes(task: Task) -> data.Part:
    rows = (task.train.labels < 5).nonzero().flatten()
    return data.Part(
        task.train.images, task.train.labels[rows], task.train.gain, task.train.offset, rows, task.train.pixels
    )


def test_raw_data_is_answered_as_if_learned_alone() -> None:
    """Names of classes and the normalisation of raw inputs stay with the process that has the model."""
    x = torch.randint(0, 256, (60, 12), generator=torch.Generator().manual_seed(0)).numpy()
    y = ["low" if row.sum() < 1530 else "high" for row in x]
    tasks = [data.task((x, y), name=name) for name in ("one", "two")]
    alone, together = (SupSup(nets.FullyConnected((12, 8, 4)), recipe=Recipe(steps=5), device="cpu") for _ in range(2))
    alone.learn_many(tasks)
    together.learn_many(tasks, cluster=Inline())
    assert same_masks(alone, together)
    assert together.task_info("two").names == alone.task_info("two").names
    assert torch.equal(together.predict(x, "one").labels, alone.predict(x, "one").labels)


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("late", [1, 2])
def test_tasks_stand_in_the_order_of_the_stream(
    stream: Stream, late: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs used to give two files: tasks stood in the order in which workers had finished."""
    monkeypatch.setattr(
        "supsup.runtime.clock.datetime", SimpleNamespace(now=lambda zone: datetime(2026, 1, 1, tzinfo=zone))
    )
    files = []
    for number, executor in enumerate((Inline(), Inline(held_back=late))):  # call 0 asks how large groups may be
        learned = new()
        learned.learn_many(stream, cluster=executor)
        assert learned.tasks == [task.name for task in stream]
        learned.save(tmp_path / f"{number}")
        files.append((tmp_path / f"{number}").read_bytes())
    assert files[0] == files[1]


@pytest.mark.usefixtures("one_by_one")
def test_an_interruption_keeps_groups_that_wait_for_their_turn(stream: Stream, tmp_path: Path) -> None:
    """A group that is late, or lost, must not cost those that were finished after it."""

    class Late(Inline):
        count = 0

        def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
            future = super().submit(function, *arguments)
            if self._calls == 3:  # the second group never arrives
                return Future()
            if self._calls == 5:
                raise KeyboardInterrupt
            return future

    new().save(tmp_path / "model")
    with load(tmp_path / "model", in_place=True, device="cpu") as model, pytest.raises(KeyboardInterrupt):
        model.learn_many(stream, cluster=Late())
    kept = load(tmp_path / "model", device="cpu").tasks
    assert kept == [stream[0].name, stream[2].name]


@pytest.mark.usefixtures("one_by_one")
def test_few_finished_groups_wait_for_their_turn(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed loses them, so groups far ahead of an unfinished one are not sent out."""
    monkeypatch.setattr("supsup.cluster.driver._WINDOW", 2)
    sent: list[str] = []

    class Counting(Inline):
        def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
            sent.append(arguments[2][0].name)
            return super().submit(function, *arguments)

    executor = Counting(held_back=1)
    learned = new()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(learned.learn_many, stream, cluster=executor)
        time.sleep(0.5)
        assert sent == [stream[0].name, stream[0].name, stream[1].name]
        running.result()
    assert learned.tasks == [task.name for task in stream]


def test_every_task_of_a_part_has_its_own_profile_and_rotations(stream: Stream) -> None:
    """Tasks of one group come back as one block: they must be told apart, and averaged over rotations."""
    recipe = Recipe(steps=8, self_labels="rotations")
    alone, together = (SupSup(nets.FullyConnected((784, 20, 40)), recipe=recipe, device="cpu") for _ in range(2))
    alone.learn_many(stream[:3])
    together.learn_many(stream[:3], cluster=Inline())
    assert same_masks(alone, together)
    assert same_traces(alone, together)
    first, second = (state_of(together).tasks.at(index).profile for index in range(2))
    assert first is not None
    assert second is not None
    assert not torch.equal(first.class_means, second.class_means)
    assert all(state_of(together).tasks[task].info.rotated for task in together.tasks)
    x = stream[0].test.tensors()[0][:20]
    assert torch.equal(
        together.predict(x, task=stream[0].name).probabilities, alone.predict(x, task=stream[0].name).probabilities
    )


def test_a_program_from_standard_input_is_told_what_to_do() -> None:
    """Its processes cannot import it; that used to be called a want of memory."""
    program = """
from supsup import Recipe, SupSup, data, nets
model = SupSup(nets.FullyConnected((784, 4, 10)), recipe=Recipe(steps=1), device="cpu")
model.learn_many(data.permuted(data.digits(), tasks=2, seed=0), cluster="local:1")
"""
    run = subprocess.run([sys.executable, "-"], input=program, capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert "put it in a file" in run.stderr
    assert "memory" not in run.stderr


@pytest.mark.usefixtures("one_by_one")
def test_groups_are_committed_as_they_arrive(stream: Stream, tmp_path: Path) -> None:
    """A driver that dies keeps what was finished; what is left can be learned later, and gives the same masks."""
    alone = new()
    alone.learn_many(stream)

    class Dying(Inline):
        def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
            if self._calls == 4:
                raise KeyboardInterrupt
            return super().submit(function, *arguments)

    new().save(tmp_path / "model")
    with load(tmp_path / "model", in_place=True, device="cpu") as model, pytest.raises(KeyboardInterrupt):
        model.learn_many(stream, cluster=Dying())
    with load(tmp_path / "model", in_place=True, device="cpu") as model:
        assert 0 < len(model.tasks) < len(stream)
        model.learn_many([task for task in stream if task.name not in model.tasks], cluster=Inline())
    assert same_masks(load(tmp_path / "model", device="cpu"), alone)


def test_a_killed_process_costs_nothing_but_its_group(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []

    def kill(self: LocalProcesses, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        future = original(self, function, *arguments)
        if not killed and function.__name__ == "learn_group":
            killed.append(next(iter(self._executor._processes)))
            os.kill(killed[0], signal.SIGKILL)
        return future

    original = LocalProcesses.submit
    monkeypatch.setattr(LocalProcesses, "submit", kill)
    alone, together = new(), new()
    alone.learn_many(stream)
    together.learn_many(stream, cluster="local:2")
    assert killed
    assert same_masks(alone, together)
    assert not any(_lives(pid) for pid in killed)


def test_processes_end_with_the_run(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the middle of work: nobody waits for a group after Ctrl-C."""
    pids: list[int] = []

    def interrupt(self: LocalProcesses, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        original(self, function, *arguments)
        pids.extend(self._executor._processes)
        raise KeyboardInterrupt

    original = LocalProcesses.submit
    monkeypatch.setattr(LocalProcesses, "submit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        new(Recipe(steps=10**6)).learn_many(stream, cluster="local:1")
    assert pids
    deadline = time.monotonic() + 30
    while any(map(_lives, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_lives, pids))


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_workers_that_are_lost_for_good_are_an_error(stream: Stream) -> None:
    class Broken(Inline):
        def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_exception(BrokenExecutor("gone"))
            return future

    with pytest.raises(SupSupError, match="make a new one"):
        new().learn_many(stream, cluster=Broken())


@pytest.mark.usefixtures("one_by_one")
def test_what_a_worker_refuses_is_said_and_the_rest_kept(stream: Stream) -> None:
    class Refusing(Inline):
        def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
            future = super().submit(function, *arguments)
            if self._calls == 4:
                future = Future()
                future.set_result(GroupResult("here", error="no room on the device"))
            return future

    learned = new()
    with pytest.raises(SupSupError, match="no room on the device"):
        learned.learn_many(stream, cluster=Refusing())
    assert stream[0].name in learned.tasks


@pytest.mark.parametrize(
    ("cluster", "message"),
    [("local", "how many processes"), ("local:0", "1 to 1,024"), ("local:9999", "1 to 1,024"), (7, "an executor")],
)
def test_what_is_no_cluster_is_refused(stream: Stream, cluster: Any, message: str) -> None:
    with pytest.raises(SupSupError, match=message):
        new().learn_many(stream, cluster=cluster)


def test_transfer_needs_tasks_one_after_the_other(stream: Stream) -> None:
    with pytest.raises(SupSupError, match="one after the other"):
        new(Recipe(steps=2, transfer="masks")).learn_many(stream, cluster=Inline())
