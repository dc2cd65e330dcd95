"""Ctrl-C at any line inside one running program: names and masks belong together, in memory and in the file.

The signal is sent when a line of the package begins, at each of them or at many by chance, and by a timer.
"""

import shutil
import signal
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import supsup
from supsup import HopSupSup, NewTaskRule, Recipe, SupSup, SupSupError, UnitRecipe, nets
from supsup.file.repair import verify
from supsup.file.sqlite import WriterLock
from supsup.file.task_record import LearnedTask
from supsup.hopfield.learner import MemoryFull
from supsup.model.state import state_of
from supsup.runtime.interrupts import uninterrupted
from tests.attack.interrupting import CHANCE, TASKS, found, fresh, interrupt_everywhere, is_right, task

# A lock that was taken when the interrupt came is let go of with the last reference to it, as any open file is.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


@pytest.fixture(scope="module")
def masks() -> dict[str, bytes]:
    """What each task's mask is: a function of its name and images."""
    model = fresh()
    model.learn_many([task(number) for number in range(TASKS + 3)])
    return found(model)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m.supsup"
    model = fresh()
    model.learn_many([task(number) for number in range(TASKS)])
    model.save(path)
    return path


def test_forgetting_in_memory(masks: dict[str, bytes]) -> None:
    original = fresh()
    original.learn_many([task(number) for number in range(TASKS)])
    present: list[SupSup] = []

    def call() -> None:
        present[:] = [original.to("cpu")]
        present[0].forget("task-3")

    left = set()
    for _ in interrupt_everywhere(call, 80):
        model = present[0]
        is_right(model, masks)
        left.add(len(model.tasks))
        if "task-3" in model.tasks:
            model.forget("task-3")
        is_right(model, masks)
        model.learn(task(3))
        is_right(model, masks)
    assert left == {TASKS, TASKS - 1}, "interrupts came before and after"


@pytest.mark.parametrize("what", ["forget", "learn", "learn_many", "save"])
def test_a_model_that_lives_in_a_file(what: str, saved: Path, masks: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "m.supsup"
    shutil.copy(saved, path)
    model = supsup.load(path, in_place=True, device="cpu")
    calls: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "forget": (lambda: model.forget("task-4"), lambda: model.learn(task(4))),
        "learn": (lambda: model.learn(task(TASKS)), lambda: model.forget(f"task-{TASKS}")),
        "learn_many": (
            lambda: model.learn_many([task(TASKS + 1), task(TASKS + 2)]),
            lambda: forget_later(model),
        ),
        "save": (lambda: model.save(tmp_path / "other.supsup"), lambda: None),
    }
    call, undo = calls[what]
    before = model.tasks
    for number, _ in enumerate(interrupt_everywhere(call, 25)):
        is_right(model, masks)
        file = state_of(model).file
        assert file is not None
        assert set(file.names) | set(state_of(model).tasks.unsaved()) == set(model.tasks)
        if number % 4 == 0:
            assert verify(path).clean
            is_right(supsup.load(path, device="cpu"), masks)
        if model.tasks == before:
            call()
        undo()
        before = model.tasks
        is_right(model, masks)
    model.close()
    assert verify(path).clean
    is_right(supsup.load(path, device="cpu"), masks)


def forget_later(model: SupSup) -> None:
    for name in model.tasks:
        if int(name[5:]) > TASKS:
            model.forget(name)


def test_the_lock_of_a_file(tmp_path: Path) -> None:
    """At every line: nobody is left with a lock that no one can let go of."""

    def call() -> None:
        WriterLock(tmp_path / "m.supsup").release()

    cuts = 0
    for cut in interrupt_everywhere(call, 1000):
        cuts += cut
        WriterLock(tmp_path / "m.supsup").release()
        assert list(tmp_path.iterdir()) == []
    assert cuts > 20


