"""Ctrl-C when any line of the package begins, and what must hold of a model whenever it comes."""

from __future__ import annotations

import dis
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import supsup
from supsup import NewTaskRule, Recipe, SupSup, data, nets
from supsup.data import Task
from supsup.file.modelfile import ModelFile
from supsup.file.repair import repair, verify
from supsup.file.sqlite import WriterLock
from supsup.model.state import state_of

SOURCE = str(Path(supsup.__file__).parent)
TASKS = 9
CHANCE = random.Random(0)


def task(number: int) -> Task:
    chance = torch.Generator().manual_seed(number)
    part = data.Part(torch.randn(12, 16, generator=chance), torch.arange(12) % 4)
    return Task(f"task-{number}", part, part, 4)


def fresh(net: nn.Module | None = None, **settings: Any) -> SupSup:
    return SupSup(
        net or nets.FullyConnected((16, 8, 4)), recipe=Recipe(steps=1, batch_size=4, **settings), device="cpu"
    )


def found(model: SupSup) -> dict[str, bytes]:
    return {name: state_of(model).bank.packed(i).numpy().tobytes() for i, name in enumerate(model.tasks)}


def is_right(model: SupSup, masks: dict[str, bytes]) -> None:
    """Every task has its own mask, and what is derived from the masks is that of these masks."""
    bank = state_of(model).bank
    assert len(bank) == len(model.tasks) == len(state_of(model).tasks)
    assert found(model) == {name: masks[name] for name in model.tasks}
    if len(bank):
        rows = [torch.cat([bits.flatten() for bits in model.mask(name).values()]) for name in model.tasks]
        total = torch.stack(rows).sum(0)
        mean = torch.cat([share.flatten() for share in bank.mean().values()])
        assert torch.equal(mean, total / len(bank))
        model.predict(torch.ones(2, 16))
    assert torch.is_grad_enabled(), "an interruption left gradients off"
    free = []

    def change_nothing() -> None:
        with state_of(model).changing, model._observer.lock, state_of(model).lock.writing():
            free.append(True)

    thread = threading.Thread(target=change_nothing, daemon=True)
    thread.start()
    thread.join(10)
    assert free == [True], "a lock was kept"


