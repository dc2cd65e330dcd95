"""Processes that are killed or interrupted at any moment: what they had reported is in the file, and all of it right.

They are forked from one that has everything loaded and one thread, so that a trial takes some hundredths of a second.
"""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import supsup
from supsup import NewTaskRule, Recipe, SupSup, data, nets
from supsup.data import Task
from supsup.file.modelfile import ModelFile
from supsup.file.repair import repair, verify
from tests.attack.interrupting import found

TASKS = 5
LATER = 90  # the task that a process learns which goes on with the file
LONGEST = 20.0  # seconds that a process may live on after a signal
WIDTH = 120
SIGNALS = [
    (signal.SIGKILL, False),
    (signal.SIGKILL, False),
    (signal.SIGINT, True),
    (signal.SIGTERM, True),
    (signal.SIGTERM, False),
]  # and whether the process has a handler for it
Report = Callable[[str], None]


class Terminated(BaseException):
    """What a program may make of SIGTERM."""


@dataclass(frozen=True)
class Outcome:
    """What one trial showed.

    early    the signal came before the process was done
    journal  it came in the middle of a commit, which left a journal behind
    """

    operation: str
    sent: str
    early: bool
    journal: bool
    problem: str
    seconds: float


def task(number: int) -> Task:
    chance = torch.Generator().manual_seed(number)
    part = data.Part(torch.randn(12, WIDTH, generator=chance), torch.arange(12) % 4)
    return Task(f"task-{number}", part, part, 4)