def test_opening_a_file_in_place(saved: Path, masks: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "m.supsup"
    shutil.copy(saved, path)

    def call() -> None:
        with supsup.load(path, in_place=True, device="cpu") as model:
            model.notes["seen"] = True

    for _ in interrupt_everywhere(call, 25):
        with supsup.load(path, in_place=True, device="cpu") as again:
            is_right(again, masks)
    assert verify(path).clean


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(number // 6)
    return torch.randn(6, 16, generator=chance), torch.arange(6) % 4


@pytest.mark.parametrize("kind", ["by hand", "plain"])
def test_observing(kind: str) -> None:
    """The mask in training, those put aside and their names stay together."""
    module = nets.FullyConnected((16, 8, 4)) if kind == "by hand" else nn.Sequential(nn.Linear(16, 4), nn.Tanh())
    model = SupSup(module, recipe=Recipe(batch_size=6), new_task_rule=NewTaskRule(every=2, budget=6), device="cpu")
    done = [0]

    def call() -> None:
        for _ in range(6):
            model.observe(*batch(done[0]))
            done[0] += 1
        if done[0] % 5 == 0 and len(model.tasks) > 2:
            model.forget(model.tasks[0])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the budget is in use
        for _ in interrupt_everywhere(call, 40):
            observer, names, observed = model._observer, model.tasks, model._observer.name
            assert set(observer.half_trained) <= set(names)
            assert observer.name is None or (observer.name in names and observer.name not in observer.half_trained)
            written = {name: model.mask(name) for name in names}
            if observer.name is not None:
                expected = observer.trainer.mask()
                assert all(torch.equal(bits, expected[weight]) for weight, bits in written[observer.name].items())
            model.observe(*batch(done[0]))
            for name in set(model.tasks) - {model._observer.name, observed}:
                assert all(torch.equal(bits, written[name][weight]) for weight, bits in model.mask(name).items())
            model.predict(torch.ones(2, 16))


def test_transferred_scores_stay_with_the_tasks(masks: dict[str, bytes]) -> None:
    """The mean of earlier scores counts the tasks that are there, or no further one could be learned."""
    model = fresh(transfer="scores")
    number = [0]

    def call() -> None:
        number[0] += 1
        model.learn(task(number[0]))

    for _ in interrupt_everywhere(call, 40):
        assert state_of(model).earlier_scores.count == len(model.tasks)
    call()


def test_a_memory_of_constant_size() -> None:
    model = HopSupSup(nets.HopMLP((16, 24, 24, 4000)), recipe=UnitRecipe(batch_size=6), device="cpu")
    number = [0]

    def call() -> None:
        number[0] += 1
        model.learn(task(number[0]))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MemoryFull)
        for _ in interrupt_everywhere(call, 40):
            count = len(model.tasks)
            for mean in model.mean:
                whole = (mean * count + count) / 2  # how many of the masks had each unit
                assert torch.allclose(whole, whole.round(), atol=1e-3)
            assert all((psi == psi.T).all() for psi in model.psi)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one that hit a finaliser
def test_by_a_timer(saved: Path, masks: dict[str, bytes], tmp_path: Path) -> None:
    """As signals really come: in the middle of whatever is computed, and at any byte code."""
    path = tmp_path / "m.supsup"
    shutil.copy(saved, path)
    model = supsup.load(path, in_place=True, device="cpu")
    cut, armed = 0, False

    def ring(*_: object) -> None:
        if armed:  # one that comes late must not end the tests
            raise KeyboardInterrupt

    handler = signal.signal(signal.SIGALRM, ring)
    try:
        for turn in range(100):
            number = turn % TASKS
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, CHANCE.uniform(1e-5, 0.02))
                if f"task-{number}" in model.tasks:
                    model.forget(f"task-{number}")
                else:
                    model.learn(task(number))
                armed = False
            except KeyboardInterrupt:
                cut += 1
            armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            is_right(model, masks)
            if turn % 20 == 0:
                assert verify(path).clean
                assert found(supsup.load(path, device="cpu")) == found(model)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert cut > 10


def test_memory_that_runs_out_while_a_change_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fresh()
    model.learn_many([task(number) for number in range(TASKS)])
    masks, version = found(model), state_of(model).bank.version
    for name in ("cat", "zeros"):
        with monkeypatch.context() as patch:

            def fail(*_: Any, **__: Any) -> None:
                raise MemoryError

            patch.setattr(f"supsup.masks.bank.torch.{name}", fail)
            calls: list[Callable[[], None]] = [
                lambda: state_of(model).remove("task-1"),
                lambda: state_of(model).add(
                    [LearnedTask("new", 4)], state_of(model).bank.packed(0)[:, None], {}, (16,)
                ),
            ]
            for call in calls:
                try:
                    call()
                except MemoryError:
                    assert (found(model), state_of(model).bank.version) == (masks, version)
                else:
                    assert name == "zeros", "a change that needs no memory of this kind"
                    masks, version = found(model), state_of(model).bank.version
    is_right(model, masks)


def test_handlers_come_back_exactly_and_every_signal_is_delivered() -> None:
    seen: list[int] = []

    def own(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        raise RuntimeError("of the program's own handler")

    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    earlier = signal.signal(signal.SIGTERM, own)
    try:
        done: list[str] = []

        def work() -> None:
            with uninterrupted():
                signal.raise_signal(signal.SIGTERM)
                signal.raise_signal(signal.SIGINT)
                with uninterrupted():
                    done.append("inside")
                assert seen == []
                done.append("to the end")

        with pytest.raises((RuntimeError, KeyboardInterrupt)):
            work()
        assert (done, seen) == (["inside", "to the end"], [signal.SIGTERM])
        assert signal.getsignal(signal.SIGTERM) is own
        with pytest.raises(KeyError), uninterrupted():
            raise KeyError
    finally:
        signal.signal(signal.SIGTERM, earlier)
    assert before == {number: signal.getsignal(number) for number in signal.valid_signals()}


def test_other_threads_are_left_alone() -> None:
    """They get no signals; trying to change handlers there would be an error."""
    done = []

    def work() -> None:
        with uninterrupted():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


def test_an_error_of_the_file_changes_nothing_in_memory(
    saved: Path, masks: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.supsup"
    shutil.copy(saved, path)
    with supsup.load(path, in_place=True, device="cpu") as model:
        assert state_of(model).file is not None

        def fail(*_: Any) -> None:
            raise SupSupError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(state_of(model).file, "remove", fail)
            with pytest.raises(SupSupError, match="full"):
                model.forget("task-2")
        is_right(model, masks)
        assert "task-2" in model.tasks
        model.forget("task-2")
    assert verify(path).clean