class Interrupter:
    """Sends SIGINT when the given line, counted over all lines of the package that are run, begins.

    A program that a shell starts in the background ignores SIGINT, so Python's own handler is put in place.
    """

    def __init__(self, line: int | None) -> None:
        self.line, self.lines = line, 0
        self.seen: dict[tuple[Any, ...], list[int]] = {}  # by where all calls under way are: first and last time

    def __enter__(self) -> Interrupter:
        self._handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.settrace(self.profile)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        signal.signal(signal.SIGINT, self._handler)

    def profile(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(SOURCE) and not name.endswith("contextlib.py"):
            return None
        if event == "line" and not leaves_a_with(frame):
            self.lines += 1
            if self.line is None:
                self.seen.setdefault(_place(frame), [self.lines, 0])[1] = self.lines
            elif self.lines == self.line:
                signal.raise_signal(signal.SIGINT)
        return self.profile


def leaves_a_with(frame: FrameType) -> bool:
    """Whether a `with` is about to call __exit__: the interpreter handles no signal there, as it would for a tracer.

    Instructions that call nothing may come before: of `pass`, and one that keeps what is returned.
    """
    code, start = frame.f_code.co_code, frame.f_lasti
    while dis.opname[code[start]] in ("NOP", "SWAP"):
        start += 2
    return [dis.opname[code[at]] for at in range(start, min(start + 6, len(code)), 2)] == ["LOAD_CONST"] * 3


def _place(frame: FrameType | None) -> tuple[Any, ...]:
    """The line that is run, and those that called it."""
    place: list[Any] = []
    while frame is not None:
        place += frame.f_code, frame.f_lineno
        frame = frame.f_back
    return tuple(place)


def lines_of(call: Callable[[], Any]) -> list[int]:
    """Every line of the package that a call runs, by its number among all; one in a loop at its first and last turn."""
    with Interrupter(None) as tracer:
        call()
    return sorted({line for turns in tracer.seen.values() for line in turns})


def interrupted(call: Callable[[], Any], line: int) -> bool:
    """Make a call that is interrupted at a line; whether it was cut short."""
    try:
        with Interrupter(line):
            call()
    except KeyboardInterrupt:
        return True
    return False


def interrupt_everywhere(call: Callable[[], Any], tries: int) -> Iterator[bool]:
    """Make the call again and again, interrupted at another line each time; gives whether it was cut short."""
    lines = lines_of(call)
    yield False
    for line in lines if len(lines) <= tries else sorted(CHANCE.sample(lines, tries)):
        yield interrupted(call, line)


class Scenario:
    """A call to interrupt, what must hold afterwards, and the way back to where it began."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._path, self._other, self._damaged = (folder / f"{name}{end}" for end in (".supsup", "-other", "-damaged"))
        every = fresh()
        every.learn_many([task(number) for number in range(TASKS + 3)])
        self._masks = found(every)
        self._sound = _file(self._path, TASKS)
        content = bytearray(self._sound)
        content[content.find(self._masks["task-3"])] ^= 1
        self._damaged.write_bytes(content)
        self._restored()
        self.call: Callable[[], Any] = {
            "learn": lambda: self._model.learn(task(TASKS)),
            "learn_many": lambda: self._model.learn_many([task(TASKS + 1), task(TASKS + 2)]),
            "forget": lambda: self._model.forget("task-4"),
            "save": lambda: self._model.save(self._other),
            "observe": self._observe,
            "compact": self._compact,
            "repair": lambda: repair(self._damaged, self._other),
            "open in place": self._open,
        }[name]

    def check(self) -> None:
        """After a call that was interrupted or not: raises if something is not as it was or as it should be."""
        before = [f"task-{number}" for number in range(TASKS)]
        after = {
            "learn": [before, [*before, f"task-{TASKS}"]],
            "learn_many": [[*before, *(f"task-{TASKS + 1 + i}" for i in range(done))] for done in range(3)],
            "forget": [before, [name for name in before if name != "task-4"]],
        }.get(self.name, [before])
        if state_of(self._model).file is not None:
            self._model.close()
        assert verify(self._path).clean
        again = supsup.load(self._path, device="cpu")
        known = [name for name in again.tasks if name.startswith("task-")]
        assert known in after, f"the tasks are {known}"
        if self.name != "observe":
            is_right(self._model, self._masks)
        assert found(again) == found(self._model)
        self._check_other()
        self._restored()

    def _check_other(self) -> None:
        if self._other.exists():
            assert verify(self._other).clean
            other = supsup.load(self._other, device="cpu")
            is_right(other, self._masks)
            assert len(other.tasks) == TASKS - (self.name == "repair")
        for path in (self._path, self._other):
            WriterLock(path).release()  # what an interrupt leaves of a lock keeps nobody from writing
        elsewhere = set(self._path.parent.glob(f"{self.name}*")) - {self._path, self._other, self._damaged}
        assert not elsewhere, f"{elsewhere} was left behind"

    def _restored(self) -> None:
        self._path.write_bytes(self._sound)
        self._other.unlink(missing_ok=True)
        in_place = self.name not in ("compact", "repair", "open in place")
        self._model = supsup.load(self._path, in_place=in_place, device="cpu")
        self._model.new_task_rule = NewTaskRule(every=2, budget=TASKS + 2)

    def _observe(self) -> None:
        for number in range(4):
            chance = torch.Generator().manual_seed(number // 2)
            self._model.observe(torch.randn(6, 16, generator=chance), torch.arange(6) % 4)

    def _compact(self) -> None:
        with ModelFile(self._path, write=True) as file:
            file.compact(against_mean=True)

    def _open(self) -> None:
        with supsup.load(self._path, in_place=True, device="cpu") as model:
            model.notes["seen"] = True


SCENARIOS = ("learn", "learn_many", "forget", "save", "observe", "compact", "repair", "open in place")


def _file(path: Path, tasks: int) -> bytes:
    """The content of a model file with so many tasks."""
    model = fresh()
    model.learn_many([task(number) for number in range(tasks)])
    model.save(path)
    return path.read_bytes()
