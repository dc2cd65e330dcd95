"""Progress of long work: a bar on a terminal, a line every few seconds elsewhere.

Training code gets a function to call with the share of tasks just done. The function of `steps` also accepts the loss
and accuracy of a batch every few steps, through `report_step`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from supsup.runtime.errors import printable

Advance = Callable[[float], None]
REPORTED = 50  # steps between reports


@dataclass(frozen=True)
class Step:
    """Progress of training a task; loss and accuracy of the last batch, None if unknown."""

    task: str
    step: int
    steps: int
    loss: float | None = None
    accuracy: float | None = None


Callback = Callable[[Step], None]
Figures = Callable[[], tuple[float, float]]


class ProgressBar:
    """The result of `bar`: call it with the number of pieces just done. This one shows nothing."""

    def __call__(self, pieces: float) -> None: ...

    def describe(self, description: str) -> None:
        """Change the description of the work."""

    def reach(self, done: float, figures: str) -> None:
        """Show the total number of pieces done, with figures about them."""


class _Rate(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.1f} {self._unit}/s" if speed else f"– {self._unit}/s")


class Lines(ProgressBar):
    """Lines instead of a bar, if stderr is a file or a pipe: at most one every `EVERY` seconds."""

    EVERY = 10.0

    def __init__(self, description: str, total: int, unit: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.describe(description)
        self._total, self._unit, self._clock = total, unit, clock
        self._done, self._begin = 0.0, clock()
        self._last = self._begin

    def __call__(self, pieces: float) -> None:
        self.reach(self._done + pieces)

    def describe(self, description: str) -> None:
        self._description = printable(description)

    def reach(self, done: float, figures: str = "") -> None:
        self._done = done
        now = self._clock()
        if now - self._last >= self.EVERY and _stderr() is not None:
            self._last = now
            rate = self._done / (now - self._begin)
            left = f", {(self._total - self._done) / rate:,.0f} s left" if rate else ""
            print(f"{self._description}: {self._done:,.4g} of {self._total:,} {self._unit}{left}", file=sys.stderr)


class _OnTerminal(ProgressBar):
    def __init__(self, progress: Progress, description: str, total: int) -> None:
        self._progress, self._job = progress, progress.add_task("", total=total, figures="")
        self.describe(description)

    def __call__(self, pieces: float) -> None:
        self._progress.advance(self._job, pieces)

    def describe(self, description: str) -> None:
        self._progress.update(self._job, description=escape(printable(description)))

    def reach(self, done: float, figures: str) -> None:
        self._progress.update(self._job, completed=done, figures=figures)


def _stderr() -> TextIO | None:
    """stderr, or None if the program has none or has closed it."""
    stream: TextIO | None = sys.stderr
    return None if stream is None or getattr(stream, "closed", False) else stream


@contextmanager
def bar(
    description: str, total: int, unit: str = "tasks", show: bool | None = None, *, last: ProgressColumn | None = None
) -> Iterator[ProgressBar]:
    """A function to call with the number of pieces just done.

    show  True: a bar; False: nothing; None: a bar on a terminal, lines elsewhere
    last  the last column of the bar, instead of the time that remains
    """
    stream = _stderr()
    if stream is None or show is False:
        yield ProgressBar()
    elif show is None and not stream.isatty():
        yield Lines(description, total, unit)
    else:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(unit))
        with Progress(*columns, last or TimeRemainingColumn(compact=True), console=Console(stderr=True)) as progress:
            yield _OnTerminal(progress, description, total)


@contextmanager
def steps(task: str, count: int, show: bool | None, callback: Callback | None) -> Iterator[Advance]:
    """The function to call while one task of `count` steps is trained."""
    with bar(f"learning {task}", count, "steps", show, last=TextColumn("{task.fields[figures]}")) as shown:
        silent = callback is None and type(shown) is ProgressBar
        yield shown if silent else Steps(task, count, callback, shown)


class Steps:
    """Reports the steps of one task to a callback and a bar."""

    def __init__(self, task: str, steps: int, callback: Callback | None, shown: ProgressBar) -> None:
        self.task, self.steps, self._callback, self._shown = task, steps, callback, shown
        self.share, self._reported = 0.0, 0

    def __call__(self, share: float) -> None:
        """Note that a share of the task is done; reports a step if `report_step` has not."""
        self.share += share
        step = min(self.steps, round(self.share * self.steps))
        if step - self._reported >= REPORTED or (step == self.steps and self._reported < step):
            self.report(Step(self.task, step, self.steps))

    def report(self, step: Step) -> None:
        """Report a step."""
        self._reported = step.step
        if self._callback is not None:
            self._callback(step)
        known = step.loss is not None and step.accuracy is not None
        figures = f"loss {step.loss:.3f}, accuracy {100 * (step.accuracy or 0):.1f} %" if known else ""
        self._shown.reach(step.step, figures)


class _Round(Steps):
    """A round of training that is a share of the whole."""

    def __init__(self, whole: Steps, share: float) -> None:
        self._whole, self._part, self._first = whole, share, round(whole.share * whole.steps)

    def __call__(self, share: float) -> None:
        self._whole(share * self._part)

    def report(self, step: Step) -> None:
        whole = self._whole
        whole.report(replace(step, task=whole.task, step=self._first + step.step, steps=whole.steps))


def in_rounds(advance: Advance, share: float) -> Advance:
    """The function to call during a round of training that is a share of the whole."""
    return _Round(advance, share) if isinstance(advance, Steps) else lambda done: advance(done * share)


def report_step(advance: Advance, task: str, step: int, steps: int, figures: Figures) -> None:
    """Report loss and accuracy of a batch (`figures`), if a callback or bar wants them at this step."""
    if isinstance(advance, Steps) and (step % REPORTED == 0 or step == steps):
        advance.report(Step(task, step, steps, *figures()))
