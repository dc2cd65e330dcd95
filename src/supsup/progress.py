"""A progress bar for long work: how far, how fast, how long still. Silent where nobody is looking.

Whoever trains is given a function to call with the share of tasks just done. That of `steps` also wants to `report`ed
the loss and accuracy of a batch, every few steps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from supsup.errors import printable

Advance = Callable[[float], None]
REPORTED = 50  # steps between two reports


@dataclass(frozen=True)
class Step:
    """How far the training of a task is; loss and accuracy of the last batch, None where that is not known."""

    task: str
    step: int
    steps: int
    loss: float | None = None
    accuracy: float | None = None


Callback = Callable[[Step], None]
Figures = Callable[[], tuple[float, float]]


class _Rate(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.1f} {self._unit}/s" if speed else f"– {self._unit}/s")


def _shows(show: bool | None) -> bool:
    """Whether there is a bar: by default where somebody looks at stderr. A program may have none, or have closed it."""
    stream: TextIO | None = sys.stderr
    if stream is None or getattr(stream, "closed", False):
        return False
    return stream.isatty() if show is None else show


def report(advance: Advance, task: str, step: int, steps: int, figures: Figures) -> None:
    """Say how training goes, if somebody listens and it is time; `figures` are the loss and accuracy of a batch."""
    if isinstance(advance, Steps) and (step % REPORTED == 0 or step == steps):
        advance.hear(Step(task, step, steps, *figures()))


class Steps:
    """The steps of one task, for a callback and for a bar."""

    def __init__(self, task: str, steps: int, callback: Callback | None, show: Callback | None) -> None:
        self._task, self._steps, self._listeners = task, steps, [each for each in (callback, show) if each is not None]
        self._share, self._heard = 0.0, 0

    def __call__(self, share: float) -> None:
        """A share of the task is done; told on where nobody reports figures."""
        self._share += share
        step = min(self._steps, round(self._share * self._steps))
        if step - self._heard >= REPORTED or (step == self._steps and self._heard < step):
            self.hear(Step(self._task, step, self._steps))

    def hear(self, step: Step) -> None:
        """Tell everybody."""
        self._heard = step.step
        for listener in self._listeners:
            listener(step)


@contextmanager
def steps(task: str, count: int, show: bool | None, callback: Callback | None) -> Iterator[Advance]:
    """What to call while one task of so many steps is trained."""
    if not _shows(show):
        yield (lambda share: None) if callback is None else Steps(task, count, callback, None)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate("steps"))
    with Progress(*columns, TextColumn("{task.fields[figures]}"), console=Console(stderr=True)) as progress:
        job = progress.add_task(escape(printable(f"learning {task}")), total=count, figures="")

        def shown(step: Step) -> None:
            known = step.loss is not None and step.accuracy is not None
            figures = f"loss {step.loss:.3f}, accuracy {100 * (step.accuracy or 0):.1f} %" if known else ""
            progress.update(job, completed=step.step, figures=figures)

        yield Steps(task, count, callback, shown)


@contextmanager
def bar(description: str, total: int, unit: str = "tasks", show: bool | None = None) -> Iterator[Advance]:
    """A function to call with the number of pieces just done; show=None shows the bar on a terminal only."""
    if not _shows(show):
        yield lambda pieces: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(unit),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        job = progress.add_task(escape(printable(description)), total=total)
        yield lambda pieces: progress.advance(job, pieces)