class Kills:
    """Trials in folders of their own; each is a function of its number and of the moment at which the signal comes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        every = self._learned([*range(TASKS + 3), LATER])
        self._masks = found(every)
        self._sound, self._older = self._content(TASKS), self._content(2)
        damaged = bytearray(self._sound)
        damaged[damaged.find(self._masks["task-3"])] ^= 1
        self._damaged = bytes(damaged)
        self._observed: dict[str, set[bytes]] = {}
        self.prepare(folder / "observed")
        with self._opened(folder / "observed", _silent) as model:
            for step in range(8):
                self._observe(model, step)
                model.mask(model.tasks[0])  # who asks brings the mask in training up to date
                for name, mask in found(model).items():
                    self._observed.setdefault(name, set()).add(mask)
        shutil.rmtree(folder / "observed")
        self.operations: dict[str, Callable[[Path, Report], None]] = {
            "learn": self._learn,
            "learn_many": self._learn_many,
            "forget": self._forget,
            "save": self._save,
            "observe": self._observe_all,
            "compact": self._compact,
            "repair": self._repair,
        }
        self._usual: dict[str, float] = {}  # seconds that each operation takes

    def trial(self, number: int) -> Outcome:
        """Send a signal to a process at a moment by chance, then look at what it has left."""
        chance = random.Random(f"kill {number}")
        operation = chance.choice(list(self.operations))
        sent, handled = chance.choice(SIGNALS)
        if operation not in self._usual:
            self._usual[operation] = self._usual_seconds(operation)
        place = self._folder / str(number)
        self.prepare(place)
        delay = chance.uniform(0, self._usual[operation])
        said, seconds = self._run(place, operation, sent, handled, delay)
        early = said is not None and "end" not in said
        self._usual[operation] *= 1.02 if early else 0.97  # the machine may be more or less busy by now
        journal = (place / "m.supsup-journal").exists()
        try:
            if said is None:
                raise AssertionError(f"still there {LONGEST:.0f} s after the signal")
            for line in said:
                assert not line.startswith("error"), line
            self.check(place, operation, said)
            if number % 3 == 0:
                self._go_on(place)
            problem = ""
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        if not problem:
            shutil.rmtree(place)
        name = f"{sent.name}{' handled' if handled and sent == signal.SIGTERM else ''}"
        return Outcome(operation, name, early, journal, problem, seconds)

    def _run(
        self, place: Path, operation: str, sent: signal.Signals | None, handled: bool, delay: float
    ) -> tuple[list[str] | None, float]:
        """What a process said before and after a signal, None if it did not end; and how long it lived on."""
        read, write = os.pipe()
        both = {signal.SIGINT, signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, both)
        child = os.fork()
        if child == 0:
            try:
                os.setsid()  # Ctrl-C on a terminal is for the campaign
                self._live(place, operation, handled, partial(_tell, write))
            finally:
                os._exit(0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, both)
        os.close(write)
        try:
            text = os.read(read, 6)  # "begin\n", in one piece
            ready, _, _ = select.select([read], [], [], delay)
            while ready and (more := os.read(read, 4096)):
                text += more
                delay /= 2
                ready, _, _ = select.select([read], [], [], delay)
            if sent is not None:
                os.kill(child, sent)
            begin = time.perf_counter()
            while select.select([read], [], [], max(0.0, begin + LONGEST - time.perf_counter()))[0]:
                more = os.read(read, 4096)
                if not more:
                    return text.decode().splitlines(), time.perf_counter() - begin
                text += more
            return None, LONGEST
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(read)

    def _live(self, place: Path, operation: str, handled: bool, report: Report) -> None:
        """The life of a process that gets a signal."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, _terminate if handled else signal.SIG_DFL)
        report("begin")
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
            self.operations[operation](place, report)
            report("end")
        except (KeyboardInterrupt, Terminated):
            report("cut")
        except BaseException as error:
            report(f"error {type(error).__name__}: {error}")

    def check(self, place: Path, operation: str, said: list[str]) -> None:
        """The file is whole, has all that was reported, at most the step under way besides, and every right mask."""
        before = [f"task-{number}" for number in range(TASKS)]
        possible = {
            "learn": [before, [*before, f"task-{TASKS}"]],
            "learn_many": [[*before, *(f"task-{TASKS + 1 + i}" for i in range(done))] for done in range(3)],
            "forget": [before, [name for name in before if name != "task-2"]],
        }.get(operation, [before])
        names = self._right(place / "m.supsup", observe_part=operation == "observe" and "cut" in said)
        known = [name for name in names if name.startswith("task-")]
        assert known in possible, f"the tasks are {names}"
        for line in said:
            word, _, name = line.partition(" ")
            assert word != "learned" or name in names, f"{name} is lost"
            assert word != "forgot" or name not in names, f"{name} is still there"
        if operation == "save":
            saved = len(self._right(place / "other.supsup"))
            assert saved in ([TASKS] if "saved" in said else [2, TASKS]), f"{saved} tasks were saved"
        if operation == "repair":
            assert (place / "damaged").read_bytes() == self._damaged, "the damaged file was changed"
            if (place / "rescued").exists() or "repaired" in said:
                assert self._right(place / "rescued") == [name for name in before if name != "task-3"]

    def _right(self, path: Path, observe_part: bool = False) -> list[str]:
        """The tasks of a file, once every one of them has its own mask.

        observing  whoever was interrupted has written the one mask in training as it stood, in the middle of a step
        """
        assert verify(path).clean, f"{path.name} is damaged"
        masks = found(supsup.load(path, device="cpu"))
        known = {name: {mask} for name, mask in self._masks.items()} | self._observed
        others = [name for name, mask in masks.items() if mask not in known[name]]
        halfway = [name for name in others if name.startswith("observed-")] if observe_part else []
        assert others == halfway[:1], f"{others} have other masks"
        return list(masks)

    def _go_on(self, place: Path) -> None:
        """Another process may write to the file at once, and nothing is left behind."""
        with supsup.load(place / "m.supsup", in_place=True, device="cpu") as model:
            model.learn(task(LATER))
            model.save(place / "other.supsup")
        assert f"task-{LATER}" in self._right(place / "other.supsup")
        (place / "rescued").unlink(missing_ok=True)
        repair(place / "damaged", place / "rescued")
        left = sorted(file.name for file in place.iterdir())
        assert left == ["damaged", "m.supsup", "other.supsup", "rescued"], f"{left} were left behind"

    def _usual_seconds(self, operation: str) -> float:
        taken = []
        for _ in range(5):
            place = self._folder / "usual"
            self.prepare(place)
            said, seconds = self._run(place, operation, None, False, 0.0)
            taken.append(seconds)
            assert said is not None, operation
            assert said[-1] == "end", said
            shutil.rmtree(place)
        return statistics.median(taken)

    def prepare(self, place: Path) -> None:
        place.mkdir()
        contents = {"m.supsup": self._sound, "other.supsup": self._older, "damaged": self._damaged}
        for name, content in contents.items():
            (place / name).write_bytes(content)

    def _learned(self, numbers: list[int]) -> SupSup:
        model = SupSup(nets.FullyConnected((WIDTH, 40, 8)), recipe=Recipe(steps=2, batch_size=6), device="cpu")
        model.new_task_rule = NewTaskRule(every=2)
        model.learn_many([task(number) for number in numbers])
        return model

    def _content(self, tasks: int) -> bytes:
        self._learned(list(range(tasks))).save(self._folder / "content")
        content = (self._folder / "content").read_bytes()
        (self._folder / "content").unlink()
        return content

    @contextmanager
    def _opened(self, place: Path, report: Report) -> Iterator[SupSup]:
        model = supsup.load(place / "m.supsup", in_place=True, device="cpu")
        try:
            yield model
        except (KeyboardInterrupt, Terminated):
            wrong = [name for name, mask in found(model).items() if self._masks.get(name, mask) != mask]
            if wrong:
                report(f"error {wrong} have other masks in memory")
            raise
        finally:
            model.close()

    def _learn(self, place: Path, report: Report) -> None:
        with self._opened(place, report) as model:
            report(f"learned {model.learn(task(TASKS))}")

    def _learn_many(self, place: Path, report: Report) -> None:
        with self._opened(place, report) as model:
            for name in model.learn_many([task(TASKS + 1), task(TASKS + 2)], show_progress=False):
                report(f"learned {name}")

    def _forget(self, place: Path, report: Report) -> None:
        with self._opened(place, report) as model:
            model.forget("task-2")
            report("forgot task-2")

    def _save(self, place: Path, report: Report) -> None:
        with self._opened(place, report) as model:
            model.save(place / "other.supsup")
            report("saved")

    def _observe_all(self, place: Path, report: Report) -> None:
        with self._opened(place, report) as model:
            for step in range(8):
                self._observe(model, step)

    def _observe(self, model: Any, step: int) -> None:
        chance = torch.Generator().manual_seed(500 + step // 4)
        model.observe(torch.randn(6, WIDTH, generator=chance), torch.arange(6) % 4)

    def _compact(self, place: Path, report: Report) -> None:
        for against_mean in (True, False):
            with ModelFile(place / "m.supsup", write=True) as file:
                file.compact(against_mean=against_mean)

    def _repair(self, place: Path, report: Report) -> None:
        repair(place / "damaged", place / "rescued")
        report("repaired")


def _terminate(*_: object) -> None:
    raise Terminated


def _tell(pipe: int, line: str) -> None:
    os.write(pipe, f"{line}\n".encode())


def _silent(_: str) -> None:
    pass
